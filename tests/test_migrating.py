"""Check the pages on migrating: their tables are whole, what they name exists, their files are
valid."""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from hooks import EVENTS, HOOKS, Hook, Interval, Priority, State
from hooks.checkpointing.checkpoint import Checkpoint
from hooks.logs import json_lines, tensorboard
from hooks.stats import memory_snapshot, profiler
from hooks.stats.layer_memory import LayerMemory
from hooks.training.ema import EMA
from orchestrator import Experiment, Task, load_experiment, run
from orchestrator.errors import ConfigError
from orchestrator.experiment.fields.other_systems import (
    EXPERIMENT,
    find_classes_elsewhere,
    find_options_elsewhere,
    load_other_systems,
)
from orchestrator.experiment.make_hooks import make_hook
from orchestrator.experiment.optim.parameter_groups import make_parameter_groups, read_groups
from orchestrator.experiment.resolve import resolve
from orchestrator.experiment.sections.training import Scaler
from orchestrator.loop.loop import Loop
from orchestrator.loop.model.precision import Precision
from tests.hooks.checkpointing.simulated_run import SimulatedRun, simulate
from tests.tasks import Points, described
from tests.tasks import experiment as small_experiment

ROOT = Path(__file__).parents[1]
PAGES = {
    system: (ROOT / "docs" / "migrating" / f"{system.lower()}.md").read_text()
    for system in ("MMEngine", "ClassyVision", "VISSL", "iMIX")
}
INDEX, OPTIONS = (ROOT / "docs" / "migrating" / f"{page}.md" for page in ("README", "options"))
GUARDS = yaml.safe_load((ROOT / "tests" / "migrating.yaml").read_text())
"""Files of tests that guard each row, by table and by the first of its names."""

THEIRS = yaml.safe_load((ROOT / "tests" / "other_systems.yaml").read_text())
"""Mount points, hooks, options, defaults and priorities of the other systems."""
MOUNT_POINTS, THEIR_HOOKS, THEIR_OPTIONS, THEIR_DEFAULTS, THEIR_PRIORITIES = (
    THEIRS[part] for part in ("mount points", "hooks", "options", "defaults", "priorities")
)
ITEM = re.compile(r"^\* (.*(?:\n  .*)*)", re.MULTILINE)
"""An item of a list, with its further lines."""

EXPERIMENT_OPTIONS = """
    fp16 optim_wrapper train_cfg default_hooks custom_hooks gradient_accumulation_steps is_lr_accumulation
    optimizer_config eval_iter_period checkpoint_config log_config by_iter max_iter max_epochs num_epochs val_interval
    simulated_global_batchsize param_schedulers sync_bn_config meters mixup clip_grad_norm test_phase_period
    accumulative_counts init_scale growth_interval grad_scaler_config load_from work_dir param_scheduler auto_scale_lr
    visualizer vis_backends visualization log_processor randomness env_cfg launcher resume model train_dataloader
    val_dataloader test_dataloader val_evaluator test_evaluator val_cfg test_cfg default_scope lr_config lr_steps
    lr_ratio warmup_iterations total_epochs model_wrapper_cfg find_unused_parameters
    resume_from custom_imports checkpoint machine use_gpu distributed log_frequency data dataset loss trainer seed_value
    monitoring profiling distillation test_only test_model auto_resume overwrite_existing reproducibility"""


@dataclass(frozen=True)
class Row:
    """A row of one of the tables, and the files of tests that guard it."""

    theirs: list[str]
    ours: list[str]
    differs: str
    tests: list[str]


def section(system: str, title: str) -> str:
    """Return the text of a section of a system's page."""
    (text,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGES[system], re.DOTALL | re.MULTILINE)
    return str(text)


def rows(system: str, title: str) -> list[Row]:
    """Return the rows of the table in a section. A list below it says what needs sentences."""
    text = section(system, title)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert lines[:2] == [f"| {system} | here | what differs |", "| --- | --- | --- |"]
    differences = dict(items(text))
    guards = GUARDS[f"{system} {title.lower()}"]
    parsed = [parse_row(line, differences, guards) for line in lines[2:]]
    assert sorted(differences) == sorted(
        line.split(" | ")[0].strip("| ") for line in lines if "| see below |" in line
    )
    assert set(guards) <= {row.theirs[0] for row in parsed}
    return parsed


