"""An evaluation: the metrics of a stored checkpoint, measured as its run measures its own. It is a run's folder under
that of the run. Driver."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, count
from pathlib import Path
from typing import Any, Literal, cast

from hooks.hook import EVENTS, Hook
from orchestrator.checkpoint.store import CheckpointStore
from orchestrator.config.load import experiment_from_source, to_dict, to_yaml, with_overrides
from orchestrator.config.resolve import ResolvedExperiment, resolve
from orchestrator.config.sections.experiment import Experiment
from orchestrator.config.sections.workers import rank_count_overrides
from orchestrator.config.text.layers import read_overrides
from orchestrator.config.text.reader import Document, join
from orchestrator.engines.ray_environment import chosen_address
from orchestrator.engines.session import Subject
from orchestrator.errors import CheckpointError, ConfigError, Problem, UsageError, did_you_mean
from orchestrator.loop.model.weight_sources import find_for
from orchestrator.records.lease import Lease
from orchestrator.records.metadata import EngineName, Evaluated
from orchestrator.records.new_run import create_run
from orchestrator.records.provenance import collect_provenance
from orchestrator.records.run_folder import EVALUATIONS, RunFolder
from orchestrator.runs.launch import chosen_engine, drive, refuse_what_cannot_be
from orchestrator.runs.model import not_found
from orchestrator.task import trains_itself

Kind = Literal["val", "test"]

_READ = (
    "task_args",
    "init",
    "seed",
    "precision",
    "channels_last",
    "compile",
    "sync_batchnorm",
    "deterministic",
    "cudnn_benchmark",
    "float32_matmul_precision",
    "loader.eval_batch_size",
    "loader.num_workers",
    "loader.pin_memory",
    "workers",
    "hang",
    "max_failures",
    "environment",
    "upload_interval_s",
)
"""What of an experiment an evaluation reads, beside its hooks."""
_LISTED = f"{', '.join(_READ)} and hooks"
_OF_TRAINING: Mapping[str, Any] = {
    "init": None,
    "scaler": {},
    "workers.ddp": {},
    "activation_checkpointing": None,
}
"""What only training reads, and what could contradict another number of ranks or precision."""
_NEVER_FIRED = ("on_backward", "on_gradients", "on_update", "on_save", "on_saved")


@dataclass(frozen=True)
class Evaluation:
    """A checkpoint that is to be measured, and with what."""

    run: RunFolder
    subject: Evaluated
    experiment: Experiment
    asks_ranks: bool = False
    """Whether the number of ranks was said."""

    @classmethod
    def of(
        cls, run: RunFolder, label: str, phase: Kind, overrides: Iterable[str] = (), workers: int | None = None
    ) -> Evaluation:
        """That of a checkpoint, `best`, `last` or a name, with `key=value` overrides over the run's experiment, on as
        many `workers` where that is said.

        Raises UsageError where there is no such checkpoint, it is damaged, the run had no such data, or its task cannot
        be imported; ConfigError for an override that is wrong, or that nothing would read.
        """
        overrides = list(overrides)
        asks_ranks = any(one.startswith(("workers=", "workers.count=")) for one in overrides)
        if workers is not None and asks_ranks:
            raise UsageError(f"{workers} workers are asked for, and workers.count is overridden too; say one of them")
        if phase not in ("val", "test"):
            raise UsageError(f"phase is val or test, got {phase!r}")
        if run.metadata().evaluates:
            raise UsageError(f"{run} is an evaluation, and has no checkpoints; evaluate the run, {run.evaluated_run()}")
        subject = _subject(run, label, phase, any(one.startswith("task_args") for one in overrides))
        source = replace(run.source(), continued_from=None)
        source = replace(source, import_paths=tuple(dict.fromkeys([*source.import_paths, str(Path.cwd())])))
        try:
            trained = resolve(source)
        except ConfigError as error:
            raise not_found(run, "evaluated", error) from None
        if trains_itself(type(trained.task)):
            raise UsageError(
                f"{run} was trained by its task's own train(), which alone knows how to measure a checkpoint"
            )
        _refuse_unread(trained, overrides)
        source = source.with_values({**_OF_TRAINING, **_without_training(trained)})
        if workers is not None:
            source = source.with_values(rank_count_overrides(workers))
        experiment = with_overrides(source, overrides) if overrides else experiment_from_source(source)
        _refuse_hooks_of_training(trained, experiment)
        return cls(run, subject, experiment, asks_ranks or workers is not None)

    def start(self, engine: EngineName | None, address: str | None, *, local: bool) -> RunFolder:
        """Measures it to the end, on the run's own engine where none is said; gives the folder. Raises RunError where
        it fails."""
        made_by = self.run.launched()
        engine = (
            chosen_engine(engine, local) if engine or local else made_by.engine or chosen_engine(None, made_by.local)
        )
        ranks = self.experiment.workers.max_count
        if engine == "in-process" and self.asks_ranks and ranks > 1:
            raise UsageError(
                f"{ranks} workers are asked for, and the engine in-process is a single one; say another engine, gang or"
                " train (--engine gang)"
            )
        address = chosen_address(address, local=engine == "in-process")
        refuse_what_cannot_be(self.experiment, engine, address)
        metadata = {
            **collect_provenance(self.experiment.import_paths),
            "source": self.experiment.source,
            "engine": engine,
            "local": engine == "in-process",
            "seed": self.experiment.seed,
            "evaluates": asdict(self.subject),
            "init": find_for(self.experiment),
        }
        around = self.run.storage / EVALUATIONS
        taken = around.names()
        stem = "-".join(
            filter(
                None,
                [self.subject.checkpoint, self.subject.phase, _named_weights(self.experiment, self.subject.checkpoint)],
            )
        )
        name = next(one for one in chain([stem], (f"{stem}-{number}" for number in count(2))) if one not in taken)
        with Lease(around / name) as lease:
            folder = create_run(around, name, to_yaml(self.experiment), **metadata)
            again = (
                f"hookyard evaluate {shlex.quote(f'{self.run}@{self.subject.checkpoint}')} --phase {self.subject.phase}"
            )
            rewinds = self.experiment.seed == self.run.experiment()["seed"]
            subject = Subject(self.subject.checkpoint, self.subject.phase, rewinds)
            drive(folder, self.experiment, engine, address, lease, how_to_go_on=again, subject=subject)
        return folder


def _named_weights(experiment: Experiment, checkpoint: str) -> str:
    """What in an evaluation's name says which weights take the place of the checkpoint's."""
    name = Path(experiment.init.source).name if experiment.init else ""
    return re.sub(r"[^\w.-]", "-", name.removesuffix(".pt").removesuffix(".safetensors").removeprefix(f"{checkpoint}-"))


def _subject(run: RunFolder, label: str, phase: Kind, other_data: bool) -> Evaluated:
    """What is measured; raises UsageError where it is not there, or the run had no such data and has not been given
    other."""
    store = CheckpointStore(run.kept_checkpoints(), run.name)
    try:
        name = store.resolve(label)
        sha256, manifest, position = store.verify(name), store.manifest(name), store.position(name)
    except CheckpointError as error:
        raise UsageError(str(error)) from None
    phases = manifest.get("phases", [phase])
    if not other_data and not any(one.partition("/")[0] == phase for one in phases):
        raise UsageError(f"{run} has no {phase} data: data() of its task gave {', '.join(phases)} when {name} was made")
    return Evaluated(str(run), name, sha256, position.epoch, position.step, phase)


def _without_training(trained: ResolvedExperiment) -> dict[str, Any]:
    """Values by which hooks that have no part in an evaluation are off, and what would change them in flight is
    gone."""
    required = trained.task.required_hooks()
    off = [name for name, hook in trained.hooks.items() if not hook.evaluates and name not in required]
    changes = [
        {
            **change,
            "set": {
                path: value
                for path, value in change["set"].items()
                if path.startswith("hooks.") and path.split(".")[1] not in off
            },
        }
        for change in to_dict(trained.experiment)["changes"]
    ]
    return {**{f"hooks.{name}": None for name in off}, "changes": [change for change in changes if change["set"]]}


# Overrides


def _refuse_unread(trained: ResolvedExperiment, overrides: Sequence[str]) -> None:
    """Raises ConfigError for overrides that no evaluation reads."""
    document = Document({})
    values = read_overrides(document, overrides)
    problems = [problem for path, value in values for problem in _unread(trained, path, value)]
    if problems:
        raise ConfigError([*document.problems, *map(document.locate, problems)])


def _unread(trained: ResolvedExperiment, path: str, value: Any) -> Iterator[Problem]:
    if path.partition(".")[0] == "hooks":
        entries = (
            {path: value} if path != "hooks" else {f"hooks.{name}": entry for name, entry in _mapping(value).items()}
        )
        yield from (problem for entry, said in entries.items() for problem in _unread_of_hook(trained, entry, said))
        return
    for leaf in _leaves(path, value):
        if leaf.startswith("workers.ddp") or not any(f"{leaf}.".startswith(f"{read}.") for read in _READ):
            near = did_you_mean(leaf, _READ)
            yield Problem(
                leaf, f"is read by no evaluation{'' if near else f', which reads {_LISTED}'}", suggestion=near
            )


def _unread_of_hook(trained: ResolvedExperiment, path: str, value: Any) -> Iterator[Problem]:
    """A hook of the run may be left out, and others may come; but it goes on as the run had it."""
    name = path.split(".")[1]
    own = trained.hooks.get(name)
    if own is not None and not _takes_part(own):
        yield Problem(path, "is read by no evaluation: that hook has no part in it")
    elif own is not None and (path != f"hooks.{name}" or value not in (None, False)):
        yield Problem(path, f"cannot be otherwise than the run had it; hooks.{name}=false leaves it out")
    elif own is None and value in (None, False):
        yield Problem(path, "is off already")


def _refuse_hooks_of_training(trained: ResolvedExperiment, experiment: Experiment) -> None:
    """Raises ConfigError for hooks that were added and have no part in an evaluation."""
    added = {name: hook for name, hook in resolve(experiment.source).hooks.items() if name not in trained.hooks}
    wrong = [
        Problem(f"hooks.{name}", "is read by no evaluation: that hook has no part in it")
        for name, hook in added.items()
        if not _takes_part(hook)
    ]
    if wrong:
        raise ConfigError(wrong)


def _takes_part(hook: Hook) -> bool:
    return hook.evaluates and any(hook.handles(event) for event in EVENTS if event not in _NEVER_FIRED)


def _leaves(path: str, value: Any) -> list[str]:
    """The dotted paths of all that a value says."""
    return [leaf for key, one in _mapping(value).items() for leaf in _leaves(join(path, key), one)] or [path]


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], value) if isinstance(value, Mapping) else {}
