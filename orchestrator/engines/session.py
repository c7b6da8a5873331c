"""A session: one attempt of a run, or of runs that share a training run, in one worker process with
any engine."""

from __future__ import annotations

import logging
import sys
from collections import ChainMap
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from inspect import GEN_CREATED, getgeneratorstate
from typing import TYPE_CHECKING, Any

import torch

from hooks.loop_services import Display
from orchestrator.disk.artifacts import Artifacts
from orchestrator.disk.attempts import (
    Attempt,
    DataOrder,
    Host,
    LeadingAttempt,
    rank_folder,
    write_attempt,
)
from orchestrator.disk.checkpoint_folder import find_checkpoint_folder, make_checkpoint_folder
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.disk.hang import FOLDER as HANG_REPORTS
from orchestrator.disk.hang import HangReports
from orchestrator.disk.metadata import now
from orchestrator.disk.process import is_pid_alive
from orchestrator.disk.repeated_reports import (
    RepeatedReports,
    compute_fingerprints,
    find_repeated_reports,
)
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines.hang_watch import HangWatch, end_process
from orchestrator.engines.ray_data import data_of, may_use_ray_data
from orchestrator.errors import HookyardError, UsageError
from orchestrator.experiment.load import to_dict
from orchestrator.experiment.resolve import ResolvedExperiment, resolve
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.yaml.source import ExperimentSource
from orchestrator.loop.custom_loop import CustomLoop
from orchestrator.loop.data.phases import DataOf
from orchestrator.loop.loop import EvaluationLoop, Loop
from orchestrator.loop.model.torch_settings import thread_count, torch_threads
from orchestrator.loop.report import Report, produce_within
from orchestrator.loop.shared_training import RUN_NOTE_PREFIX, SharedLoop, SharedTraining
from orchestrator.loop.training_loop import RunContext, TrainingRun
from orchestrator.loop.world import World
from orchestrator.task import has_custom_loop
from orchestrator.user_code import MAIN

if TYPE_CHECKING:
    from orchestrator.engines.mailbox import MailboxLink


@dataclass(frozen=True)
class EvaluationTarget:
    """The checkpoint that an evaluation loads from its parent run, and the data to evaluate on:
    `val` or `test`."""

    checkpoint: str
    phase: str
    rewinds: bool = True
    """True to start from the random state of the run's own evaluation; False if the seed
    differs."""


@dataclass(frozen=True)
class Assignment:
    """Description of a worker's run, as plain data."""

    source: ExperimentSource
    location: str
    """The run's folder."""
    mailbox: str | None = None
    """Name of rank 0's mailbox, if it has one."""
    checkpoint: str | None = None
    """Path of the checkpoint to start from, of this run or another; by default this run's
    newest."""
    sweep: dict[str, Any] | None = None
    """The `sweep` section of a trial's sweep, for the hooks' config."""
    followers: tuple[Assignment, ...] = ()
    """Runs that share the training of this run."""
    target: EvaluationTarget | None = None
    """Checkpoint to evaluate; None to train."""


_log = logging.getLogger("hookyard")

SWEEP_KEEPS = 4
"""Number of checkpoints to keep for a sweep, because another trial may exploit one later."""