def parse_row(line: str, differences: dict[str, str], guards: dict[str, list[str]]) -> Row:
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert len(cells) == 3, line
    theirs, ours, differs = cells
    return Row(
        names(theirs),
        [] if ours == "none" else names(ours),
        differences[theirs] if differs == "see below" else differs,
        guards.get(names(theirs)[0], []),
    )


def items(text: str) -> list[tuple[str, str]]:
    """Return what the list items of a text say of the words that they open with, in bold."""
    joined = [re.sub(r"\s+", " ", item) for item in ITEM.findall(text)]
    matches = [re.fullmatch(r"\*\*(.*?)\*\* \u2013 (.*)", item) for item in joined]
    return [(match[1], match[2]) for match in matches if match]


def read_settings(system: str) -> dict[str, str]:
    """Return what each setting is here, from the table of a page and the list below it."""
    text = section(system, "Settings")
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    table = {row[0]: row[1] for row in cells if len(row) == 2}
    return table | dict(items(text))


def names(cell: str) -> list[str]:
    quoted = re.findall(r"`([^`]+)`", cell)
    assert ", ".join(f"`{name}`" for name in quoted) == cell, cell
    return quoted


ALL = [
    *(
        pytest.param(row, id=f"{system}-{row.theirs[0]}")
        for system in MOUNT_POINTS
        for row in rows(system, "Mount points")
    ),
    *(
        pytest.param(row, id=f"{system}-{row.theirs[0]}")
        for system in THEIR_HOOKS
        for row in rows(system, "Hooks")
    ),
]


def exists(name: str) -> bool:
    """Return whether a name is a hook, a parameter, an event, a setting, or an attribute of the
    state or task."""
    first, _, rest = name.partition(".")
    if first in HOOKS:
        return not rest or rest in {field.name for field in fields(HOOKS[first])}
    if rest and first in ("state", "Task"):
        return hasattr({"state": State, "Task": Task}[first], rest)
    return name in EVENTS or name in Experiment.model_fields


# The tables


@pytest.mark.parametrize("system", MOUNT_POINTS)
def test_every_mount_point_has_its_row(system: str) -> None:
    found = [name for row in rows(system, "Mount points") for name in row.theirs]
    assert found == MOUNT_POINTS[system].split()


@pytest.mark.parametrize("system", THEIR_HOOKS)
def test_every_hook_has_its_row(system: str) -> None:
    found = [name for row in rows(system, "Hooks") for name in row.theirs]
    assert sorted(found) == sorted(THEIR_HOOKS[system].split())


@pytest.mark.parametrize("row", ALL)
def test_names_in_a_row_exist_and_missing_counterparts_are_explained(row: Row) -> None:
    assert [name for name in row.ours if not exists(name)] == []
    assert row.differs
    if row.ours:
        assert row.tests


def test_files_that_guard_the_rows_exist() -> None:
    files = {file for table in GUARDS.values() for guards in table.values() for file in guards}
    assert [file for file in sorted(files) if not (ROOT / "tests" / file).is_file()] == []


def default_of(name: str) -> Any:
    """Return the default of a hook's option as a file has it."""
    hook, _, option = name.partition(".")
    (field,) = [field for field in fields(HOOKS[hook]) if field.name == option]
    value = field.default_factory() if callable(field.default_factory) else field.default
    if isinstance(value, Interval):
        return value.count if value.unit == "epochs" else str(value)
    return list(value) if isinstance(value, tuple) else value


def spelled(option: str, value: Any) -> str:
    """Write an option as a file does: `keep: null`."""
    text = yaml.safe_dump({option: value}, default_flow_style=True, width=1000).strip()
    return text.strip("{}").replace("'", "")


@pytest.mark.parametrize(
    ("system", "hook", "option"),
    [
        (system, hook, option)
        for system, hooks in THEIR_DEFAULTS.items()
        for hook, options in hooks.items()
        for option in options
    ],
)
def test_different_default_is_documented_in_its_row(system: str, hook: str, option: str) -> None:
    theirs = THEIR_DEFAULTS[system][hook][option]
    (row,) = [row for row in rows(system, "Hooks") if hook in row.theirs]
    assert option.partition(".")[0] in {name.partition(".")[0] for name in row.ours}
    if default_of(option) != theirs:
        assert f"`{spelled(option.partition('.')[2], theirs)}`" in row.differs


