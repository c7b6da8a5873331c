"""A model begins with weights of another run, or of a file, beside a loop of torch's own that loads
the same."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from orchestrator import run
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.disk.initial_weights import find_weights
from orchestrator.errors import CheckpointError, ConfigError, UsageError
from orchestrator.experiment.yaml.origins import InitialWeights
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from orchestrator.storage import Storage
from orchestrator.testing.small_loop import Screen
from tests.ranks import on_ranks
from tests.raw import raw_training
from tests.tasks import Points, described, experiment, numbers, plain

QUIET = {"console": None, "perf_stats": None, "memory_stats": None, "sampler_seed": None}
TASK = Points(batch_norm=True)


@dataclass
class Fewer(Points):
    """Two classes where there were three."""

    def model(self) -> nn.Module:
        model = super().model()
        assert isinstance(model, nn.Sequential)
        model[4] = nn.Linear(8, 2)
        return model

    def loss(self, output: Any, batch: Any) -> Any:
        return nn.functional.cross_entropy(output, batch[1] % 2)


@dataclass
class Warm(Points):
    """Loads the weights as one would without Hookyard."""

    file: str = ""

    def model(self) -> nn.Module:
        model = super().model()
        weights = torch.load(self.file, weights_only=True)
        model.load_state_dict(
            {name: value for name, value in weights.items() if not name.startswith("4.")},
            strict=False,
        )
        return model


def saved(folder: Path, task: Points = TASK) -> Path:
    """Weights that no seed makes, their buffers too."""
    torch.manual_seed(5)
    model = task.model()
    for name, tensor in model.state_dict().items():
        tensor.copy_(
            torch.rand_like(tensor.float()) + 0.5 if "num" not in name else torch.tensor(7)
        )
    torch.save(model.state_dict(), folder / "weights.pt")
    return folder / "weights.pt"


def begun_on_a_rank(rank: int, world_size: int, file: str) -> list[dict[str, Any]]:
    """The weights with which replicated and sharded ranks begin."""
    found = []
    for strategy in ("ddp", "fsdp"):
        workers = {"count": world_size, "strategy": strategy}
        settings = experiment(init={"from": file, "except": ["4.*"]}, workers=workers)
        found.append(
            plain(
                Loop(
                    TASK, settings, {}, RunContext(world=World(rank, world_size))
                ).state.module.state_dict()
            )
        )
    return found


def test_training_equals_a_raw_loop_with_the_same_weights(tmp_path: Path) -> None:
    file = str(saved(tmp_path))
    loop = Loop(TASK, experiment(init={"from": file, "except": ["4.*"]}), {})
    for _ in loop.run():
        pass
    assert numbers(loop.state.module) == numbers(raw_training(Warm(batch_norm=True, file=file)))


def test_replicated_and_sharded_ranks_begin_with_the_same_weights(tmp_path: Path) -> None:
    file = saved(tmp_path)
    torch.manual_seed(0)
    expected = numbers(Warm(batch_norm=True, file=str(file)).model())
    for replicated, sharded in on_ranks(begun_on_a_rank, 2, str(file)):
        assert replicated == sharded == expected


def begins_with(init: dict[str, Any], task: Points = TASK) -> tuple[dict[str, Any], list[str]]:
    """The weights that a model begins with, and what is told of them."""
    screen = Screen()
    loop = Loop(task, experiment(init=init), {}, RunContext(display=screen))
    return numbers(loop.state.module), screen.lines


def test_matching_tensors_are_loaded_and_the_others_listed(tmp_path: Path) -> None:
    file = saved(tmp_path)
    weights = torch.load(file)
    del weights["0.bias"]
    torch.save(
        {
            "epoch": 3,
            "state_dict": (
                {f"module.{name}": value for name, value in weights.items()}
                | {"module.extra": torch.ones(2)}
            ),
        },
        file,
    )
    init = {"from": str(file), "rename": {"module.*": "*"}}
    begun, lines = begins_with(init, Fewer(batch_norm=True))
    assert begun["1.running_mean"] == weights["1.running_mean"].tolist()
    assert begun["1.num_batches_tracked"] == 7
    assert lines == [
        f"initialized from {file}: loaded 6 of the model's 9 tensors",
        "  1 missing: 0.bias",
        "  1 unused: extra",
        "  2 with a different shape: 4.weight (3x8, here 2x8), 4.bias (3, here 2)",
    ]
    with pytest.raises(
        ConfigError,
        match=(
            r"init.strict: .* does not match the whole model: 1 missing: 0.bias; 1 unused: extra; 2 with a"
            r" different shape: 4.weight \(3x8"
        ),
    ):
        begins_with({**init, "strict": True}, Fewer(batch_norm=True))
    only = {**init, "strict": True, "only": ["0.*", "1.*"], "except": ["*.bias"]}
    assert begins_with(only, Fewer(batch_norm=True))[1] == [
        f"initialized from {file}: loaded 5 of the model's 9 tensors"
    ]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (
            {"only": ["1.runing_*"]},
            "init.only: pattern '1.runing_*' matches no parameter; did you mean 1.running_var",
        ),
        (
            {"except": ["0.wieght"]},
            "init.except: pattern '0.wieght' matches no parameter; did you mean 0.weight, 4.weight, 1.weight?",
        ),
        (
            {"only": ["0.*"], "except": ["*"]},
            "init.except: excludes everything that init.only selects, got *",
        ),
        ({"rename": {"module.*": "*"}}, "init.rename: pattern 'module.*' matches no parameter"),
        (
            {"rename": {"0.*": "4.*"}},
            "init.rename: gives 0.weight and 4.weight the same name, 4.weight",
        ),
        (
            {"rename": {"0.*": "a"}},
            "rename: needs as many * on both sides, got 1 in '0.*' and 0 in 'a'",
        ),
        ({"weights": "ema"}, "init.weights: got ema, but"),
        ({"from": "no/such"}, "init.from: no such run or file: no/such"),
        ({"from": "s3://key:secret@bucket/run"}, "from: contains credentials"),
    ],
)
def test_wrong_setting_is_refused_before_training(
    more: dict[str, Any], told: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        begins_with({"from": str(saved(tmp_path)), **more})


def test_weights_of_another_architecture_are_refused(tmp_path: Path) -> None:
    torch.save({"other": torch.ones(3)}, tmp_path / "weights.pt")
    with pytest.raises(
        ConfigError,
        match=r"init.from: .* matches no tensor of the model: 9 missing: 0.weight.*; 1 unused: other .*init.rename",
    ):
        begins_with({"from": str(tmp_path / "weights.pt")})


def test_weights_of_a_run_are_the_evaluated_ones(tmp_path: Path) -> None:
    first = run(
        described(epochs=1, hooks={**QUIET, "ema": {"decay": 0.9}}), storage=tmp_path, local=True
    )
    later = described(name="later", epochs=1, hooks=QUIET, init={"from": f"{tmp_path}/points@best"})
    second = run(later, storage=tmp_path, local=True)
    store = CheckpointStore(Storage(first.path) / "checkpoints")
    fingerprint = store.compute_fingerprint("epoch-0001")
    assert second.folder.read_metadata().init == InitialWeights(
        str(first.path), "epoch-0001", "ema/model", fingerprint
    )
    assert (
        f"initialized from {first.path}, checkpoint epoch-0001 (ema/model): loaded 4 of the model's 4 tensors"
        in (tmp_path / "later/log.txt").read_text()
    )
    averages, raw = (
        begins_with({"from": f"{tmp_path}/points", **more}, Points())[0]
        for more in ({}, {"weights": "model"})
    )
    assert (
        averages == {name: value.tolist() for name, value in first.weights("best").items()} != raw
    )
    with pytest.raises(
        ConfigError, match=r"init.weights: got slow, which .* does not hold; it holds ema, model"
    ):
        run(
            described(name="none", init={"from": f"{tmp_path}/points", "weights": "slow"}),
            storage=tmp_path,
            local=True,
        )
    with pytest.raises(UsageError, match=r"init has no effect: the run starts with the weights of"):
        second.continue_from("last", ["epochs=2", "init.from=other"])
    assert second.continue_from("last", ["epochs=2"]).init is None
    assert not (tmp_path / "none").exists()


def test_changed_file_is_refused(tmp_path: Path) -> None:
    file = saved(tmp_path)
    settings = experiment(init={"from": str(file)})
    found = find_weights(settings.init, [])
    file.write_bytes(b"other")
    with pytest.raises(CheckpointError, match="has changed since this run began"):
        Loop(TASK, settings, {}, origin=found)


def test_safetensors(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    weights = torch.load(saved(tmp_path))
    safetensors.save_file(weights, tmp_path / "weights.safetensors")
    assert begins_with({"from": str(tmp_path / "weights.safetensors"), "strict": True})[0] == {
        name: value.tolist() for name, value in weights.items()
    }
