"""The moving average of the weights, against torch and against the formulas it comes from, and
validation with it."""

from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import get_ema_multi_avg_fn, get_swa_multi_avg_fn

from hooks import Interval, State
from hooks.model.power_average import compute_exponent
from hooks.state import ScheduledOptimizer, Weights
from hooks.training.ema import EMA
from orchestrator.errors import ConfigError
from orchestrator.experiment.make_hooks import make_hooks
from orchestrator.loop.loop import Loop
from orchestrator.testing import check_hook
from orchestrator.testing.differences import find_difference
from tests.hooks.training.averages import (
    Reference,
    Trail,
    assert_averages,
    averages,
    checkpoint_of,
    resume,
    same,
    through_a_file,
    weights,
)
from tests.hooks.training.steps import batches, new_state, small_model, train
from tests.ranks import on_ranks
from tests.tasks import Points, experiment


def mix(first: list[Tensor], second: list[Tensor], share: float) -> list[Tensor]:
    """Return (1 - share) * first + share * second."""
    return [own.lerp(other, share) for own, other in zip(first, second, strict=True)]


# The average


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9, 0.99, 0.9999])
def test_exponential_average_equals_that_of_torch(decay: float) -> None:
    module = small_model()
    state = new_state(module)
    hook = EMA(decay=decay)
    reference = Reference(module, get_ema_multi_avg_fn(decay))
    train(state, {"ema": hook, "reference": reference}, batches(12))
    assert same(averages(hook, state), weights(reference.averaged.module))


def test_stochastic_average_equals_swa_of_torch() -> None:
    module = small_model()
    state = new_state(module)
    hook = EMA(average="stochastic")
    reference = Reference(module, get_swa_multi_avg_fn())
    train(state, {"ema": hook, "reference": reference}, batches(12))
    torch.testing.assert_close(averages(hook, state), weights(reference.averaged.module))


@pytest.mark.parametrize("interval", [1, 3])
def test_annealing_follows_the_formula_of_mmengine(interval: int) -> None:
    """momentum_n = max(momentum, gamma / (gamma + n)), with n the steps since the copy; every
    `interval`-th updates."""
    state = new_state(small_model())
    hook = EMA(decay=0.7, average="annealing", gamma=2, every=Interval(interval, "steps"))
    trail = Trail()
    train(state, {"ema": hook, "trail": trail}, batches(10))
    expected, *further = trail.values[interval - 1 :: interval]
    for update, values in enumerate(further, start=1):
        momentum = max(0.3, 2 / (2 + update * interval))
        expected = mix(expected, values, momentum)
    assert_averages(hook, state, expected)


def test_annealing_counts_steps_although_the_interval_changes() -> None:
    """`changes` and a resume may set another `every`, here after four steps."""
    state = new_state(small_model())
    hook = EMA(decay=0.99, average="annealing", gamma=2)
    trail = Trail()
    train(state, {"ema": hook, "trail": trail}, batches(4))
    hook.every = Interval(5, "steps")
    train(state, {"ema": hook, "trail": trail}, batches(6))
    expected = trail.values[0]
    for step in (2, 3, 4, 5, 10):
        expected = mix(expected, trail.values[step - 1], 2 / (2 + step - 1))
    assert_averages(hook, state, expected)


def test_annealing_does_not_wait_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """MMEngine reads its count of updates from a buffer at each."""
    state = new_state(small_model())
    hook = EMA(decay=0.9, average="annealing")
    train(state, {"ema": hook}, batches(2))
    before = averages(hook, state)

    def refuse(*arguments: Any) -> None:
        raise AssertionError("a tensor was read")

    for read in ("item", "cpu", "tolist", "__float__", "__bool__"):
        monkeypatch.setattr(Tensor, read, refuse)
    hook.on_update(state)
    monkeypatch.undo()
    assert not same(averages(hook, state), before)