@pytest.mark.parametrize("hook", THEIR_PRIORITIES)
def test_different_priority_is_documented_in_its_row(hook: str) -> None:
    (row,) = [row for row in rows("MMEngine", "Hooks") if hook in row.theirs]
    theirs = THEIR_PRIORITIES[hook]
    ours = Priority(HOOKS[row.ours[0]].priority).name
    assert ours == theirs or f"uns at `{ours}` instead of `{theirs}`" in row.differs


def test_the_index_counts_the_hooks_and_the_mount_points() -> None:
    counts = re.findall(
        r"^\| \[(\w+)\]\(\w+\.md\) \| (\d+) \| (\d+) \|", INDEX.read_text(), re.MULTILINE
    )
    assert {system: (int(hooks), int(points)) for system, hooks, points in counts} == {
        system: (len(THEIR_HOOKS[system].split()), len(MOUNT_POINTS[system].split()))
        for system in PAGES
    }


@pytest.mark.parametrize("system", PAGES)
def test_counterparts_of_what_a_hook_reads_exist(system: str) -> None:
    attributes = re.findall(r"`state\.(\w+)", section(system, "What a hook reads and changes"))
    assert len(attributes) > 8
    assert [name for name in attributes if not hasattr(State(), name)] == []


def test_mount_points_map_to_events_only() -> None:
    for system in MOUNT_POINTS:
        for row in rows(system, "Mount points"):
            assert row.ours
            assert set(row.ours) <= set(EVENTS)


# The files


def blocks(system: str) -> tuple[str, str]:
    """Their configuration and ours."""
    text = section(system, "A configuration")
    (theirs,) = re.findall(
        r"^```(?:python|yaml|json)\n(.*?)^```", text.split("becomes")[0], re.DOTALL | re.MULTILINE
    )
    (ours,) = re.findall(r"^```yaml\n(.*?)^```", text.split("becomes")[1], re.DOTALL | re.MULTILINE)
    return theirs, ours


FILES = {
    "log.txt",
    "experiment.yaml",
    "metrics.jsonl",
    "checkpoints",
    "nonfinite",
    json_lines.FILE,
    tensorboard.FOLDER,
    profiler.FOLDER,
    memory_snapshot.FOLDER,
    LayerMemory.folder,
}
"""What a run and its hooks write into the run's folder."""


@pytest.mark.parametrize("system", ["VISSL", "iMIX"])
def test_files_of_the_other_system_have_counterparts_in_a_run(system: str) -> None:
    lines = [line for line in section(system, "Files").splitlines() if line.startswith("| `")]
    ours = [name for line in lines for name in re.findall(r"`(.+?)`", line.split(" | ")[1])]
    assert len(ours) > 8
    paths = [name for name in ours if name not in HOOKS and not name.startswith("RUN@")]
    assert {path.split("/")[0] for path in paths} <= FILES


def migrated(system: str, folder: Path) -> Experiment:
    (folder / "migrated.yaml").write_text(blocks(system)[1])
    return load_experiment(folder / "migrated.yaml")


def hooks_of(experiment: Experiment) -> dict[str, Hook]:
    return resolve(experiment.source).hooks


def test_migrated_files_average_as_the_originals(tmp_path: Path) -> None:
    """With their decay, and as the originals average all that floats in the state dict, the buffers
    too.

    The test of the numbers of other systems has those that accumulate.
    """
    for system, written in {
        "ClassyVision": r'"decay": ([\d.]+)',
        "VISSL": r"DECAY: ([\d.]+)",
    }.items():
        (decay,) = re.findall(written, blocks(system)[0])
        ema = hooks_of(migrated(system, tmp_path))["ema"]
        assert isinstance(ema, EMA)
        assert ema.decay == float(decay)
        assert ema.buffers == "ema"


class EachStep(Hook):
    """Keeps the weights and buffers before the first step, and after each."""

    def __init__(self) -> None:
        self.values: list[dict[str, torch.Tensor]] = []

    def on_start(self, state: State) -> None:
        self.on_update(state)

    def on_update(self, state: State) -> None:
        self.values.append(
            {name: value.double() for name, value in state.module.state_dict().items()}
        )


