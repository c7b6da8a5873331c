import math
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hooks import HookError, State
from hooks.errors import TrainingFailed
from hooks.interval import Interval
from hooks.training.nan_guard import NanGuard
from tests.hooks.training.averages import same, through_a_file, weights
from tests.hooks.training.steps import batches, new_state, small_model, train
from tests.ranks import on_ranks

INF = math.inf


def poisoned(count: int, *bad: int, value: float = math.nan) -> list[tuple[Tensor]]:
    """Batches, some with a value that spoils loss and gradients."""
    data = batches(count)
    for index in bad:
        data[index][0][0, 0] = value
    return data


def gradients_only(scale: float) -> State:
    """A state whose loss is finite and whose gradients are not."""
    module = nn.Linear(2, 1)
    for parameter in module.parameters():
        parameter.grad = torch.full_like(parameter, scale)
    return State(module=module, phase="train", loss=torch.tensor(1.0))


@pytest.mark.parametrize("value", [math.nan, INF, -INF])
def test_raises_before_a_nan_reaches_the_weights(value: float, tmp_path: Path) -> None:
    module = small_model()
    state = new_state(module, artifacts=tmp_path)
    train(state, {"guard": NanGuard()}, batches(2))
    before = weights(module)
    with pytest.raises(
        HookError, match="guard stopped the run: step 3 has loss=nan and gradient norm=nan"
    ):
        train(state, {"guard": NanGuard()}, poisoned(1, 0, value=value))
    assert same(weights(module), before)


def test_message_rounds_a_finite_loss(tmp_path: Path) -> None:
    state = gradients_only(math.nan)
    state.artifacts = tmp_path
    state.loss = torch.tensor(2 / 3)
    guard = NanGuard()
    guard.on_loss(state)
    with pytest.raises(TrainingFailed, match=r"has loss=0\.666667 and gradient norm=nan"):
        guard.on_gradients(state)


def test_skips_the_step_and_continues_without_its_batch(tmp_path: Path) -> None:
    module = nn.Linear(4, 2)
    reference = deepcopy(module)
    state = new_state(module, artifacts=tmp_path)
    rows = train(state, {"guard": NanGuard(action="skip")}, poisoned(6, 2, 4))
    train(
        new_state(reference),
        {},
        [batch for index, batch in enumerate(batches(6)) if index not in (2, 4)],
    )
    assert same(weights(module), weights(reference))
    assert [row.get("nonfinite") for row in rows] == [None, None, 1, None, 1, None]
    assert state.step == 4


class OnGpu(Tensor):
    """A tensor that stays one, as on a GPU."""

    device = torch.device("cuda")  # type: ignore[assignment]


@pytest.mark.parametrize(("last", "is_found"), [(40000.0, False), (INF, True)])
def test_losses_in_fp16_do_not_overflow_between_two_checks(
    last: float, is_found: bool, tmp_path: Path
) -> None:
    """The largest number of fp16 is 65504."""
    guard = NanGuard(action="stop", every=Interval(3, "steps"))
    state = gradients_only(1.0)
    state.artifacts = tmp_path
    for state.step, loss in enumerate((40000.0, 40000.0, last)):
        state.loss = torch.tensor(loss, dtype=torch.float16).as_subclass(OnGpu)
        guard.on_loss(state)
        guard.on_gradients(state)
    assert ("nonfinite" in state.row) == is_found


def test_infinite_loss_with_finite_gradients_is_not_skipped(tmp_path: Path) -> None:
    """Only this rank sees its loss, so skipping for it alone would part the ranks."""
    state = gradients_only(1.0)
    state.artifacts = tmp_path
    state.loss = torch.tensor(math.nan)
    guard = NanGuard(action="skip")
    guard.on_loss(state)
    guard.on_gradients(state)
    assert state.row == {"nonfinite": 1}
    assert state.skip_reasons == []


@pytest.mark.parametrize("loss", [1.0, math.nan])
def test_with_a_scaler_only_the_loss_counts(loss: float, tmp_path: Path) -> None:
    """Under fp16 infinite gradients are ordinary: the scaler leaves out the step and lowers its
    scale."""
    state = gradients_only(INF)
    state.scaler = torch.amp.GradScaler("cpu")
    state.loss = torch.tensor(loss)
    state.artifacts = tmp_path
    guard = NanGuard(action="stop")
    guard.on_loss(state)
    guard.on_gradients(state)
    assert bool(state.stop_reasons) == bool(state.row) == math.isnan(loss)


def test_check_covers_all_steps_since_the_last_one(tmp_path: Path) -> None:
    state = new_state(nn.Linear(4, 2), artifacts=tmp_path)
    optimizer: Any = state.optimizer
    # The weights stay finite, and the hit must be remembered.
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.param_groups[0]["momentum"] = 0.0
    data = batches(7)
    guard = NanGuard(action="stop", every=Interval(3, "steps"))

    class SpoilsOneLoss(NanGuard):
        def on_loss(self, state: State) -> None:
            if state.iteration == 3:
                state.loss = state.loss * math.nan if state.loss is not None else None

        def on_gradients(self, state: State) -> None:
            for parameter in state.module.parameters():
                if state.iteration == 3:
                    parameter.grad = torch.zeros_like(parameter)

    rows = train(state, {"spoiler": SpoilsOneLoss(), "guard": guard}, data)
    assert [index for index, row in enumerate(rows) if "nonfinite" in row] == [5]
    assert len(state.stop_reasons) == 1