class Rising(EMA):
    """An average in which each value counts as many times as its place."""

    def compute_coefficient(self, updates: int) -> float:
        return 2 / (updates + 2)


def test_subclass_can_override_the_coefficient_of_an_update() -> None:
    """As a class of `ema_type` does in MMEngine."""
    hook = make_hooks({"ema": {"type": f"{__name__}:Rising", "buffers": "ema"}}, {})["ema"].hook
    assert isinstance(hook, Rising)
    state = new_state(small_model())
    trail = Trail()
    train(state, {"ema": hook, "trail": trail}, batches(9))
    shares = torch.arange(1, 10, dtype=torch.float64) / sum(range(1, 10))
    parameters = [torch.stack(values) for values in zip(*trail.values, strict=True)]
    assert_averages(hook, state, [torch.tensordot(shares, values, 1) for values in parameters])


def test_updates_once_per_optimizer_step_and_not_per_micro_batch() -> None:
    """MMEngine updates at every micro-batch."""
    module = small_model()
    state = new_state(module, accumulate=3)
    hook = EMA(decay=0.5)
    trail = Trail()
    train(state, {"ema": hook, "trail": trail}, batches(9))
    assert len(trail.values) == 3
    first, second, third = trail.values
    assert_averages(hook, state, mix(mix(first, second, 0.5), third, 0.5))


@pytest.mark.parametrize(
    ("begin", "first"), [(Interval(0), 0), (Interval(1, "steps"), 0), (Interval(4, "steps"), 3)]
)
def test_average_begins_with_a_copy_at_the_begin_step(begin: Interval, first: int) -> None:
    state = new_state(small_model())
    hook = EMA(decay=0.5, begin=begin)
    trail = Trail()
    train(state, {"ema": hook, "trail": trail}, batches(6))
    expected = trail.values[first]
    for values in trail.values[first + 1 :]:
        expected = mix(expected, values, 0.5)
    assert_averages(hook, state, expected)


@pytest.mark.parametrize(
    ("begin", "updates"),
    [
        (Interval(0, "steps"), [2, 4, 6, 8]),
        (Interval(3, "steps"), [4, 6, 8]),
        (Interval(4, "steps"), [4, 6, 8]),
    ],
)
def test_average_begins_with_the_first_due_step(begin: Interval, updates: list[int]) -> None:
    """Steps are due at multiples of `every`, as in VISSL; MMEngine counts from the begin."""
    state = new_state(small_model())
    hook = EMA(decay=0.5, begin=begin, every=Interval(2, "steps"))
    trail = Trail()
    initial = [parameter.double() for parameter in weights(state.module)]
    hook.on_start(state)
    train(state, {"ema": hook, "trail": trail}, batches(9))
    copied, *averaged = updates
    expected = trail.values[copied - 1]
    if begin.count == 0:
        expected = mix(initial, expected, 0.5)
    for step in averaged:
        expected = mix(expected, trail.values[step - 1], 0.5)
    assert_averages(hook, state, expected)


