"""Conflicts with a custom training loop: keys that it does not read are refused at their line."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hooks import Hook, State
from orchestrator import Task, TrainingSession
from orchestrator.errors import ConfigError
from orchestrator.experiment.load import load_experiment, make_experiment, to_yaml
from orchestrator.experiment.yaml.reader import parse_yaml
from tests.orchestrator.experiment.samples import problems

HERE = "tests.orchestrator.experiment.checks.test_conflicts"


@dataclass
class Own(Task):
    width: int = 2

    def train(
        self, session: TrainingSession, batch_size: int = 16, *, precision: str
    ) -> Iterator[Mapping[str, float]]:
        yield {"train/loss": float(batch_size)}


class Weighs(Own):
    def weight(self, batch: Any) -> float:
        return 1.0


class Silent(Task):
    def train(self, session: TrainingSession) -> None:  # type: ignore[override]  # what is wrong with it
        """Yields nothing."""


class Bare(Task):
    def train(self) -> Iterator[Mapping[str, float]]:  # type: ignore[override]
        yield {}


class Asks(Task):
    def train(
        self, session: TrainingSession, lerning_rate: float, acumulate: int = 1
    ) -> Iterator[Mapping[str, float]]:  # type: ignore[override]
        yield {}


@dataclass
class Looks(Hook):
    def on_gradients(self, state: State) -> None: ...


def written(**fields: Any) -> dict[str, Any]:
    return {"name": "own", "task": f"{HERE}:Own", "epochs": 2, **fields}


def refused(**fields: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        make_experiment(written(**fields))
    return str(caught.value)


def test_every_unread_key_is_located(file: Path) -> None:
    text = f"""\
name: own
task: {HERE}:Own
epochs: 2
precision: bf16
optimizer: {{type: AdamW, lr: 0.1}}
accumulate: 2
workers: {{count: 2, strategy: fsdp, ddp: {{static_graph: true}}}}
loader: {{num_workers: 2}}
init: {{from: weights.pt}}
hooks:
  ema: {{decay: 0.9}}
  sync_buffers: {{}}
  looks: {{type: '{HERE}:Looks'}}
"""
    told = [str(problem) for problem in problems(file, text)]
    unread = {
        "optimizer": 5,
        "accumulate": 6,
        "workers.strategy": 7,
        "workers.ddp": 7,
        "loader": 8,
        "init": 9,
    }
    assert [line.partition(": has no effect")[0] for line in told[:6]] == [
        f"{file}:{line}: {path}" for path, line in unread.items()
    ]
    assert "Own.train(), which trains, does not declare accumulate" in told[1]
    assert "write def train(self, session, accumulate)" in told[1]
    assert "hooks.ema: does not work in a custom loop: it acts in on_update" in told[6]
    assert "hooks.sync_buffers: does not work in a custom loop: it needs the model" in told[7]
    assert "hooks.looks: does not work in a custom loop: it acts in on_gradients" in told[8]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"task": f"{HERE}:Silent"}, "Silent.train() has no `yield`"),
        ({"task": f"{HERE}:Weighs"}, "Weighs.weight() has no effect: Weighs.train()"),
        ({"task": f"{HERE}:Bare"}, "Bare.train() must take (session), got ()"),
        ({"task": f"{HERE}:Asks"}, "Asks.train() declares lerning_rate"),
        ({"task": f"{HERE}:Asks"}, "did you mean 'accumulate'?"),
        (
            {
                "sweep": {
                    "metric": "train/loss",
                    "mode": "min",
                    "trials": 2,
                    "space": {"optimizer.lr": {"choice": [0.1, 0.2]}},
                }
            },
            "space.optimizer.lr: has no effect",
        ),
        ({"changes": [{"at": 1, "set": {"optimizer.lr": 0.1}}]}, "changes: has no effect"),
    ],
)
def test_problems_of_a_custom_loop_have_advice(fields: dict[str, Any], message: str) -> None:
    assert message in refused(**fields)


def test_population_may_mutate_arguments_of_a_custom_loop() -> None:
    space = {
        "task_args.width": {"randint": [1, 9]},
        "batch_size": {"randint": [1, 9]},
        "seed": {"randint": [1, 9]},
    }
    population = {
        "metric": "train/loss",
        "mode": "min",
        "trials": 4,
        "space": space,
        "search": "random",
    }
    assert "write mutate: [task_args.width, batch_size], or some of these" in refused(
        sweep={**population, "scheduler": "pbt"}
    )
    assert "'seed' cannot change during training" in refused(
        sweep={**population, "scheduler": {"type": "pbt", "mutate": ["seed"]}}
    )
    make_experiment(
        written(
            sweep={
                **population,
                "scheduler": {"type": "pbt", "mutate": ["task_args.width", "batch_size"]},
            }
        )
    )


def test_defaults_of_train_are_filled_in_and_load_again(tmp_path: Path) -> None:
    own = make_experiment(written(precision="bf16"))
    assert (own.batch_size, own.precision) == (16, "bf16")
    assert list(own.hooks) == ["perf_stats", "memory_stats", "console", "checkpoint"]
    (tmp_path / "again.yaml").write_text(to_yaml(own))
    assert load_experiment(tmp_path / "again.yaml") == own
    assert parse_yaml(to_yaml(own), "again.yaml").data["batch_size"] == 16


@pytest.mark.parametrize(
    ("name", "entry", "fits"),
    [
        ("checkpoint", {}, True),
        ("early_stopping", {"monitor": "val/loss"}, True),
        ("time_limit", {"limit": "1h"}, True),
        ("row_stats", {}, True),
        ("tensorboard", {}, True),
        ("ema", {}, False),
        ("export", {}, False),
        ("gradient_clip", {}, False),
        ("param_scheduler", {}, False),
        ("progress_bar", {}, False),
    ],
)
def test_hooks_that_need_the_hooked_loop_are_refused(
    name: str, entry: dict[str, Any], fits: bool
) -> None:
    if fits:
        make_experiment(written(hooks={name: entry}))
    else:
        assert "does not work in a custom loop" in refused(hooks={name: entry})
