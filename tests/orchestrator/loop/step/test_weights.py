"""Losses that count by what they are the mean of train like one large batch, as a raw loop over
that batch shows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, SequentialSampler, TensorDataset

from hooks import Hook
from hooks.state import State
from hooks.training.gradient_clip import GradientClip
from hooks.training.loss_spike import LossSpike
from hooks.training.nan_guard import NanGuard
from orchestrator.errors import TaskError
from orchestrator.experiment.sections.workers import Workers
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from orchestrator.task import Task
from tests.orchestrator.loop.step.test_auto_microbatching import Allocator
from tests.ranks import on_ranks
from tests.tasks import Rows, experiment, numbers

TOKENS = 6
SGD = {"type": "SGD", "lr": 0.1, "momentum": 0.9}


def make_sequences(count: int, seed: int, *, empty: Sequence[int] = ()) -> TensorDataset:
    """Make sequences of 1 to 6 tokens, or none: features, targets, a mask of the tokens, and
    places."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(count, TOKENS, 3, generator=generator)
    targets = torch.randn(count, TOKENS, generator=generator)
    lengths = torch.randint(1, TOKENS + 1, (count,), generator=generator)
    lengths[list(empty)] = 0
    mask = (torch.arange(TOKENS) < lengths[:, None]).float()
    return TensorDataset(features, targets, mask, torch.arange(count))


@dataclass
class Sequences(Task):
    """Predicts a number at each token; its loss is the mean over the tokens that are not
    padding."""

    empty: tuple[int, ...] = ()
    most: int = 100
    """Sequences that fit in memory."""
    as_terms: bool = False

    def model(self) -> nn.Module:
        return nn.Sequential(Allocator(self.most, "cpu"), nn.Linear(3, 1), nn.Flatten(1))

    def data(self) -> Mapping[str, Dataset[Any]]:
        return {"train": make_sequences(14, 0, empty=self.empty), "val": make_sequences(7, 1)}

    def sampler(self, dataset: Dataset[Any], phase: str) -> SequentialSampler:
        return SequentialSampler(dataset)  # type: ignore[arg-type]

    def loss(self, output: Tensor, batch: Any) -> Any:
        mean = mean_over_tokens(output, batch)
        return {"half": mean / 2, "other_half": mean / 2} if self.as_terms else mean

    def weight(self, batch: Any) -> Tensor:
        return batch[2].sum()  # type: ignore[no-any-return]


def mean_over_tokens(output: Tensor, batch: Any) -> Tensor:
    _, targets, mask, _ = batch
    return ((output - targets).square() * mask).sum() / mask.sum()


class Batches(Hook):
    """Keeps the places of each training batch."""

    def __init__(self) -> None:
        self.places: list[list[int]] = []

    def on_batch(self, state: State) -> None:
        if state.phase == "train":
            self.places.append(state.batch[3].tolist())


def train(
    task: Task, world: World | None = None, hooks: Mapping[str, Hook] | None = None, **fields: Any
) -> Any:
    """Train, and return the loop, the reports, the rows and the places of the batches."""
    batches = Batches()
    rows = Rows()
    context = RunContext(world=world or World(), recorder=rows)
    settings = {"optimizer": SGD, "batch_size": 2, **fields}
    loop = Loop(task, experiment(**settings), {"batches": batches, **(hooks or {})}, context)
    reports = [report.metrics for report in loop.run()]
    return loop, reports, rows, batches.places


def train_by_hand(
    task: Sequences, steps: Sequence[Sequence[int]], max_norm: float | None = None
) -> nn.Module:
    """Train on one large batch for each step; `steps` holds the places of its sequences."""
    torch.manual_seed(0)
    model = task.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = task.data()["train"]
    for places in steps:
        batch = [torch.stack(column) for column in zip(*map(data.__getitem__, places), strict=True)]
        mean_over_tokens(model(batch[0]), batch).backward()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        optimizer.zero_grad()
    return model