@pytest.mark.parametrize(
    ("warmup", "begin"),
    [(0.05, Interval(2, "steps")), (0.25, Interval(7, "steps")), (0, Interval(0, "steps"))],
)
def test_averages_begin_as_those_of_vissl_and_classyvision(warmup: float, begin: Interval) -> None:
    """VISSL copies while where < WARMUP, then averages; without warm-up it begins with the initial
    weights, as ClassyVision always does. An epoch has seven steps here, so that the run has 28."""
    each_step = EachStep()
    ema = EMA(decay=0.75, begin=begin, buffers="ema")
    loop = Loop(
        Points(batch_norm=True, val=0),
        small_experiment(epochs=4),
        {"ema": ema, "each_step": each_step},
    )
    list(loop.run())
    expected, *after_steps = each_step.values
    assert len(after_steps) == 28
    for iteration, values in enumerate(after_steps):
        for name, value in values.items():
            copies = iteration / 28 < warmup
            expected[name] = value if copies else 0.75 * expected[name] + 0.25 * value
    with ema.applied(loop.state):
        for name, value in loop.state.module.state_dict().items():
            if value.is_floating_point():
                torch.testing.assert_close(value.double(), expected[name], rtol=1e-5, atol=1e-6)


def test_warm_up_of_the_vissl_page_is_a_twentieth_of_its_steps(tmp_path: Path) -> None:
    (warmup,) = re.findall(r"WARMUP: ([\d.]+)", blocks("VISSL")[0])
    experiment = migrated("VISSL", tmp_path)
    assert experiment.epochs
    samples = len(resolve(experiment.source).task.data()["train"])
    steps = experiment.epochs * math.ceil(samples / experiment.batch_size)
    assert hooks_of(experiment)["ema"].begin == Interval(math.ceil(float(warmup) * steps), "steps")


@pytest.mark.parametrize("system", THEIR_HOOKS)
def test_each_file_is_valid_and_its_hooks_can_be_built(system: str, tmp_path: Path) -> None:
    assert hooks_of(migrated(system, tmp_path))


@pytest.mark.parametrize("system", THEIR_HOOKS)
def test_no_file_deletes_checkpoints_that_the_original_keeps(system: str, tmp_path: Path) -> None:
    limits = re.findall(r"max_keep_ckpts=(\d+)|max_num_checkpoints=(\d+)", blocks(system)[0])
    hook = hooks_of(migrated(system, tmp_path))["checkpoint"]
    assert isinstance(hook, Checkpoint)
    assert hook.keep == (int("".join(limits[0])) if limits else None)
    kept = simulate(replace(hook, every=Interval(1), begin=0), *[0.5] * 6).store.did("delete")
    assert len(kept) == (6 - hook.keep - 1 if hook.keep else 0)


@pytest.mark.parametrize("frequency", [1, 2, 3, 4])
@pytest.mark.parametrize("epochs", [1, 2, 5, 6])
def test_vissl_checkpoint_frequency_needs_begin(frequency: int, epochs: int) -> None:
    """A phase is a multiple of the frequency by its number from 0; the last one counts in any
    case."""
    assert "`{every: 2 epochs, begin: 1}`" in section("VISSL", "Settings")
    phases = [phase for phase in range(epochs) if phase % frequency == 0 or phase == epochs - 1]
    hook = Checkpoint(every=Interval(frequency), begin=1, keep=None)
    run = SimulatedRun(hook, max_epochs=epochs)
    for _ in range(epochs):
        run.epoch()
    assert run.store.did("save") == [f"epoch-{phase + 1:04d}" for phase in phases]


def test_mmengine_linear_schedule_needs_one_step_less(tmp_path: Path) -> None:
    """There the factor at step n is start + (1 - start) * n / (end - begin - 1), then 1;
    MultiStepLR multiplies it.

    The line's 500 steps are 40 here, and an epoch has 26 of them.
    """
    ((theirs, ours),) = [
        row for row in read_settings("MMEngine").items() if "type='LinearLR'" in row[0]
    ]
    assert re.findall(r"end=(\d+)", theirs) == ["500"]
    text = re.findall(r"`scheduler: (.*?)`", ours)[0].replace("500", "40").replace("499", "39")
    settings = described(
        epochs=12,
        batch_size=2,
        optimizer={"type": "SGD", "lr": 1.0},
        scheduler=yaml.safe_load(text),
    )
    rows = run(settings, tmp_path, local=True).stats
    rates = rows[rows["phase"] == "train"]["lr"].tolist()
    assert len(rates) == 12 * 26
    for step, rate in enumerate(rates):
        falls = sum(step >= 26 * milestone for milestone in (8, 11))
        assert rate == pytest.approx(min(1.0, 1 / 3 + 2 / 3 * step / 39) * 0.1**falls)