@pytest.mark.parametrize("turns", [(), ("first", "second")], ids=["one optimizer", "two in turns"])
def test_average_from_step_0_starts_from_the_initial_weights(turns: tuple[str, ...]) -> None:
    """As in VISSL without warm-up, ClassyVision, iMIX and timm: a0 = w0, a = 0.75 a + 0.25 w."""
    module = nn.ModuleDict({name: nn.BatchNorm1d(2) for name in turns or ("only",)})
    optimizers = {name: torch.optim.SGD(module[name].parameters()) for name in turns}
    state = State(module=module, model=module, phase="train")
    state.several = {name: ScheduledOptimizer(value) for name, value in optimizers.items()}
    hook = EMA(decay=0.75, begin=Interval(0, "steps"), buffers="ema")
    expected = {name: value.double() for name, value in module.state_dict().items()}
    hook.on_start(state)

    for _ in range(5):
        for part in module.values():
            part(torch.randn(4, 2))
        for turn in turns or (None,):
            state.turn = turn
            state.optimizer = optimizers.get(turn)
            for parameter in module[turn or "only"].parameters():
                nn.init.normal_(parameter)
            hook.on_update(state)
        state.step += 1
        for name, value in module.state_dict().items():
            expected[name] = 0.75 * expected[name] + 0.25 * value.double()

    with hook.applied(state):
        for name, average in module.state_dict().items():
            if average.is_floating_point():
                torch.testing.assert_close(average.double(), expected[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("fields", "average"),
    [
        ({"decay": 0.9}, get_ema_multi_avg_fn(0.9)),
        ({"average": "stochastic"}, get_swa_multi_avg_fn()),
    ],
    ids=["exponential", "stochastic"],
)
def test_each_optimizer_has_its_own_updates_if_they_take_turns(
    fields: dict[str, Any], average: Any
) -> None:
    """One trains in every step, the other in every third, as in a GAN with several steps of the
    discriminator."""
    module = nn.ModuleDict({"often": nn.Linear(2, 2), "rarely": nn.Linear(2, 2)})
    hook = EMA(**fields)
    references = {name: Reference(part, average) for name, part in module.items()}
    state = State(module=module, model=module, phase="train")
    for step in range(7):
        for turn in ("often", "rarely") if step % 3 == 2 else ("often",):
            state.step = step
            state.turn = turn
            state.optimizer = torch.optim.SGD(module[turn].parameters())
            nn.init.normal_(module[turn].weight)
            hook.on_update(state)
            references[turn].on_update(state)
    with hook.applied(state):
        for name, part in module.items():
            torch.testing.assert_close(part.weight, references[name].averaged.module.weight)


# Putting the averages in and taking them out


def test_applied_exchanges_tensors_and_keeps_parameters() -> None:
    state = new_state(small_model())
    hook = EMA(decay=0.9)
    train(state, {"ema": hook}, batches(3))
    parameters = list(state.module.parameters())
    raw = weights(state.module)
    places = [parameter.data_ptr() for parameter in parameters]
    with hook.applied(state):
        first = [parameter.data_ptr() for parameter in parameters]
    with hook.applied(state):
        assert [
            parameter.data_ptr() for parameter in parameters
        ] == first  # no copy is made for each use
        assert set(first).isdisjoint(places)
        assert all(a is b for a, b in zip(state.module.parameters(), parameters, strict=True))
    assert [parameter.data_ptr() for parameter in parameters] == places
    assert same(weights(state.module), raw)


def test_raw_weights_are_restored_after_an_error() -> None:
    state = new_state(small_model())
    hook = EMA(decay=0.9, buffers="ema")
    train(state, {"ema": hook}, batches(3))
    raw = deepcopy(state.module.state_dict())
    with pytest.raises(ZeroDivisionError), hook.applied(state):
        raise ZeroDivisionError
    assert all(torch.equal(value, raw[name]) for name, value in state.module.state_dict().items())
    assert not same(averages(hook, state), weights(state.module))  # and they can be applied again


@pytest.mark.parametrize(
    ("evaluate", "labels"),
    [("ema", {"": True}), ("raw", {"": False}), ("both", {"": False, "ema": True})],
)
def test_registers_its_weights_for_validation(evaluate: Any, labels: dict[str, bool]) -> None:
    state = new_state(small_model())
    hook = EMA(decay=0.9, evaluate=evaluate)
    hook.name = "ema"
    hook.on_start(state)
    train(state, {"ema": hook}, batches(3))
    assert list(state.evaluations) == list(labels)
    raw = weights(state.module)
    averaged = averages(hook, state)
    for label, has_averages in labels.items():
        with state.evaluations[label](state):
            assert same(weights(state.module), averaged if has_averages else raw)


def test_two_averages_validate_under_different_names() -> None:
    state = new_state(small_model())
    fast = EMA(evaluate="both")
    slow = EMA(evaluate="both")
    fast.name = "ema"
    slow.name = "slow_ema"
    fast.on_start(state)
    slow.on_start(state)
    assert list(state.evaluations) == ["", "ema", "slow_ema"]
    assert state.evaluations[""] == Weights()
    EMA().on_start(state)
    with pytest.raises(
        ValueError, match="already sets the weights for validation; set both or raw"
    ):
        EMA().on_start(state)


@dataclass
class Counted(Points):
    """Counts how often its model is called in training and in evaluation."""

    calls: Counter[str] = field(default_factory=Counter)

    def model(self) -> nn.Module:
        model = super().model()
        model.register_forward_pre_hook(
            lambda module, inputs: self.calls.update(["train" if module.training else "val"])
        )
        return model


def test_evaluate_both_validates_twice_and_leaves_training_unchanged() -> None:
    """VISSL runs the averaged model on every batch, those of training too. 52 and 23 samples are 7
    and 3 batches."""
    task = Counted()
    hook = EMA(decay=0.9, evaluate="both")
    loop = Loop(task, experiment(epochs=1), {"ema": hook})
    metrics = next(loop.run()).metrics
    assert task.calls == {"train": 7, "val": 2 * 3}
    dataset: Any = task.data()["val"]

    def loss() -> float:
        with torch.no_grad():
            return float(
                functional.cross_entropy(loop.state.module(dataset.points), dataset.labels)
            )

    assert metrics["val/loss"] == pytest.approx(loss(), rel=1e-6)
    with hook.applied(loop.state):
        assert metrics["val/ema/loss"] == pytest.approx(loss(), rel=1e-6)
    assert metrics["val/loss"] != pytest.approx(metrics["val/ema/loss"], rel=1e-3)


# Buffers


def test_ema_averages_float_buffers_and_keeps_integers_live() -> None:
    """ClassyVision and older Ignite average num_batches_tracked."""
    state = new_state(small_model())
    hook = EMA(decay=0.5, buffers="ema")
    norm: Any = state.module[1]
    expected = None
    for batch in batches(4):
        train(state, {"ema": hook}, [batch])
        now = norm.running_mean.double()
        expected = now if expected is None else 0.5 * expected + 0.5 * now
    raw = norm.running_mean
    with hook.applied(state):
        torch.testing.assert_close(norm.running_mean.double(), expected)
        assert norm.num_batches_tracked.item() == 4
        assert norm.num_batches_tracked.dtype == torch.int64
    assert norm.running_mean is raw


# Several ranks


def _on_a_rank(rank: int, world_size: int) -> dict[str, Any]:
    module = small_model()
    state = new_state(module, rank=rank, world_size=world_size)
    hook = EMA(decay=0.5, buffers="ema")
    state.model = DistributedDataParallel(module, broadcast_buffers=False)
    data = batches(4, seed=1 + rank)
    train(state, {"ema": hook}, data)
    drifting = {
        name: average.tolist() for name, average in hook.rank_state_dict()["buffers"].items()
    }
    hook.on_phase_end(state)
    with hook.applied(state):
        synced = {name: buffer.tolist() for name, buffer in module.named_buffers()}
        averaged = [value.tolist() for value in weights(module)]
    train(state, {"ema": hook}, data[:1])  # DDP goes on after the exchange
    after = [value.tolist() for value in weights(module)]
    return {"drifting": drifting, "synced": synced, "averaged": averaged, "after": after}


def test_ranks_agree_on_weights_and_averaged_buffers() -> None:
    first, second = on_ranks(_on_a_rank)
    assert first["averaged"] == second["averaged"]
    assert first["after"] == second["after"]
    assert first["drifting"] != second["drifting"]
    for name in ("1.running_mean", "1.running_var"):
        mean = torch.tensor([first["drifting"][name], second["drifting"][name]]).mean(0)
        torch.testing.assert_close(torch.tensor(first["synced"][name]), mean)
        assert first["synced"][name] == second["synced"][name]


# In a checkpoint


def test_checkpoint_has_loadable_averages_and_raw_weights() -> None:
    """MMEngine writes the averages as state_dict and hides the raw weights, or the other way
    round."""
    state = new_state(small_model())
    hook = EMA(decay=0.9)
    train(state, {"ema": hook}, batches(5))
    checkpoint = checkpoint_of(hook, state)
    assert same(list(checkpoint["model"].values()), list(state.module.state_dict().values()))
    fresh = small_model(seed=9)
    fresh.load_state_dict(checkpoint["ema"]["model"])
    assert same(weights(fresh), averages(hook, state))
    assert checkpoint["hook"]["updates"]["parameters"] == {
        None: {"count": 5, "first_step": 1, "last_step": 5}
    }
    assert checkpoint["ema"]["decay"] == 0.9
    assert checkpoint["ema"]["exact"] == {}  # nothing is stored twice
    assert checkpoint["rank"] == {}


@pytest.mark.parametrize("cut", [1, 3, 4, 7])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"average": "stochastic", "decay": 0},
        {"average": "annealing", "gamma": 3},
        {"begin": Interval(4, "steps")},
        {"begin": Interval(0, "steps"), "buffers": "ema"},
        {"every": Interval(3, "steps")},
        {"buffers": "ema"},
        {"average": "power", "std": [0.05, 0.2], "decay": 0, "every": Interval(2, "steps")},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_resume_continues_bit_for_bit(cut: int, fields: dict[str, Any], dtype: torch.dtype) -> None:
    data = [(batch.to(dtype),) for (batch,) in batches(9)]
    straight = EMA(**{"decay": 0.9, **fields})
    whole = new_state(small_model().to(dtype))
    straight.on_start(whole)
    train(whole, {"ema": straight}, data[:cut])
    checkpoint = checkpoint_of(straight, whole)
    assert whole.optimizer is not None
    optimizer = through_a_file(whole.optimizer.state_dict())
    train(whole, {"ema": straight}, data[cut:])

    hook = EMA(**{"decay": 0.9, **fields})
    state = resume(hook, small_model(seed=5).to(dtype), checkpoint, step=cut, iteration=cut)
    assert state.optimizer is not None
    state.optimizer.load_state_dict(optimizer)
    train(state, {"ema": hook}, data[cut:])
    assert hook.state_dict() == straight.state_dict()
    assert not find_difference(
        checkpoint_of(hook, state)["ema"], checkpoint_of(straight, whole)["ema"]
    )