def join(batches: Sequence[Sequence[int]], accumulate: int) -> list[list[int]]:
    """Join the micro-batches of each step of one epoch."""
    steps = [batches[first : first + accumulate] for first in range(0, len(batches), accumulate)]
    return [[*chain.from_iterable(step)] for step in steps]


def assert_equal(model: nn.Module, reference: nn.Module) -> None:
    for name, tensor in reference.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("as_terms", [False, True])
def test_micro_batches_train_like_one_batch(as_terms: bool) -> None:
    task = Sequences(as_terms=as_terms)
    clip = {"gradient_clip": GradientClip(max_norm=0.5)}
    loop, _, _, places = train(task, hooks=clip, accumulate=3, epochs=1)
    steps = join(places, 3)
    assert [len(step) for step in steps] == [6, 6, 2]
    assert_equal(loop.state.module, train_by_hand(task, steps, max_norm=0.5))


def test_gradient_of_unequal_micro_batches_is_that_of_all_samples() -> None:
    """Six samples in micro-batches of 4 and 2 have the gradient -8 together; without weights it
    would be -9."""

    @dataclass
    class Six(Task):
        def model(self) -> nn.Module:
            model = nn.Linear(1, 1, bias=False)
            nn.init.zeros_(model.weight)
            return model

        def data(self) -> Mapping[str, Any]:
            targets = torch.tensor([3.0, 3.0, 3.0, 3.0, 6.0, 6.0])
            return {"train": TensorDataset(torch.ones(6, 1), targets[:, None])}

        def sampler(self, dataset: Any, phase: str) -> SequentialSampler:
            return SequentialSampler(dataset)

        def loss(self, output: Tensor, batch: Any) -> Tensor:
            return nn.functional.mse_loss(output, batch[1])

        def weight(self, batch: Any) -> int:
            return len(batch[0])

    optimizer = {"type": "SGD", "lr": 1.0}
    loop = Loop(Six(), experiment(batch_size=4, accumulate=2, epochs=1, optimizer=optimizer), {})
    list(loop.run())
    assert loop.state.module.weight.item() == pytest.approx(8.0)


def test_means_are_over_tokens() -> None:
    task = Sequences()
    loop, reports, rows, places = train(task, accumulate=3, epochs=1)
    train_data = task.data()["train"]
    val_data = task.data()["val"]
    weights = [sum(float(train_data[place][2].sum()) for place in batch) for batch in places]
    losses = [loss for (loss,) in rows.columns("loss", phase="train")]
    mean = sum(loss * weight for loss, weight in zip(losses, weights, strict=True)) / sum(weights)
    assert reports[0]["train/loss"] == pytest.approx(mean)

    with torch.no_grad():
        val_loss = mean_over_tokens(loop.state.module(val_data[:][0]), val_data[:])
    assert reports[0]["val/loss"] == pytest.approx(float(val_loss))


def test_batch_without_tokens_trains_nothing_and_has_no_loss() -> None:
    task = Sequences(empty=(2, 3))  # the second batch: its mean over no token is NaN
    loop, reports, rows, places = train(task, accumulate=3, epochs=1)
    assert places[1] == [2, 3]
    assert rows.columns("iteration")[1] == (2,)
    assert "loss" not in rows.rows[1]
    assert_equal(loop.state.module, train_by_hand(task, join(places, 3)))
    assert reports[0]["train/loss"] == pytest.approx(reports[0]["train/loss"])  # not NaN


def test_validation_without_tokens_has_no_loss() -> None:
    @dataclass
    class Empty(Sequences):
        def data(self) -> Mapping[str, Dataset[Any]]:
            return {**super().data(), "val": make_sequences(2, 1, empty=(0, 1))}

    _, reports, _, _ = train(Empty(), epochs=1)
    assert "val/loss" not in reports[0]