class Session:
    """An attempt of a run in one worker process, which builds and runs the loop. Used in workers.

    Rank 0 sends lines and progress to its mailbox, if it has one, otherwise to the `display`.
    `end_hung` ends this rank if it hangs and `hang.action` is `fail`. `resolved` is the
    assignment's experiment, if already resolved.
    """

    def __init__(
        self,
        assignment: Assignment,
        world: World,
        resolved: ResolvedExperiment | None = None,
        *,
        display: Display | None = None,
        stop_requested: Callable[[], bool] = lambda: False,
        data_of: DataOf = data_of,
        end_hung: Callable[[str], None] | None = end_process,
    ) -> None:
        self.assignment, self.world = assignment, world
        self.folder = RunFolder(assignment.location)
        self._already_resolved, self._display = resolved, display
        self._stop_requested, self._end_hung = stop_requested, end_hung
        self._link: MailboxLink | None = None
        if assignment.mailbox and world.is_master:
            from orchestrator.engines.mailbox import MailboxLink

            # Only rank 0 checks the mailbox, because the ranks agree on when to stop.
            self._display = self._link = link = MailboxLink(assignment.mailbox)
            self._stop_requested = lambda: link.stop_requested() or stop_requested()
        self._data_of = data_of
        self._loop: TrainingRun | None = None
        self._store: CheckpointStore | None = None
        self._attempt: Attempt | None = None
        self.followers: Sequence[Session] = ()
        """Sessions that share this training run; set before `reports`."""

    @cached_property
    def _resolved(self) -> ResolvedExperiment:
        return self._already_resolved or resolve(self.assignment.source)

    def prepare(self) -> CheckpointStore:
        """Resolve the experiment, and return its checkpoints; an evaluation uses those of its
        parent run."""
        if self.assignment.target:
            parent = self.folder.evaluated_run()
            self._store = CheckpointStore(
                find_checkpoint_folder(parent), parent.name, is_master=False
            )
            return self._store
        out_dir = getattr(self._resolved.hooks.get("checkpoint"), "out_dir", None)
        self._store = CheckpointStore(
            make_checkpoint_folder(self.folder, out_dir), self.folder.name, self.world.is_master
        )
        return self._store

    def reports(self) -> Generator[Report, None, None]:
        """Train from the assignment's checkpoint or the newest one, or evaluate the target; yield
        each report."""
        yield from produce_within(
            partial(torch_threads, thread_count(self._resolved.experiment)), self._train()
        )

    def _train(self) -> Generator[Report, None, None]:
        attempt = self._attempt or self._begin()
        hang_reports = HangReports(self.folder, attempt.number, self.world.world_size)
        with HangWatch(
            hang_reports, self.world, self._resolved.experiment.hang, self._end_hung
        ) as watch:
            loop = self._loop or self._build(attempt)
            watch.follow(loop.state)
            yield from self._write_reports(loop, attempt, watch)

    def _begin(self) -> Attempt:
        """Begin an attempt at the assignment's checkpoint or the newest one; collective."""
        store, world, assigned = self.prepare(), self.world, self.assignment.checkpoint
        hosts = world.gather(
            Host(
                world.rank,
                world.node,
                world.local_rank,
                str(world.device),
                torch.__version__,
                torch.get_num_threads(),
            )
        )
        checkpoint = None
        if self.assignment.target is None:
            world.broadcast(partial(_recover, store))
            if assigned:
                checkpoint = world.broadcast(partial(store.reset_to, assigned))
            else:
                checkpoint = store.find_latest(self._show_skipped, world)
        attempt: Attempt = world.broadcast(partial(self._record_start, store, checkpoint, hosts))
        self._attempt = attempt
        return attempt

    def _show_skipped(self, reason: str) -> None:
        if self._display is not None:
            self._display.line(f"left out: {reason}")
        elif self.world.is_master:
            _log.warning("left out: %s", reason)

    def _record_start(
        self, store: CheckpointStore, checkpoint: str | None, hosts: Sequence[Host]
    ) -> Attempt:
        """Record the start of an attempt, and show where it continues. Called on rank 0."""
        self.folder.storage.delete(HANG_REPORTS)
        is_assigned = self.assignment.checkpoint or self.assignment.source.continued_from
        if checkpoint and not is_assigned and not self.folder.read_attempts():
            path = store.get_path(checkpoint)
            raise UsageError(
                f"{path} belongs to an earlier run; move it away, or choose another out_dir or name"
            )
        position = store.read_position(checkpoint) if checkpoint else None
        attempt = self.folder.begin_attempt(checkpoint, position, hosts, self.world.world_size)
        if self._display is not None and attempt.number:
            start = (
                f"Resumed from {checkpoint}"
                if checkpoint
                else "Started from scratch: there is no checkpoint"
            )
            nodes = ", ".join(dict.fromkeys(host.node for host in hosts))
            self._display.line(
                f"{start}; {len(hosts)} rank{'s' if len(hosts) > 1 else ''} on {nodes}"
            )
        return attempt

    def _write_reports(
        self, loop: TrainingRun, attempt: Attempt, watch: HangWatch
    ) -> Generator[Report, None, None]:
        """Write the loop's reports to the run's folder, and yield them; time in the caller does not
        count as a hang."""
        reports, failure = loop.run(), None
        repeated = self._find_repeated_reports(loop) if self.world.is_master else None
        try:
            for report in reports:
                if self.world.is_master:
                    self.folder.append_metrics(
                        {"attempt": attempt.number, "time": now(), **report.metrics}
                    )
                if repeated and (difference := repeated.find_difference(report.metrics)):
                    loop.state.show(difference)
                    repeated = None
                self._write_info(loop)
                with watch.pause():
                    yield report
        except GeneratorExit:
            raise
        except BaseException as error:
            failure = error
            raise
        finally:
            self._finish(loop, reports, failure)

    def _find_repeated_reports(self, loop: TrainingRun) -> RepeatedReports | None:
        """Return the reports that this attempt repeats, if their differences can be explained."""
        attempt, source = self._attempt, self.assignment.source
        assigned = self.assignment.checkpoint
        assert attempt is not None
        assert self._store is not None
        is_of_other_trial = assigned and assigned.rpartition("/")[0] != self._store.storage.path
        task = type(loop.task)
        # A cell of a notebook may have been edited since.
        is_from_notebook = task.__module__ == MAIN and not hasattr(sys.modules[MAIN], "__file__")
        has_unknown_code = source.main_classes is not None or is_from_notebook
        # Ray Data begins with the first rows after a resume.
        if is_of_other_trial or has_unknown_code or may_use_ray_data(task):
            return None
        return find_repeated_reports(self.folder, attempt, loop.experiment, source.continued_from)

    def _finish(
        self, loop: TrainingRun, reports: Generator[Report], failure: BaseException | None
    ) -> None:
        """End the loop where it is, and write the last files; an earlier `failure` takes precedence
        over new errors."""
        try:
            reports.close()
            self._write_info(loop)
        except (HookyardError, OSError) as error:
            if failure is None:
                raise
            _log.warning("rank %d could not write its last files: %s", self.world.rank, error)
        finally:
            if self._link:
                self._link.finish()
            self._artifacts.close()

    def _build(self, attempt: Attempt) -> TrainingRun:
        """Build the loop and its followers, and restore their checkpoints."""
        resolved, target = self._resolved, self.assignment.target
        task, experiment, hooks = resolved.task, resolved.experiment, resolved.hooks
        context = self._make_context(experiment, attempt)
        # Rank 0 reads the initial weights that were found when the run was created.
        init = (
            self.folder.read_metadata().init if experiment.init and self.world.is_master else None
        )
        data: dict[str, Any] = {"data_of": self._data_of, "origin": init}
        if target:
            loop: TrainingRun = EvaluationLoop(
                task, experiment, hooks, context, kind=target.phase, rewinds=target.rewinds, **data
            )
        elif has_custom_loop(type(task)):
            loop = CustomLoop(task, experiment, hooks, context)
        elif self.followers:
            shared = SharedTraining(
                task, experiment, hooks, context, resumes=attempt.checkpoint is not None, **data
            )
            loop = SharedLoop(shared, experiment, hooks, context)
        else:
            loop = Loop(
                task, experiment, hooks, context, resumes=attempt.checkpoint is not None, **data
            )
        self._restore(loop, attempt)
        if isinstance(loop, SharedLoop):
            leader = LeadingAttempt(self.folder.name, attempt.number)
            for session in self.followers:
                session._follow(loop.shared, leader)
        return loop

    def _follow(self, shared: SharedTraining, leader: LeadingAttempt) -> None:
        """Begin an attempt that shares the training of the leader."""
        attempt = self._attempt = replace(self._begin(), leader=leader)
        experiment = self._resolved.experiment
        loop = SharedLoop(
            shared, experiment, self._resolved.hooks, self._make_context(experiment, attempt)
        )
        self._restore(loop, attempt)

    def _make_context(self, experiment: Experiment, attempt: Attempt) -> RunContext:
        """Return the context in which this run's loop trains."""
        folder, world = self.folder, self.world
        identity = {"rank": world.rank, "node": world.node, "attempt": attempt.number}
        self._artifacts = artifacts = Artifacts(folder.storage, world.rank, world.world_size)
        if attempt.number:
            artifacts.fetch()
        return RunContext(
            world=world,
            recorder=Recorder(
                folder.storage,
                rank_folder(attempt.number, world.rank),
                identity,
                upload_interval_s=experiment.upload_every,
            ),
            store=self._store,
            artifacts=artifacts.folder,
            send_artifacts=artifacts.send,
            display=self._display,
            config={**to_dict(experiment), "sweep": self.assignment.sweep},
            name=folder.name,
            stop_requested=self._stop_requested,
        )

    def _restore(self, loop: TrainingRun, attempt: Attempt) -> None:
        self._loop = loop
        order = None
        if isinstance(loop, Loop):
            settings = to_dict(loop.experiment)
            values = {
                name: settings[name]
                for name in ("seed", "batch_size", "loader", "task", "task_args")
            }
            order = DataOrder(values, loop.training.data.sizes())
        self._attempt = attempt = replace(
            attempt,
            epoch_iterations=loop.cursor.epoch.length or None,
            order=order,
            settings=compute_fingerprints(to_dict(loop.experiment)),
        )
        if self.world.is_master:
            write_attempt(self.folder.storage, attempt)
        if target := self.assignment.target:
            loop.restore(target.checkpoint)
        elif checkpoint := attempt.checkpoint:
            loop.restore(checkpoint)
            samples = self._gather_samples(checkpoint)
            if self.world.is_master and len({*samples}) > 1:
                self._attempt = replace(attempt, samples=samples)
                write_attempt(self.folder.storage, self._attempt)

    def _gather_samples(self, checkpoint: str) -> list[int]:
        """Return the training samples of all ranks that saved a restored checkpoint, in their
        order; collective."""
        assert self._loop is not None
        assert self._store is not None
        rank, saved = self.world.rank, self._store.read_manifest(checkpoint)["world_size"]
        ranks = range(rank, saved, self.world.world_size)
        # Ranks that no longer exist have left rows, too.
        lost = {
            other: self._store.load(checkpoint, f"rank-{other:04d}.pt")["position"]
            for other in ranks[1:]
        }
        counts = {other: position["samples"] for other, position in lost.items()}
        own = {rank: self._loop.state.samples} if ranks else {}
        samples = ChainMap(*self.world.gather(counts | own))
        return [samples[other] for other in range(saved)]

    def write_end(self) -> None:
        """Record the last iteration of this run; its training may continue for other runs."""
        assert self._loop is not None
        assert self._attempt is not None
        if isinstance(self._loop, SharedLoop):
            self._loop.end_early()
        if self.world.is_master:
            write_attempt(
                self.folder.storage, replace(self._attempt, until=self._loop.state.iteration)
            )

    def close_loop(self) -> None:
        """Close the files of a loop that has not yielded a report, because another run of its
        training failed."""
        if self._loop:
            try:
                self._loop.row_writer.close()
                self._artifacts.close()
            except Exception as error:  # the failure of the other run is the one to report
                _log.warning("rows or files of %s could not be closed: %s", self.folder, error)

    def _write_info(self, loop: TrainingRun) -> None:
        """Write `info.json`, and upload files that hooks wrote."""
        if self.world.is_master:
            self.folder.write_info(loop.state.info)
        self._artifacts.send()

    def save(self) -> str:
        """Write a checkpoint between two reports; return its path. Collective."""
        assert self._loop is not None
        assert self._store is not None
        path = self._loop.save()
        assert path is not None
        previous = (
            self._store.index.read()["owners"].get("sweep", []) if self.world.is_master else []
        )
        name = path.rpartition("/")[2]
        self._store.retain(
            "sweep", [*(other for other in previous if other != name), name][-SWEEP_KEEPS:]
        )
        return path