def cosine(start: float, end: float, where: float) -> float:
    """fvcore's CosineParamScheduler, which ClassyVision and VISSL use; `where` is the completed
    fraction."""
    return end + 0.5 * (start - end) * (1 + math.cos(math.pi * where))


def composite(where: float, *, rescaled: bool) -> float:
    """Their CompositeParamScheduler of a linear rise from 0.001 to 0.1 in a tenth of the run, and a
    cosine to 0."""
    if where + 1e-6 <= 0.1:
        return 0.1 * where / 0.1 + 0.001 * (1 - where / 0.1)
    return cosine(0.1, 0, (where - 0.1) / 0.9 if rescaled else where)


SCHEDULES: dict[str, Callable[[float], float]] = {
    "cosine": lambda where: cosine(0.1, 0, where),
    "linear": lambda where: 0.01 * where + 0.1 * (1 - where),
    "polynomial": lambda where: 0.1 * (1 - where) ** 2,
    "step": lambda where: [0.1, 0.01, 0.001][int((where + 1e-6) * 3)],
    "multistep": lambda where: [0.1, 0.01][int((where + 1e-6) * 90) >= 30],
    "lengths": lambda where: composite(where, rescaled=True),
    "fixed": lambda where: composite(where, rescaled=False),
}


@pytest.mark.parametrize("system", ["ClassyVision", "VISSL"])
@pytest.mark.parametrize(
    ("schedule", "unit"),
    [
        ("cosine", "epoch"),
        ("cosine", "step"),
        ("multistep", "epoch"),
        ("lengths", "epoch"),
        ("lengths", "step"),
    ],
)
def test_schedules_of_the_settings_have_the_rates_of_the_original(
    system: str, schedule: str, unit: str, tmp_path: Path
) -> None:
    scheduler = yaml.safe_load(written_schedule(system, schedule))
    if unit == "step" and isinstance(scheduler.get("warmup"), int):
        scheduler["warmup"] *= STEPS
    assert_rates(scheduler, schedule, unit, tmp_path)


@pytest.mark.parametrize(
    ("schedule", "unit"),
    [("linear", "epoch"), ("linear", "step"), ("polynomial", "step"), ("step", "epoch")],
)
def test_further_schedules_of_classyvision_have_the_rates_of_the_original(
    schedule: str, unit: str, tmp_path: Path
) -> None:
    scheduler = yaml.safe_load(written_schedule("ClassyVision", schedule))
    assert_rates(scheduler, schedule, unit, tmp_path)


def assert_rates(scheduler: dict[str, Any], schedule: str, unit: str, folder: Path) -> None:
    hooks = {"param_scheduler": {"every": f"1 {unit}"}}
    for where, rate in rates(scheduler, hooks, folder, unit):
        assert rate == pytest.approx(SCHEDULES[schedule](where))


def test_fixed_cosine_has_the_rates_of_vissl_after_the_warm_up(tmp_path: Path) -> None:
    """In the warm-up the factors multiply: the rate is lower by up to 1 - (1 + cos(0.1 pi)) / 2."""
    scheduler = yaml.safe_load(written_schedule("VISSL", "fixed"))
    for where, rate in rates(scheduler, {}, tmp_path, "epoch"):
        factor = cosine(1, 0, where) if where + 1e-6 <= 0.1 else 1
        assert rate == pytest.approx(factor * SCHEDULES["fixed"](where))


def in_waves(epoch: int, *, both_ways: bool) -> float:
    """VISSL's CosineWarmRestartScheduler of intervals of a fifth of the run: 18 epochs."""
    return cosine(0.1, 0, epoch / 18 if both_ways else epoch % 18 / 18)