@pytest.mark.parametrize("kind", ["SGD", "LBFGS"])
def test_batch_without_tokens_may_have_a_constant_for_a_loss(kind: str) -> None:
    @dataclass
    class Guarded(Sequences):
        """Asks whether there is anything to average, and returns a zero without a gradient."""

        def loss(self, output: Tensor, batch: Any) -> Any:
            return super().loss(output, batch) if batch[2].any() else torch.zeros(())

    optimizer = {"type": kind, "lr": 0.1}
    loop, _, _, _ = train(Guarded(empty=(2, 3)), optimizer=optimizer, epochs=1)
    expected, _, _, _ = train(Sequences(empty=(2, 3)), optimizer=optimizer, epochs=1)
    assert_equal(loop.state.module, expected.state.module)


def test_batch_without_labels_and_with_masked_scores_trains_nothing() -> None:
    class Masked(nn.Linear):
        def forward(self, features: Tensor) -> Tensor:
            return (
                super()
                .forward(features)
                .masked_fill(torch.tensor([False, False, True]), -torch.inf)
            )

    features = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 1, 0, -100, -100, -100, -100])

    @dataclass
    class Classes(Sequences):
        def model(self) -> nn.Module:
            return Masked(3, 3)

        def data(self) -> Mapping[str, Dataset[Any]]:
            return {"train": TensorDataset(features, labels, labels, torch.arange(8))}

        def loss(self, output: Tensor, batch: Any) -> Tensor:
            return nn.functional.cross_entropy(output, batch[1])

        def weight(self, batch: Any) -> Tensor:
            return (batch[1] >= 0).sum()

    hooks = {"nan_guard": NanGuard(), "loss_spike": LossSpike()}
    loop, _, _, _ = train(Classes(), hooks=hooks, batch_size=4, accumulate=2, epochs=1)

    torch.manual_seed(0)
    model = Masked(3, 3)
    nn.functional.cross_entropy(model(features), labels).backward()
    torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9).step()
    assert_equal(loop.state.module, model)


def test_head_without_a_loss_does_not_decay_in_a_batch_of_weight_0() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used = nn.Linear(3, 1)
            self.other = nn.Linear(3, 1)

        def forward(self, features: Tensor) -> Any:
            return self.used(features).flatten(1), self.other(features)

    @dataclass
    class TwoHeads(Sequences):
        def model(self) -> nn.Module:
            return Heads()

        def loss(self, output: Any, batch: Any) -> Tensor:
            return mean_over_tokens(output[0], batch)

    task = TwoHeads(empty=(2, 3))
    loop, _, _, _ = train(task, epochs=1, optimizer={**SGD, "weight_decay": 0.5})
    torch.manual_seed(0)
    assert torch.equal(loop.state.module.other.weight, Heads().other.weight)


def test_pieces_of_a_batch_that_does_not_fit_train_like_the_batch() -> None:
    task = Sequences(most=2, empty=(0, 1))
    loop, _, rows, places = train(task, accumulate="auto", batch_size=7, epochs=2)
    assert max(row["microbatches"] for row in rows.rows if row["phase"] == "train") == 4
    reference = train_by_hand(Sequences(empty=(0, 1)), places)
    assert_equal(loop.state.module, reference)
    whole, _, whole_rows, _ = train(Sequences(empty=(0, 1)), batch_size=7, epochs=2)
    assert_equal(whole.state.module, reference)
    losses = [row["loss"] for row in rows.rows if row["phase"] == "train"]
    assert losses == pytest.approx(
        [row["loss"] for row in whole_rows.rows if row["phase"] == "train"]
    )


def test_pieces_whose_weights_do_not_add_up_are_refused() -> None:
    @dataclass
    class Constant(Sequences):
        def weight(self, batch: Any) -> float:  # type: ignore[override]
            return 1.0

    with pytest.raises(
        TaskError, match=r"the weight 1 of a batch became 1, 1.*let weight\(\) count"
    ):
        train(Constant(most=4), accumulate="auto", batch_size=7)