def test_counts_of_hits_and_dumps_continue_after_a_resume(tmp_path: Path) -> None:
    guard, resumed = (NanGuard(action="skip", patience=2) for _ in range(2))
    state = new_state(nn.Linear(4, 2), artifacts=tmp_path)
    train(state, {"guard": guard}, poisoned(4, 2, 3))
    resumed.load_rank_state_dict(through_a_file(guard.rank_state_dict()))
    with pytest.raises(HookError, match="stopped the run"):
        train(state, {"guard": resumed}, poisoned(1, 0))
    assert len(list(tmp_path.rglob("*.pt"))) == 1


def test_optimizers_in_alternation_have_checks_of_their_own(tmp_path: Path) -> None:
    """The generator's loss is NaN in each step, and the discriminator's never, which comes between
    two checks of the generator."""
    guard = NanGuard(action="skip", patience=2)
    state = gradients_only(1.0)
    state.artifacts = tmp_path

    def check(turn: str, loss: float) -> bool:
        state.turn = turn
        state.row = {}
        state.loss = torch.tensor(loss)
        guard.on_loss(state)
        guard.on_gradients(state)
        return bool(state.row)

    for _ in range(2):
        assert check("g", math.nan)
        assert not check("d", 1.0)
    with pytest.raises(TrainingFailed, match="has loss=nan"):
        check("g", math.nan)

    # In the micro-batches before the last one of a step, there are only losses.
    state.turn, state.loss = "g", torch.tensor(math.nan)
    guard.on_loss(state)
    assert not check("d", 1.0)


def test_skip_cannot_look_later_than_each_step() -> None:
    with pytest.raises(ValueError, match="action: skip needs every: 1 step, got every: 4 steps"):
        NanGuard(action="skip", every=Interval(4, "steps"))


def test_dump_has_a_nested_batch_and_output(tmp_path: Path) -> None:
    """VISSL's check fails on outputs that are dicts."""
    state = gradients_only(math.nan)
    state.artifacts = tmp_path
    state.rank = 3
    state.step = 41
    state.iteration = 83
    state.batch = {
        "image": torch.tensor([1.0, math.nan]),
        "meta": {"ids": [1, 2], "names": ("a", "b")},
    }
    weight = nn.Parameter(torch.tensor([2.0]))
    state.output = {"logits": weight * 3, "parts": [(weight * 2, {"deep": weight})]}
    guard = NanGuard(action="stop", dumps=1)
    guard.on_loss(state)
    guard.on_gradients(state)
    found = torch.load(tmp_path / "nonfinite" / "iteration-84-rank-3.pt", weights_only=True)
    assert (found["step"], found["iteration"], found["loss"]) == (42, 84, 1.0)
    assert math.isnan(found["gradient_norm"])
    assert found["batch"]["meta"] == {"ids": [1, 2], "names": ("a", "b")}
    assert found["batch"]["image"].isnan().tolist() == [False, True]
    assert found["output"]["parts"][0][0].tolist() == [4.0]


def test_consecutive_failed_checks_of_one_step_have_a_dump_each(tmp_path: Path) -> None:
    state = new_state(nn.Linear(4, 2), artifacts=tmp_path)
    train(state, {"guard": NanGuard(action="skip", dumps=9)}, poisoned(4, 1, 2))
    dumps = sorted(path.name for path in (tmp_path / "nonfinite").iterdir())
    assert dumps == ["iteration-2-rank-0.pt", "iteration-3-rank-0.pt"]


def _skipping(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    torch.manual_seed(0)
    module = nn.Linear(4, 2)
    state = new_state(module, rank=rank, world_size=world_size, artifacts=Path(folder))
    state.model = DistributedDataParallel(module, broadcast_buffers=False)
    rows = train(
        state,
        {"guard": NanGuard(action="skip")},
        poisoned(4, 1) if rank == 1 else batches(4, seed=2),
    )
    return {
        "rows": [row.get("nonfinite") for row in rows],
        "step": state.step,
        "weights": module.weight.tolist(),
    }


def test_ranks_skip_together_and_the_dumps_name_the_culprit(tmp_path: Path) -> None:
    first, second = on_ranks(_skipping, 2, str(tmp_path))
    assert first == second
    assert (first["rows"], first["step"]) == ([None, 1, None, None], 3)
    losses = [
        torch.load(tmp_path / "nonfinite" / f"iteration-2-rank-{rank}.pt", weights_only=True)[
            "loss"
        ]
        for rank in (0, 1)
    ]
    assert [math.isfinite(loss) for loss in losses] == [True, False]