OTHER_SCHEDULES: dict[str, Callable[[int], float]] = {
    "LinearLR": lambda epoch: 0.1 * (1 - epoch / 90) + 0.01 * epoch / 90,
    "PolynomialLR": lambda epoch: 0.1 * (1 - epoch / 90) ** 2,
    "StepLR": lambda epoch: [0.1, 0.01, 0.001][epoch * 3 // 90],
    "CosineAnnealingWarmRestarts": lambda epoch: in_waves(epoch, both_ways=False),
    "CosineAnnealingLR": lambda epoch: in_waves(epoch, both_ways=True),
}
"""By fvcore's and VISSL's formulas, from a rate of 0.1 in a run of 90 epochs."""


@pytest.mark.parametrize("scheduler", OTHER_SCHEDULES)
def test_schedules_of_other_names_have_the_rates_of_vissl(scheduler: str, tmp_path: Path) -> None:
    (text,) = [ours for theirs, ours in read_settings("VISSL").items() if "other name" in theirs]
    (written,) = re.findall(rf"`(\{{type: {scheduler}\b.*?\}})`", text)
    for where, rate in rates(yaml.safe_load(written), {}, tmp_path, "epoch"):
        assert rate == pytest.approx(OTHER_SCHEDULES[scheduler](round(where * EPOCHS)), abs=1e-12)


def test_values_without_a_common_ratio_are_changes(tmp_path: Path) -> None:
    ((theirs, text),) = [
        row for row in read_settings("VISSL").items() if "no common ratio" in row[0]
    ]
    values = yaml.safe_load(re.findall(r"values: (\[.*?\])", theirs)[0])
    (written,) = re.findall(r"`changes: (.*?)`", text)
    changes = yaml.safe_load(written)
    for where, rate in rates(None, {}, tmp_path, "epoch", changes=changes):
        assert rate == values[round(where * EPOCHS) // 30]


class Transformer(torch.nn.Module):
    """The names of VISSL's vision transformer of 12 blocks, with a head."""

    def __init__(self) -> None:
        super().__init__()
        self.cls_token = torch.nn.Parameter(torch.ones(1, 1, 2))
        self.pos_embed = torch.nn.Parameter(torch.ones(1, 3, 2))
        self.patch_embed = torch.nn.Linear(2, 2)
        self.blocks = torch.nn.ModuleList(
            torch.nn.ModuleDict({"norm1": torch.nn.LayerNorm(2), "mlp": torch.nn.Linear(2, 2)})
            for _ in range(12)
        )
        self.norm = torch.nn.LayerNorm(2)
        self.head = torch.nn.Linear(2, 2)


class ResNet(torch.nn.Module):
    """The names of a ResNet, with two blocks in each stage."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(2, 2, 1)
        self.bn1 = torch.nn.BatchNorm2d(2)
        for stage in range(1, 5):
            blocks = [torch.nn.ModuleDict({"conv1": torch.nn.Conv2d(2, 2, 1)}) for _ in range(2)]
            self.add_module(f"layer{stage}", torch.nn.ModuleList(blocks))
        self.fc = torch.nn.Linear(2, 2)


def layers_above(name: str) -> int:
    """Return the power of a parameter's decay by VISSL's rules for transformers and ResNets."""
    if name.startswith(("head.", "fc.")):
        return 0
    if name.startswith("layer"):
        return 5 - int(name[5])
    if name.startswith(("conv1.", "bn1.")):
        return 5
    if name.startswith(("patch_embed.", "pos_embed", "cls_token")):
        return 13
    return 12 - int(name.split(".")[1]) if name.startswith("blocks.") else 1


def read_layer_decay() -> tuple[Any, Any, list[float]]:
    """Return the page's groups of blocks, its group of stages, and the single scales that follow
    them: of embeddings, of what is left, and of a ResNet's stem."""
    (text,) = [
        ours
        for theirs, ours in read_settings("VISSL").items()
        if "`param_group_constructor: lr_decay`" in theirs
    ]
    (groups,) = re.findall(r"`groups: (.*?)`", text)
    (stages,) = re.findall(r"`(\{match: .*?\})`", text)
    scales = [float(scale) for scale in re.findall(r"`lr_scale: ([\d.]+)`", text)]
    return yaml.safe_load(groups), yaml.safe_load(stages), scales


def test_layer_decay_has_the_rates_and_the_decay_of_vissl() -> None:
    groups, stages, (embeddings, others, stem) = read_layer_decay()
    embedded = {"match": ["patch_embed.*", "pos_embed", "cls_token"], "lr_scale": embeddings}
    for model, entries in (
        (Transformer(), [*groups, embedded, {"match": "norm.*", "lr_scale": others}]),
        (ResNet(), [stages, {"match": ["conv1.*", "bn1.*"], "lr_scale": stem}]),
    ):
        made = make_parameter_groups(
            dict(model.named_parameters()),
            read_groups(entries, "optimizer"),
            1.0,
            "optimizer",
        )
        found = {parameter: group for group in made for parameter in group["params"]}
        for name, parameter in model.named_parameters():
            group = found[parameter]
            assert group.get("lr", 1.0) == pytest.approx(0.9 ** layers_above(name), rel=2e-3)
            if isinstance(model, Transformer):
                spared = name.endswith(".bias") or "norm" in name
                assert group.get("weight_decay", 0.05) == (0 if spared else 0.05)


EPOCHS, STEPS = 90, 2
"""Length of the page's run, and of an epoch in it here."""


def written_schedule(system: str, schedule: str) -> str:
    """Return the scheduler in the Settings' row of a schedule."""
    whole = {"cosine": "name: cosine", "linear": "name: linear", "step": "name: step,"}
    name = whole.get(schedule, schedule)
    (ours,) = [
        ours
        for theirs, ours in read_settings(system).items()
        if "`scheduler: " in ours and name in unquoted(theirs)
    ]
    return re.findall(r"`scheduler: (.*?)`", ours)[0]


def unquoted(text: str) -> str:
    return text.replace('"', "")


def rates(
    scheduler: Any, hooks: dict[str, Any], folder: Path, unit: str, **settings: Any
) -> Iterator[tuple[float, float]]:
    """Yield for each step the completed fraction of the run, when its schedule last stepped, and
    the rate."""
    optimizer = {"type": "SGD", "lr": 0.1}
    experiment = described(
        epochs=EPOCHS,
        batch_size=26,
        validate_every=0,
        optimizer=optimizer,
        scheduler=scheduler,
        hooks={"checkpoint": None, "console": None, **hooks},
        **settings,
    )
    rows = run(experiment, folder, local=True).stats
    found = rows[rows["phase"] == "train"]["lr"].tolist()
    assert len(found) == EPOCHS * STEPS
    for step, rate in enumerate(found):
        completed = step // STEPS / EPOCHS if unit == "epoch" else step / len(found)
        yield completed, rate


def test_vissl_weight_decay_follows_its_cosine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's hook: the optimizer decays by VISSL's values, and by nothing where a group has no
    decay."""
    text = section("VISSL", "Settings")
    for name, code in re.findall(
        r"^```(?:python|yaml)\n# (\S+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE
    ):
        (tmp_path / name).write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    experiment = load_experiment("decay.yaml")
    rows = run(experiment, tmp_path / "runs", local=True).stats
    train = rows[rows["phase"] == "train"]
    assert set(train["epoch"]) == {0, 1, 2, 3}
    for epoch, decay in zip(train["epoch"], train["weight_decay"], strict=True):
        assert decay == pytest.approx(cosine(0.04, 0.4, epoch / 4))

    hook = resolve(experiment.source).hooks["weight_decay"]
    parameters = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
    groups = [{"params": parameters[:1]}, {"params": parameters[1:], "weight_decay": 0.0}]
    state = State(
        epoch=1,
        max_epochs=4,
        phase="train",
        optimizer=torch.optim.SGD(groups, lr=0.1, weight_decay=0.04),
    )
    hook.on_gradients(state)
    for parameter in parameters:
        parameter.grad = torch.zeros(1)
    assert state.optimizer is not None
    state.optimizer.step()
    assert parameters[0].item() == pytest.approx(1 - 0.1 * cosine(0.04, 0.4, 1 / 4))
    assert parameters[1].item() == 1


# Options


def refusals(hook: str, option: str) -> list[str]:
    """What a hook says of an option when an experiment is loaded; nothing where it has it."""
    if option in {field.name for field in fields(HOOKS[hook])}:
        return []
    try:
        make_hook(hook, {option: 1})
    except ConfigError as error:
        return [
            str(problem) for problem in error.problems if problem.path == f"hooks.{hook}.{option}"
        ]
    raise AssertionError(f"{hook} takes {option}")


@pytest.mark.parametrize(
    ("system", "hook", "option"),
    [
        (system, hook, option)
        for system, hooks in THEIR_OPTIONS.items()
        for hook, options in hooks.items()
        for option in options.split()
    ],
)
def test_every_option_is_accepted_or_refused_with_advice(
    system: str, hook: str, option: str
) -> None:
    (row,) = [row for row in rows(system, "Hooks") if hook in row.theirs]
    ours = dict.fromkeys(
        name.partition(".")[0] for name in row.ours if name.partition(".")[0] in HOOKS
    )
    told = [refusals(name, option) for name in ours]
    assert told
    assert any(
        not said or any(advice.text in said[0] for advice in find_options_elsewhere(name).values())
        for name, said in zip(ours, told, strict=True)
    )


THEIR_CLASSES = [(system, name) for system, names in THEIR_HOOKS.items() for name in names.split()]


@pytest.mark.parametrize(("system", "name"), THEIR_CLASSES)
def test_classes_of_other_systems_are_refused_with_their_counterparts(
    system: str, name: str
) -> None:
    (row,) = [row for row in rows(system, "Hooks") if name in row.theirs]
    with pytest.raises(ConfigError) as caught:
        make_hook(name, {})
    told = str(caught.value)
    assert told.startswith(f"hooks.{name}: unknown hook '{name}' ({find_classes_elsewhere()[name]}")
    counterparts = {ours.partition(".")[0] for ours in row.ours}
    assert [ours for ours in counterparts if not re.search(rf"\b{ours}\b", told)] == []
    assert row.ours or "there is none" in told


@pytest.mark.parametrize(("name", "hook"), THEIRS["names"].items())
def test_names_in_a_configuration_are_refused_with_the_advice_on_their_classes(
    name: str, hook: str
) -> None:
    advice = re.escape(find_classes_elsewhere()[hook])
    with pytest.raises(ConfigError, match=rf"unknown hook '{name}' \({advice}"):
        make_hook(name, {})


def test_example_of_a_hook_of_mmengine_is_refused_with_its_counterpart() -> None:
    with pytest.raises(ConfigError, match="write the hook nan_guard"):
        make_hook("CheckInvalidLossHook", {})


def test_class_of_another_system_as_a_type_is_refused_with_its_counterpart() -> None:
    with pytest.raises(ConfigError, match=r"hooks\.average\.type: .*write the hook ema"):
        make_hook("average", {"type": "EMAHook", "momentum": 0.0002})


@pytest.mark.parametrize("advice", sorted(set(find_classes_elsewhere().values())))
def test_advice_on_classes_names_existing_hooks(advice: str) -> None:
    written = re.findall(r"the hooks? (\w+)(?: and (\w+))?", advice)
    assert {name for names in written for name in names if name} <= {*HOOKS}


@pytest.mark.parametrize("option", EXPERIMENT_OPTIONS.split())
def test_settings_of_other_systems_are_refused_with_advice(option: str) -> None:
    with pytest.raises(ConfigError) as caught:
        described(**{option: {"init_scale": 2.0**16}})
    assert (
        str(caught.value)
        == f"{option}: unknown key ({find_options_elsewhere(EXPERIMENT)[option].text})"
    )


def test_fp16_scale_is_that_of_the_imix_file() -> None:
    scaler = Precision("fp16", torch.device("cuda" if torch.cuda.is_available() else "cpu")).scaler
    written = re.findall(
        r"init_scale=2(?:\.0?)?\*\*(\d+), growth_interval=(\d+)", blocks("iMIX")[0]
    )
    assert scaler is not None
    assert [
        (str(math.log2(scaler.get_scale())).removesuffix(".0"), str(scaler.get_growth_interval()))
    ] == written
    assert all(
        name in find_options_elsewhere(EXPERIMENT)["fp16"].text for name in Scaler.model_fields
    )


@pytest.mark.parametrize("kind", load_other_systems())
def test_advice_names_existing_settings(kind: str) -> None:
    known = {*Experiment.model_fields, *HOOKS} | (
        {field.name for field in fields(HOOKS[kind])} if kind in HOOKS else set()
    )
    own = {field.name for field in fields(HOOKS[kind])} if kind in HOOKS else known
    for advice in find_options_elsewhere(kind).values():
        written = re.findall(r"^write (?:the hook )?(\w+)", advice.text)
        assert set(written) <= known, advice
        assert advice.key is None or (advice.key in own and written == [advice.key])
    if kind in HOOKS:
        assert not {field.name for field in fields(HOOKS[kind])} & set(find_options_elsewhere(kind))


def test_the_page_has_every_option_that_is_refused() -> None:
    said = set()
    for part in OPTIONS.read_text().split("\n## ")[1:]:
        heading, _, text = part.partition("\n")
        for item in ITEM.findall(text):
            names, _, advice = re.sub(r"\s+", " ", item).replace("`", "").partition(": ")
            said |= {(hook.strip("`"), names, advice) for hook in heading.split(", ")}
    assert said == {
        (kind if kind in HOOKS else "The experiment", names, advice.text)
        for kind, options in load_other_systems().items()
        for names, advice in options.items()
    }