def train_on_a_rank(
    rank: int, world_size: int, fields: dict[str, Any], empty: tuple[int, ...]
) -> Any:
    task = Sequences(empty=empty)
    world = World(rank=rank, world_size=world_size)
    loop, reports, _, places = train(task, world, epochs=1, **fields)
    weights = {
        name: getattr(value, "full_tensor", lambda value=value: value)()
        for name, value in loop.state.module.state_dict().items()
    }
    return {name: value.tolist() for name, value in weights.items()}, reports, places


@pytest.mark.parametrize(
    ("fields", "empty"),
    [
        ({"accumulate": 2}, ()),
        ({"accumulate": 2}, (1, 3)),  # rank 1 has a batch without tokens
        ({"accumulate": 2, "workers": Workers(count=2, strategy="fsdp")}, ()),
        ({"accumulate": "auto"}, ()),
    ],
)
def test_ranks_train_like_one_batch(fields: dict[str, Any], empty: tuple[int, ...]) -> None:
    ranks = on_ranks(train_on_a_rank, 2, fields, empty)
    per_rank = 2 if fields["accumulate"] == 2 else 1
    own_steps = [join(places, per_rank) for _, _, places in ranks]
    steps = [first + second for first, second in zip(*own_steps, strict=True)]
    reference = train_by_hand(Sequences(empty=empty), steps)
    for weights, reports, _ in ranks:
        for name, value in numbers(reference).items():
            torch.testing.assert_close(
                torch.tensor(weights[name]), torch.tensor(value), rtol=1e-5, atol=1e-6
            )
        assert reports == ranks[0][1]

    val = Sequences().data()["val"][:]  # type: ignore[index]
    with torch.no_grad():
        expected = float(mean_over_tokens(reference(val[0]), val))
    assert ranks[0][1][0]["val/loss"] == pytest.approx(expected, rel=1e-5)


def train_with_closures(rank: int, world_size: int) -> Any:
    optimizer = {"type": "LBFGS", "lr": 0.5, "max_iter": 4}
    loop, _, _, places = train(
        Sequences(), World(rank=rank, world_size=world_size), epochs=1, optimizer=optimizer
    )
    return numbers(loop.state.module), places


def test_closures_on_ranks_train_like_one_batch() -> None:
    ranks = on_ranks(train_with_closures)
    torch.manual_seed(0)
    task = Sequences()
    model = task.model()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
    data = task.data()["train"]
    for first, second in zip(*(places for _, places in ranks), strict=True):
        batch = [
            torch.stack(column)
            for column in zip(*map(data.__getitem__, first + second), strict=True)
        ]

        def evaluate(batch: Any = batch) -> Tensor:
            optimizer.zero_grad()
            loss = mean_over_tokens(model(batch[0]), batch)
            loss.backward()
            return loss

        optimizer.step(evaluate)
    for weights, _ in ranks:
        for name, value in numbers(model).items():
            torch.testing.assert_close(
                torch.tensor(weights[name]), torch.tensor(value), rtol=1e-4, atol=1e-5
            )


def test_turns_train_like_one_batch() -> None:
    @dataclass
    class Turns(Sequences):
        def turns(self, model: nn.Module, batch: Any) -> Any:
            yield "only", mean_over_tokens(model(batch[0]), batch)

    loop, _, _, places = train(
        Turns(),
        accumulate=3,
        epochs=1,
        optimizer=None,
        optimizers={"only": {**SGD, "params": ["*"]}},
    )
    assert_equal(loop.state.module, train_by_hand(Sequences(), join(places, 3)))


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), None, "many", torch.ones(2)])
def test_weight_that_is_no_number_is_refused(value: Any) -> None:
    @dataclass
    class Wrong(Sequences):
        def weight(self, batch: Any) -> Any:
            return value

    with pytest.raises(TaskError, match=r"weight\(\).*a number of at least 0"):
        train(Wrong())


def test_task_without_weights_has_none_of_this() -> None:
    @dataclass
    class Plain(Sequences):
        weight: float = 1.0  # type: ignore[assignment]  # a field of this name is not the method

    loop, _, _, _ = train(Plain(), epochs=1)
    assert loop.training.iterations.stages.weighed is None
    assert loop.state.loss_weight is None