def test_average_added_at_a_resume_starts_from_the_restored_weights() -> None:
    state = new_state(small_model())
    train(state, {}, batches(3))
    checkpoint = through_a_file({"model": state.module.state_dict(), "hook": {}, "rank": {}})
    hook = EMA(decay=0.5)
    trail = Trail()
    new = resume(hook, small_model(seed=5), checkpoint, step=3, iteration=3)
    with new.evaluations[""](new):
        assert same(weights(new.module), weights(state.module))
    train(new, {"ema": hook, "trail": trail}, batches(2))
    assert_averages(hook, new, mix(*trail.values, 0.5))


STDS = [0.05, 0.2]


def direct(values: list[list[Tensor]], steps: list[int], std: float) -> list[Tensor]:
    """The sum of what the weights were after these steps by (i^(g+1) - (i-1)^(g+1)) / t^(g+1), in
    float64."""
    edges = (torch.tensor([0, *steps], dtype=torch.float64) / steps[-1]) ** (
        compute_exponent(std) + 1
    )
    chosen = [values[step - 1] for step in steps]
    return [
        torch.tensordot(edges.diff(), torch.stack(parameter), 1)
        for parameter in zip(*chosen, strict=True)
    ]


@pytest.mark.parametrize(
    ("fields", "steps"),
    [
        ({}, range(1, 15)),
        ({"every": Interval(3, "steps")}, [3, 6, 9, 12]),
        ({"begin": Interval(5, "steps")}, range(5, 15)),
        ({"std": 0.1}, range(1, 15)),
    ],
)
def test_each_average_is_the_sum_of_all_weights_by_its_profile(
    fields: dict[str, Any], steps: list[int]
) -> None:
    """Where averaging begins later, the first weights stand for those before."""
    state = new_state(small_model())
    hook = EMA(**{"average": "power", "std": STDS, **fields})
    trail = Trail()
    train(state, {"ema": hook, "trail": trail}, batches(14))
    record = checkpoint_of(hook, state)["ema"]
    names = [name for name, _ in state.module.named_parameters()]
    stds = [fields["std"]] if "std" in fields else STDS
    for std in stds:
        values = record["further"].get(str(std), record["model"])
        expected = direct(trail.values, list(steps), std)
        own = [values[name].double() for name in names]
        torch.testing.assert_close(own, expected, rtol=1e-5, atol=1e-7)
    assert_averages(hook, state, direct(trail.values, list(steps), stds[0]))


