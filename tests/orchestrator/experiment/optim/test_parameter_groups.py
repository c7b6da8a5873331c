"""Parameter groups of a file, compared with those of torch."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import lr_scheduler

from orchestrator.errors import ConfigError
from orchestrator.experiment.optim.building import build_optimizer
from orchestrator.experiment.optim.optimizer import OPTIMIZERS
from orchestrator.experiment.optim.parameter_groups import make_parameter_groups, read_groups
from orchestrator.experiment.optimizations import list_optimizations
from orchestrator.experiment.resolve import resolve
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from tests.raw import raw_training
from tests.tasks import Points, Rows, described, numbers

QUIET = {"console": None, "perf_stats": None, "memory_stats": None, "checkpoint": None}


class Blocks(nn.Module):
    """An embedding, two blocks with a norm, and a head tied to nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(5, 8)
        self.blocks = nn.ModuleList(
            [nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)) for _ in range(2)]
        )
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = x + functional.relu(block(x))
        output: Tensor = self.head(x)
        return output


@dataclass
class Layered(Points):
    """Points, classified by blocks."""

    def model(self) -> nn.Module:
        return Blocks()


GROUPS = [
    "no_decay",
    {"match": "blocks.*", "layer_decay": 0.5},
    {"match": ["embed.*", "head.bias"], "lr_scale": 0.1},
]
FINE = {"type": "AdamW", "lr": 0.01, "weight_decay": 0.3, "groups": GROUPS}
RECIPE = [
    {"type": "LinearLR", "start_factor": 0.1, "end": "4 steps"},
    {"type": "CosineAnnealingLR", "eta_min": 0.001},
]


def written(**more: Any) -> Experiment:
    return described(
        **{
            "task": f"{__name__}:Layered",
            "epochs": 3,
            "optimizer": FINE,
            "scheduler": RECIPE,
            "hooks": QUIET,
            **more,
        }
    )


def loop_of(experiment: Experiment) -> tuple[Loop, Rows]:
    resolved = resolve(experiment.source)
    rows = Rows()
    context = RunContext(recorder=rows)
    return Loop(resolved.task, resolved.experiment, resolved.hooks, context), rows


def by_hand(model: nn.Module) -> torch.optim.Optimizer:
    """The groups of FINE, each parameter with its own."""
    decay = {
        name: 0.0 if parameter.ndim < 2 else 0.3 for name, parameter in model.named_parameters()
    }
    scale = {"embed.weight": 0.1, "embed.bias": 0.1, "head.bias": 0.1, "head.weight": 1.0}
    groups = [
        {
            "params": [parameter],
            "weight_decay": decay[name],
            "lr": 0.01 * scale.get(name, 0.5 if name.startswith("blocks.0") else 1.0),
        }
        for name, parameter in model.named_parameters()
    ]
    return torch.optim.AdamW(groups)


def test_weights_equal_a_plain_loop_with_groups_warmup_and_cosine() -> None:
    loop, rows = loop_of(written())
    list(loop.run())
    raw = raw_training(Layered(), epochs=3, new_order=True, optimize=by_hand, schedule=scheduled)
    assert numbers(loop.state.module) == numbers(raw)
    # The group that no entry matches comes first, then in the order of the entries.
    assert [row["lr"] for row in rows.rows if row["phase"] == "train"][:5] == pytest.approx(
        [0.001, 0.00325, 0.0055, 0.00775, 0.01]
    )


def scheduled(optimizer: torch.optim.Optimizer) -> Any:
    rising = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4)
    return lr_scheduler.SequentialLR(
        optimizer, [rising, lr_scheduler.CosineAnnealingLR(optimizer, T_max=17, eta_min=0.001)], [4]
    )


