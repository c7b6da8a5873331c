"""Where data ends: a run that is killed at any event and resumed is the undisturbed run, whatever
its data is."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torchdata.stateful_dataloader import StatefulDataLoader

from hooks import Hook, State
from hooks.hook import EVENTS
from orchestrator.disk.new_run import create_run
from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.session import Session
from orchestrator.experiment.load import make_experiment, to_yaml
from orchestrator.experiment.yaml.dotted_paths import with_value
from orchestrator.loop.world import World
from orchestrator.runs.result import Run
from tests.iterable_tasks import IterablePoints
from tests.ranks import on_ranks
from tests.tasks import Points, PointSet

HERE = __name__
HEAVY = 39
"""A sample of the second rank in the first epoch."""


class OwnLoader:
    """Gives batches in the order of the points, keeps its place between two calls of `__iter__`,
    and counts passes."""

    def __init__(self, points: PointSet, is_sized: bool) -> None:
        self.points, self.place, self.passes = points, 0, 0
        if is_sized:
            self.__class__ = _Sized

    def __iter__(self) -> Iterator[Any]:
        while self.place < len(self.points):
            begin, self.place = self.place, self.place + 8
            rows = [
                self.points[(row + self.passes) % len(self.points)]
                for row in range(begin, self.place)
            ]
            points, labels, places = zip(*rows[: len(self.points) - begin], strict=True)
            yield torch.stack(points), torch.stack(labels), torch.tensor(places)
        self.place, self.passes = 0, self.passes + 1

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place, "passes": self.passes}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place, self.passes = state["place"], state["passes"]


class _Sized(OwnLoader):
    def __len__(self) -> int:
        return -(-len(self.points) // 8)


LOADERS: dict[str, Callable[[PointSet], Any]] = {
    "own": lambda points: OwnLoader(points, False),
    "own, sized": lambda points: OwnLoader(points, True),
    "torchdata": lambda points: StatefulDataLoader(points, 8, shuffle=True),
}


@dataclass
class Drawing(IterablePoints):
    """Draws numbers everywhere: as a sample is fetched, in training and in validation."""

    own: str = ""
    weighted: bool = False

    def data(self) -> Any:
        data = super().data()
        if self.own:
            data["train"] = LOADERS[self.own](Points.data(self)["train"])
        return data

    def batch_size(self, batch: Any) -> int:
        """Count words, of which the sample HEAVY has many, so ranks train on different numbers."""
        return int((1 + (batch[2] == HEAVY) * 1000).sum())

    def metrics(self, output: Any, batch: Any) -> Any:
        return {"drawn": torch.rand(self.batch_size(batch))}

    def sampler(self, dataset: Any, phase: str) -> Any:
        return (
            [1.0 + place % 3 for place in range(len(dataset))]
            if self.weighted and phase == "train"
            else None
        )


class Killed(BaseException):
    """Stands for a signal that ends the process."""


class Seen(NamedTuple):
    """A training batch that was trained on."""

    epoch: int
    iteration: int
    samples: tuple[int, ...]


CALLS: list[str] = []
SEEN: list[Seen] = []


@dataclass
class Dies(Hook):
    """Asks for a checkpoint wherever there can be one, and ends the run at an event, counted from
    1."""

    at: int = 0
    dies_after: int = 0
    """The iteration whose checkpoint is the last thing that the run does, if not 0."""
    every: int = 2
    collective: ClassVar[bool] = True

    def heard(self, event: str, state: State) -> None:
        CALLS.append(f"{event} {state.phase}")
        if event == "on_step" and state.phase == "train" and state.step % self.every == 0:
            state.request_checkpoint("step")
        if event == "on_phase_end":
            state.request_checkpoint("phase")
        if event == "on_batch" and state.phase == "train":
            SEEN.append(Seen(state.epoch, state.iteration + 1, tuple(state.batch[2].tolist())))
        is_saved = event == "on_saved" and state.iteration == self.dies_after
        if len(CALLS) == self.at or is_saved:
            raise Killed


for _event in EVENTS:
    if _event not in ("on_exception", "on_load", "on_end"):
        setattr(Dies, _event, lambda self, state, *_, _event=_event: self.heard(_event, state))

KINDS: dict[str, dict[str, Any]] = {
    "map-style": {},
    "map-style, in processes": {"loader.num_workers": 1},
    "own sampler": {"task_args.weighted": True, "loader.drop_last": True},
    "torchdata": {"task_args.own": "torchdata"},
    "own, sized": {"task_args.own": "own, sized"},
    "own": {"task_args.own": "own", "epoch_steps": 4},
    "ends with an epoch": {"epoch_steps": 3, "task_args.train": 48, "epochs": 9, "loader.on_exhausted": "stop"},
    "ends with a validation": {"epoch_steps": 7, "validate_every": "3 steps", "task_args.train": 48, "epochs": 9,
                               "loader.on_exhausted": "stop"},
    "ends within a step": {"epochs": None, "steps": 99, "accumulate": 2, "task_args.train": 40,
                           "validate_every": "2 steps", "loader.on_exhausted": "stop"},
    "own, ends with an epoch": {"task_args.own": "own", "epoch_steps": 3, "task_args.train": 48, "epochs": 9,
                                "loader.on_exhausted": "stop"},
}  # fmt: skip


def written(root: Path, kind: str, **changes: Any) -> Assignment:
    fields: dict[str, Any] = {
        "name": "run",
        "task": f"{HERE}:Drawing",
        "epochs": 3,
        "batch_size": 8,
        "optimizer": {"type": "SGD", "lr": 0.1, "momentum": 0.9},
        "task_args": {
            "batch_norm": True,
            "dropout": 0.3,
            "noisy": True,
            "val": 11,
            "test": 5,
            "kind": "shuffled",
        },
        "hooks": {
            "console": None,
            "memory_stats": None,
            "checkpoint": {"every": 0, "best": None, "save_last": False},
            "dies": {"type": f"{HERE}:Dies"},
        },
    }
    if "map-style" in kind or "sampler" in kind:
        fields["task_args"]["map_style"] = "train val test"
    for path, value in {**KINDS.get(kind, {}), **changes}.items():
        fields = with_value(fields, path, value)
    experiment = make_experiment(fields)
    return Assignment(experiment.source, str(create_run(root, "run", to_yaml(experiment))))


def run_loop(
    assignment: Assignment, at: int = 0, world: World | None = None, **changes: Any
) -> list[str]:
    """Trains until the event at which the run is to die; returns the events."""
    CALLS.clear()
    source = assignment.source.with_values({"hooks.dies.at": at, **changes})
    try:
        for _ in Session(Assignment(source, assignment.location), world or World()).reports():
            pass
    except Killed:
        pass
    return [*CALLS]


def left(location: str) -> tuple[Any, Any, Any]:
    """The reports, rows and weights of a run."""
    run = Run(RunFolder(location))
    reports = run.metrics.drop(
        columns=[name for name in ("attempt", "time") if name in run.metrics]
    )
    rows = run.stats[["phase", "epoch", "iteration", "step", "samples", "batch_size", "loss"]]
    assert not rows.duplicated(["phase", "epoch", "iteration"]).any()
    weights = {name: tensor.tolist() for name, tensor in run.weights("last").items()}
    told = [
        row.dropna().to_dict()
        for _, row in reports[sorted(name for name in reports if "_s" not in name)].iterrows()
    ]
    return told, rows.sort_values(["phase", "epoch", "iteration"]).to_dict("records"), weights


def places(events: Sequence[str]) -> list[int]:
    """Events to die at: in the last two training phases, at their ends, and in what follows
    each."""
    ends = [number for number, event in enumerate(events, start=1) if event == "on_phase_end train"]
    following = (
        "on_saved train",
        "on_step val",
        "on_phase_end val",
        "on_report val",
        "on_step train",
        "on_step test",
    )
    return sorted(
        {
            number
            for end, after in zip(ends[-2:], (following[:1], following), strict=False)
            for number in (
                end - 1,
                end,
                *(events.index(one, end) + 1 for one in after if one in events[end:]),
            )
        }
    )


def undisturbed(kind: str, root: Path) -> tuple[list[str], tuple[Any, Any, Any]]:
    calm = written(root, kind)
    return run_loop(calm), left(calm.location)


@pytest.mark.parametrize("kind", KINDS)
def test_killed_run_resumes_bit_for_bit(kind: str, tmp_path: Path) -> None:
    events, expected = undisturbed(kind, tmp_path / "calm")
    told = [(report["epoch"], report["iteration"]) for report in expected[0]]
    assert len(told) == len(set(told)) + 1, "one of val and one of test at the end"
    # Each kind dies at other events, so that all kinds together die at each.
    for at in places(events)[list(KINDS).index(kind) % 6 :: 6]:
        killed = written(tmp_path / str(at), kind)
        assert len(run_loop(killed, at)) == at
        run_loop(killed)
        assert left(killed.location) == expected, f"killed at {at}, {events[at - 1]}"


# Changed on the way


CHANGES: list[dict[str, Any]] = [
    {"batch_size": 3},
    {"batch_size": 16},
    {"batch_size": 64},
    {"batch_size": 16, "loader.drop_last": True},
    {"batch_size": 44, "loader.drop_last": True},
    {"loader.drop_last": True, "epochs": 3},
    {"epochs": 1},
    {"loader.num_workers": 1, "batch_size": 16},
]
CHANGED = {
    "map-style": {"map_style": "train val"},
    "own sampler": {"map_style": "train val", "weighted": True},
}


class Changed(NamedTuple):
    """What a run saw up to a checkpoint and after it, and the epochs and steps of its reports."""

    before: list[Seen]
    after: list[Seen]
    reports: list[tuple[int, int]]


def changed(
    root: Path, kind: str, iteration: int, change: dict[str, Any], *worlds: World | None
) -> Changed:
    """Trains up to the checkpoint of an iteration in one world, and on in another."""
    of_task = {"train": 50, "test": 0, "batch_norm": False, **CHANGED[kind]}
    given = {
        "epochs": 2,
        **{f"task_args.{name}": value for name, value in of_task.items()},
        "hooks.dies.every": 1,
    }
    assignment = (
        written(root, "changed", **given)
        if all(world is None or world.is_master for world in worlds)
        else None
    )
    if assignment is None or worlds[0] != worlds[1]:
        assignment = World(dist.get_rank(), 2).broadcast(lambda: assignment)
    seen: list[list[Seen]] = []
    for world, values in zip(worlds, ({"hooks.dies.dies_after": iteration}, change), strict=True):
        SEEN.clear()
        if world:
            run_loop(assignment, world=world, **values)
        if worlds[0] != worlds[1]:
            dist.barrier()
        seen.append([*SEEN])
    run = Run(RunFolder(assignment.location))
    metrics, validated = (
        run.metrics,
        run.stats.query("phase == 'val'").groupby("epoch")["batch_size"].sum(),
    )
    assert {*validated} == {11}, "every sample of val has one row in an epoch"
    return Changed(seen[0], seen[1], list(zip(metrics["epoch"], metrics["step"], strict=True)))


def expect_the_rest_once(
    kind: str, change: dict[str, Any], ranks: Sequence[Changed], world_size: int
) -> None:
    before = [seen for one in ranks for seen in one.before]
    epoch = max(seen.epoch for seen in before)
    after = [seen for one in ranks for seen in one.after]
    trained = [place for seen in (*before, *after) if seen.epoch == epoch for place in seen.samples]
    together = change.get("batch_size", 8) * world_size
    left = 50 - sum(len(seen.samples) for seen in before if seen.epoch == epoch)
    repeated = -left % world_size if left > 0 else 0
    whole = 50 + repeated if left > 0 else 50 - left
    assert len(trained) == whole - (
        (left + repeated) % together if change.get("loader.drop_last") else 0
    )
    if kind != "own sampler":
        assert len(trained) - len({*trained}) <= max(repeated, -left)
    reports = ranks[0].reports
    assert len(reports) == len({*reports})
    assert reports[-1][0] == max(change.get("epochs", 2), epoch + (left > 0)) - 1


@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_resume_with_other_settings_sees_the_remaining_samples_once(
    number: int, tmp_path: Path
) -> None:
    change, kind = CHANGES[number], list(CHANGED)[number % 2]
    iteration = (1, 6, 7, 8)[
        number // 2
    ]  # the first, in the middle of an epoch, its last, and the first of the next
    run = changed(tmp_path, kind, iteration, change, World(), World())
    assert run.before[-1].iteration == iteration
    expect_the_rest_once(kind, change, [run], 1)


ON_RANKS = [
    (kind, iteration, {"loader.drop_last": drops, "batch_size": size}, counts)
    for kind in ("map-style", "own sampler")
    for counts, iteration, size, drops in (
        ((1, 2), 4, 8, True),
        ((1, 2), 6, 3, False),
        ((2, 1), 3, 8, True),
        ((2, 1), 2, 20, False),
        ((2, 1), 4, 8, False),
        ((2, 1), 5, 8, False),
    )
]


def _on_ranks(rank: int, world_size: int, root: str) -> list[Changed]:
    world, runs = World(rank, world_size, rank), []
    for number, (kind, iteration, change, counts) in enumerate(ON_RANKS):
        worlds = [world if count > 1 else World() if rank == 0 else None for count in counts]
        runs.append(changed(Path(root, str(number)), kind, iteration, change, *worlds))
    return runs


def test_resume_on_other_ranks_sees_the_remaining_samples_once(tmp_path: Path) -> None:
    for case, *ranks in zip(ON_RANKS, *on_ranks(_on_ranks, 2, str(tmp_path)), strict=True):
        expect_the_rest_once(case[0], case[2], ranks, case[3][1])