def test_power_average_counts_a_step_of_several_turns_once() -> None:
    """Both turns of a step take the same share, each of what it has trained."""
    module = small_model()
    halves = {
        "one": list(module[0].parameters()) + list(module[1].parameters()),
        "two": list(module[3].parameters()),
    }
    hook = EMA(average="power", std=STDS)
    trail = Trail()
    state = State(module=module, model=module, phase="train")
    for state.step in range(6):
        for state.turn, parameters in halves.items():
            state.optimizer = torch.optim.SGD(parameters)
            for parameter in parameters:
                nn.init.normal_(parameter)
            hook.on_update(state)
        trail.on_update(state)
    assert_averages(hook, state, direct(trail.values, [*range(1, 7)], STDS[0]))
    once_per_step = {"count": 6, "first_step": 1, "last_step": 6}
    assert hook.state_dict()["updates"]["parameters"] == {
        "one": once_per_step,
        "two": once_per_step,
    }


def test_checkpoint_with_other_stds_is_refused() -> None:
    state = new_state(small_model())
    hook = EMA(average="power", std=STDS)
    train(state, {"ema": hook}, batches(2))
    with pytest.raises(
        ValueError, match=r"std: must be 0\.05, 0\.2, as in the checkpoint, got 0\.1; "
    ):
        resume(EMA(average="power", std=0.1), small_model(), checkpoint_of(hook, state))
    plain = EMA(decay=0.5)
    train(state, {"ema": plain}, batches(2))
    with pytest.raises(ValueError, match=r"std: must be none, as in the checkpoint, got 0\.1"):
        resume(EMA(average="power", std=0.1), small_model(), checkpoint_of(plain, state))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"average": "power"}, r"average: power needs std, such as std: \[0.05, 0.10\]"),
        (
            {"average": "power", "std": 0.1, "decay": 0.9},
            "decay=0.9 has no effect with average: power; remove it",
        ),
        ({"average": "power", "std": [0.1, 0.1]}, "std has duplicate values"),
        ({"average": "power", "std": []}, "std"),
        ({"average": "power", "std": 0.3}, r"std.*0\.2886"),
        ({"average": "power", "std": [0.1, 0]}, "std"),
    ],
    ids=str,
)
def test_invalid_power_settings_are_refused_at_load(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_hooks({"ema": fields}, {})


@pytest.mark.parametrize(
    "fields",
    [
        {"average": "power", "std": STDS, "decay": 0.999, "snapshots": Interval(2, "steps")},
        {"begin": Interval(0, "steps"), "buffers": "ema"},
    ],
    ids=str,
)
def test_average_passes_check_hook(fields: dict[str, Any]) -> None:
    check_hook(EMA, fields=fields)