def test_group_can_change_during_training_and_be_swept() -> None:
    changed = [{"at": "2 steps", "set": {"optimizer.groups.2.lr_scale": 0.2}}]
    loop, rows = loop_of(written(scheduler=None, changes=changed))
    list(loop.run())
    assert loop.state.optimizer
    rates = sorted(group["lr"] for group in loop.state.optimizer.param_groups)
    assert rates == pytest.approx([0.002, 0.002, 0.005, 0.005, 0.01, 0.01, 0.01])
    # By the entries that match: none, 0 and 1 in the first layer, in the second, 0 and 2.
    assert [lr for (lr,) in rows.columns("lr_3", phase="train")][:3] == pytest.approx(
        [0.001, 0.001, 0.002]
    )
    space = {
        "optimizer.groups.2.lr_scale": {"loguniform": [0.01, 1.0]},
        "scheduler.0.end": {"choice": ["4 steps", "2 steps"]},
    }
    written(sweep={"metric": "val/loss", "trials": 2, "space": space})
    with pytest.raises(
        ConfigError, match=r"sweep\.space\.optimizer\.groups\.2\.lr_scale: must be greater than 0"
    ):
        written(
            sweep={
                "metric": "val/loss",
                "trials": 2,
                "space": {"optimizer.groups.2.lr_scale": {"uniform": [-1, 1.0]}},
            }
        )


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (
            [{"match": "blocks.*", "lr_scal": 2}],
            r"optimizer\.groups\.0\.lr_scal: unknown key \(did you mean",
        ),
        (
            [{"match": "blocks.*"}],
            r"optimizer\.groups\.0: has no effect: it sets nothing for these parameters",
        ),
        (
            [{"match": "x", "lr": 1, "lr_scale": 2}],
            r"optimizer\.groups\.0\.lr: cannot be combined with lr_scale",
        ),
        ([{"match": "x", "weight_decay": -1}], r"optimizer\.groups\.0: AdamW raised"),
        (
            ["no_dcay"],
            r"optimizer\.groups\.0: must be 'no_decay' or a mapping, got 'no_dcay' \(did you mean",
        ),
        (["head.*"], r"optimizer\.groups\.0: must be 'no_decay' or a mapping, got 'head\.\*'$"),
    ],
)
def test_invalid_groups_are_refused_without_a_model(groups: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        written(optimizer={**FINE, "groups": groups})


@pytest.mark.parametrize(
    "kind", sorted(OPTIMIZERS.keys() - {"LBFGS", "Muon"})
)  # without groups, and without biases
def test_scaled_group_equals_that_of_torch(kind: str) -> None:
    groups = [{"match": "blocks.*", "lr_scale": 0.5}]
    optimizer = {"type": kind, "lr": 0.25, "groups": groups}
    model = Blocks()
    built = build_optimizer(
        list_optimizations(written(optimizer=optimizer, scheduler=None))[None], Layered(), model
    )
    rest = [
        parameter for name, parameter in model.named_parameters() if not name.startswith("blocks")
    ]
    raw: Any = OPTIMIZERS[kind]
    expected = raw(
        [{"params": rest}, {"params": list(model.blocks.parameters()), "lr": 0.125}], lr=0.25
    )
    assert built.state_dict()["param_groups"] == expected.state_dict()["param_groups"]
    assert [list(map(id, group["params"])) for group in built.param_groups] == [
        list(map(id, group["params"])) for group in expected.param_groups
    ]


def test_no_decay_needs_weight_decay() -> None:
    with pytest.raises(
        ConfigError, match=r"groups\.0: no_decay has no effect: SparseAdam has no weight_decay"
    ):
        written(optimizer={"type": "SparseAdam", "groups": ["no_decay"]})


def test_initial_value_of_adagrad_is_that_of_all_parameters() -> None:
    """torch fills the sums of squared gradients by the optimizer's value, whatever the group's."""
    group = {"match": "head.*", "initial_accumulator_value": 0.5}
    message = (
        r"groups\.0\.initial_accumulator_value: has no effect: Adagrad .*\(write it beside groups\)"
    )
    with pytest.raises(ConfigError, match=message):
        written(optimizer={"type": "Adagrad", "groups": [group]})

    allowed = {"match": "head.*", "lr_decay": 0.5}
    optimizer = {"type": "Adagrad", "initial_accumulator_value": 0.5, "groups": [allowed]}
    built = build_optimizer(
        list_optimizations(written(optimizer=optimizer, scheduler=None))[None], Layered(), Blocks()
    )
    assert all(state["sum"].eq(0.5).all() for state in built.state.values())


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (
            [{"match": "block.*", "lr_scale": 2}],
            r"optimizer\.groups\.0\.match: pattern 'block\.\*' matches no",
        ),
        (
            [{"match": "embed.*", "layer_decay": 0.5}],
            r"groups\.0\.match: matches 'embed\.weight', which has no",
        ),
        (
            [{"match": "blocks.1*", "layer_decay": 0.5}],
            r"groups\.0\.match: matches only layer 1, so layer_decay has no effect; .* 1\.\*",
        ),
    ],
)
def test_pattern_without_match_is_refused_before_training(groups: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_optimizer(
            list_optimizations(written(optimizer={**FINE, "groups": groups}))[None],
            Layered(),
            Blocks(),
        )


@pytest.mark.parametrize(
    ("match", "layers"),
    [
        ("blocks.*", {0: 0, 1: 1, 2: 2, 10: 10, 11: 11}),
        (["blocks.1?.*", "blocks.?.*"], {0: 0, 1: 1, 2: 2, 10: 10, 11: 11}),
        (["blocks.?.*", "blocks.1?.*"], {0: 0, 1: 1, 2: 2, 10: 10, 11: 11}),
        ("blocks.1*", {1: 1, 10: 10, 11: 11}),
        ("blocks.[01].*", {0: 0, 1: 1}),
        ("*", {0: 0, 1: 1, 2: 2, 10: 10, 11: 11}),
        # The number in the pattern is not at a wildcard: the next is that of the inner layer.
        ("blocks.11.*", {11: 1}),
        (["blocks.11.*", "blocks.?.*"], {0: 0, 1: 1, 2: 2, 11: 1}),
    ],
)
def test_layer_is_the_number_at_the_wildcard_or_the_next(
    match: str | list[str], layers: dict[int, int]
) -> None:
    parameters = {number: nn.Parameter(torch.zeros(1)) for number in (0, 1, 2, 10, 11)}
    named = {f"blocks.{number}.1.weight": parameter for number, parameter in parameters.items()}
    groups = read_groups([{"match": match, "layer_decay": 0.5}], "optimizer")
    built = make_parameter_groups(named, groups, 1.0, "optimizer")
    rates = {
        parameter: group["lr"] for group in built if "lr" in group for parameter in group["params"]
    }
    last = max(layers.values())
    assert rates == {parameters[number]: 0.5 ** (last - layer) for number, layer in layers.items()}


def test_parameter_with_two_names_is_in_one_group() -> None:
    model = Blocks()
    model.blocks[1][1].weight = model.blocks[0][1].weight  # type: ignore[union-attr, index]
    optimizer = build_optimizer(
        list_optimizations(
            written(optimizer={**FINE, "groups": [{"match": "blocks.1.*", "lr_scale": 0.5}]})
        )[None],
        Layered(),
        model,
    )
    assert [len(group["params"]) for group in optimizer.param_groups] == [7, 4]