def _recover(store: CheckpointStore) -> None:
    store.recover()
    store.storage.delete_leftovers(
        is_pid_alive
    )  # an `out_dir` is outside the folder that the driver cleans


class SharedSession:
    """The sessions of an assignment and its followers, which train and report in turn. Used in
    workers.

    Training continues until the last run ends. If one run fails, all end, and a note on the error
    names it.
    """

    def __init__(
        self,
        assignment: Assignment,
        world: World,
        resolved: ResolvedExperiment | None = None,
        **options: Any,
    ) -> None:
        self._world = world
        self.sessions = [
            Session(assignment, world, resolved, **options),
            *(Session(follower, world, **options) for follower in assignment.followers),
        ]
        self._ended_runs: set[int] = set()

    def reports(self) -> Generator[Report, None, None]:
        self._choose_checkpoints()
        leader, *followers = self.sessions
        leader.followers = followers
        reports = [session.reports() for session in self.sessions]
        active, run_index = set(range(len(reports))), 0
        try:
            while active:
                for run_index in sorted(active):
                    if (yield from self._turn(run_index, reports[run_index])):
                        continue
                    active.remove(run_index)
                    self.sessions[run_index].write_end()
                    if run_index:  # the leader is still training
                        reports[run_index].close()
        except Exception as error:
            error.add_note(f"{RUN_NOTE_PREFIX}{find_failed_run(error, run_index)}")
            raise
        finally:
            for session, own in zip(reversed(self.sessions), reversed(reports), strict=True):
                if getgeneratorstate(own) == GEN_CREATED:
                    session.close_loop()
                own.close()

    def _turn(
        self, run_index: int, reports: Generator[Report, None, None]
    ) -> Generator[Report, None, bool]:
        """Yield the next report of a run, and its test report if it stops; return whether the run
        continues."""
        for report in reports:
            yield replace(report, run_index=run_index)
            if report.is_final or run_index in self._ended_runs:
                return False
            if not report.stopped:
                return True
        return False

    def end_run(self, run_index: int) -> None:
        """End a run at its last report."""
        self._ended_runs.add(run_index)

    def save(self) -> str:
        """Raise: schedulers that pause trials exclude shared training."""
        raise NotImplementedError("trials that share a training run are not paused")

    def _choose_checkpoints(self) -> None:
        """Resume all runs from the newest position where all have a checkpoint, or start all from
        scratch."""
        stores = [session.prepare() for session in self.sessions]
        newest = [store.find_latest(group=self._world) for store in stores]
        positions = {
            name and store.read_position(name) for store, name in zip(stores, newest, strict=True)
        }
        if len(positions) == 1:
            return
        common: list[str] | None = self._world.broadcast(partial(_find_newest_common, stores))
        if common is None and self._world.is_master:
            names = ", ".join(session.folder.name for session in self.sessions)
            _log.warning(
                "%s share a training run but have no common checkpoint; they start from scratch",
                names,
            )
        for number, (session, store) in enumerate(zip(self.sessions, stores, strict=True)):
            if common is None:
                self._world.broadcast(store.clear)
            else:
                session.assignment = replace(
                    session.assignment, checkpoint=store.get_path(common[number])
                )


def find_failed_run(error: BaseException, otherwise: int = 0) -> int:
    """Return the index of the run that failed, from a note on the error or on its cause."""
    notes = [note for note in getattr(error, "__notes__", ()) if note.startswith(RUN_NOTE_PREFIX)]
    if notes:
        return int(notes[0].removeprefix(RUN_NOTE_PREFIX))
    return find_failed_run(error.__cause__, otherwise) if error.__cause__ else otherwise


def make_session(
    assignment: Assignment, world: World, resolved: ResolvedExperiment | None = None, **options: Any
) -> Session | SharedSession:
    return (SharedSession if assignment.followers else Session)(
        assignment, world, resolved, **options
    )


def _find_newest_common(stores: Sequence[CheckpointStore]) -> list[str] | None:
    """Return each store's checkpoint at the newest position that all have in common; None if there
    is none."""
    by_position = [
        {store.read_position(name): name for name in store.list_names()} for store in stores
    ]
    common = set.intersection(*map(set, by_position))
    return [names[max(common)] for names in by_position] if common else None
