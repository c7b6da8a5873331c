"""What the pages say is run: their code and experiment files, and their links."""

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from hooks import HOOKS
from orchestrator import load_experiment, run
from orchestrator.config.components import DEFAULT_HOOKS
from orchestrator.config.sweep import SCHEDULERS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMED = re.compile(r"^```(?:python|yaml)\n# (\S+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
"""A block whose first line is a comment with nothing but a file name."""


def write_files(page: Path, folder: Path) -> None:
    for name, text in NAMED.findall(page.read_text()):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to call from; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] == "study"]:
        del sys.modules[name]


def test_the_readme_s_own_task_and_hook_train(folder: Path) -> None:
    write_files(ROOT / "README.md", folder)
    done = run(load_experiment("study/wine.yaml"), folder / "runs", local=True)
    stats, metrics = done.stats, done.metrics
    assert stats.query("phase == 'train'")["confidence"].between(1 / 3, 1).all()
    assert metrics["val/accuracy"].iloc[-1] > 0.9
    assert len(metrics) == 10


def test_the_readme_s_sweep_is_valid(folder: Path) -> None:
    write_files(ROOT / "README.md", folder)
    settings = load_experiment("study/wine_sweep.yaml").sweep
    assert settings is not None
    assert settings.trials == 6


def test_the_hook_guide_s_hook_records_the_norm_of_the_weights(folder: Path) -> None:
    write_files(ROOT / "README.md", folder)
    write_files(ROOT / "docs" / "hooks.md", folder)
    hooks = yaml.safe_load(re.findall(r"```yaml\n(hooks:.*?)```", (ROOT / "docs" / "hooks.md").read_text(), re.DOTALL)[0])
    entry = hooks["hooks"]["weight_norm"]
    overrides = ["epochs=5", f"hooks.weight_norm={{type: '{entry['type']}', every: 20 steps}}"]
    stats = run(load_experiment("study/wine.yaml", overrides), folder / "runs", local=True).stats
    training = stats[stats["phase"] == "train"]
    assert len(training) == 25
    assert training[training["weight_norm"].notna()]["step"].tolist() == [20]
    assert entry["every"] == "20 steps"


def test_the_hook_guide_s_other_hook_looks_back(folder: Path) -> None:
    write_files(ROOT / "README.md", folder)
    write_files(ROOT / "docs" / "hooks.md", folder)
    hook = "hooks.loss_fall={type: 'study.falls:LossFall', every: 10 steps, stretch: 4}"
    done = run(load_experiment("study/wine.yaml", ["epochs=5", hook]), folder / "runs", local=True)
    training = done.stats[done.stats["phase"] == "train"].set_index("step")
    losses = training["loss"]
    # at step 10 the rows of steps 2 to 5 and of 6 to 9: the present one is not among them
    falls = {step: losses.loc[step - 8 : step - 5].mean() - losses.loc[step - 4 : step - 1].mean() for step in (10, 20)}
    assert training["loss_fall"].dropna().to_dict() == pytest.approx(falls)
    assert f"the loss fell by at most {max(falls.values()):.4f}" in (Path(done.path) / "log.txt").read_text()


def test_the_hook_guide_has_every_hook_once_and_names_the_defaults() -> None:
    page = (ROOT / "docs" / "hooks.md").read_text()
    groups = dict(re.findall(r"^\| (\w+) \| (`.+) \|$", page, re.MULTILINE))
    named = [(group, name) for group, cell in groups.items() for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(named) == sorted((hook.__module__.split(".")[1], name) for name, hook in HOOKS.items())
    (defaults,) = re.findall(r"^(`\w+`(?:(?:,| and)\s`\w+`)+)\sare in every run", page, re.MULTILINE)
    assert tuple(re.findall(r"`(\w+)`", defaults)) == DEFAULT_HOOKS


def test_every_sweep_in_the_guide_to_sweeps_is_valid(folder: Path) -> None:
    page = ROOT / "docs" / "sweeps.md"
    write_files(page, folder)
    shutil.copy(ROOT / "experiments" / "digits.yaml", folder / "study")
    loaded = {name: load_experiment(folder / name) for name, _ in NAMED.findall(page.read_text())}
    sweeps = {name: experiment.sweep for name, experiment in loaded.items() if experiment.sweep}
    assert {one.search for one in sweeps.values()} == {"grid", "random", "optuna"}
    assert {one.scheduler.type for one in sweeps.values()} == set(SCHEDULERS)
    assert len(loaded["study/changes.yaml"].changes) == 2
    assert page.read_text().count("```yaml") == len(loaded)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = [target for target in re.findall(r"\]\(([^)#]+)", page.read_text()) if "://" not in target]
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing
