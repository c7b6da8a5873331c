"""A session: one attempt at a run in one worker process, wherever that process runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from hooks.state import Display
from orchestrator.checkpoint.store import CheckpointStore
from orchestrator.config.load import to_dict
from orchestrator.config.resolve import ResolvedExperiment, resolve
from orchestrator.config.sections.experiment import Experiment
from orchestrator.config.text.source import ExperimentSource, InitialWeights
from orchestrator.engines.hang_watch import HangWatch, end_process
from orchestrator.engines.ray_data import data_of
from orchestrator.errors import HookyardError, UsageError
from orchestrator.loop.custom_loop import CustomLoop
from orchestrator.loop.data.phases import DataOf
from orchestrator.loop.loop import EvaluationLoop, Loop
from orchestrator.loop.model.torch_settings import thread_count, torch_threads
from orchestrator.loop.report import Report
from orchestrator.loop.rounds import Rounds
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.shared_training import Follower, Leader
from orchestrator.loop.world import World
from orchestrator.records.artifacts import Artifacts
from orchestrator.records.hang import FOLDER as HANG_REPORTS
from orchestrator.records.hang import HangReports
from orchestrator.records.metadata import Attempt, DataOrder, Host, SharedTraining
from orchestrator.records.process import is_pid_alive
from orchestrator.records.run_folder import RunFolder, now
from orchestrator.stats.write.recorder import Recorder
from orchestrator.task import trains_itself

if TYPE_CHECKING:
    from orchestrator.engines.mailbox import MailboxLink


@dataclass(frozen=True)
class Subject:
    """What an evaluation measures: a checkpoint of the run in whose folder it lies, on the phases of `val` or of
    `test`."""

    checkpoint: str
    phase: str
    rewinds: bool = True
    """Whether random numbers begin where they did for the run's own report; with another seed they do not."""


@dataclass(frozen=True)
class Assignment:
    """What a worker is told: plain data that travels to any process."""

    source: ExperimentSource
    location: str
    """The run's folder."""
    mailbox: str | None = None
    """The name of rank 0's mailbox, where it has one."""
    checkpoint: str | None = None
    """The path of a stored checkpoint to go on from, of this run or of another; its newest where it is not said."""
    sweep: dict[str, Any] | None = None
    """The `sweep` section that a trial is of: hooks find it in their config, though the trial's own experiment has
    none."""
    followers: tuple[Assignment, ...] = ()
    """The runs that share its training."""
    subject: Subject | None = None
    """What is measured; None where the run is trained."""


_log = logging.getLogger("hookyard")

SWEEP_KEEPS = 4
"""How many of the checkpoints that a sweep asked for stay: others may go on from one a while after it was made."""


class Session:
    """One attempt at a run in one worker process: builds the loop when its reports are first asked for, and drives it.

    Rank 0 shows what it has to its mailbox, where it has one, else to the `display`.
    `end_hung` ends this rank where it hangs and `hang.action` is `fail`.
    `resolved` is the assignment's experiment where this process has resolved it already: it trains with these very
    objects. In every worker process: a Ray Train worker, a member of a gang, or the driver's own process.
    """

    def __init__(
        self,
        assignment: Assignment,
        world: World,
        resolved: ResolvedExperiment | None = None,
        *,
        display: Display | None = None,
        stop_asked: Callable[[], bool] = lambda: False,
        data_of: DataOf = data_of,
        end_hung: Callable[[str], None] | None = end_process,
    ) -> None:
        self.assignment, self.world = assignment, world
        self.folder = RunFolder(assignment.location)
        self._resolved, self._display, self._stop_asked, self._end_hung = (
            resolved,
            display,
            stop_asked,
            end_hung,
        )
        self._link: MailboxLink | None = None
        if assignment.mailbox and world.is_master:
            from orchestrator.engines.mailbox import MailboxLink

            # Ranks agree among themselves on when to stop, so that one of them asks the driver.
            self._display = self._link = MailboxLink(assignment.mailbox)
            self._stop_asked = self._link.stop_asked
        self._data_of = data_of
        self._loop: Rounds | None = None
        self._store: CheckpointStore | None = None
        self._attempt: Attempt | None = None
        self._followers: Sequence[Session] = ()

    def prepare(self) -> CheckpointStore:
        """Resolves the experiment; returns where its checkpoints lie: of an evaluation those of the run around it, in
        which it changes nothing."""
        self._resolved = self._resolved or resolve(self.assignment.source)
        if self.assignment.subject:
            around = self.folder.evaluated_run()
            self._store = CheckpointStore(around.kept_checkpoints(), around.name, master=False)
            return self._store
        out_dir = getattr(self._resolved.hooks.get("checkpoint"), "out_dir", None)
        self._store = CheckpointStore(self.folder.checkpoints(out_dir), self.folder.name, self.world.is_master)
        return self._store

    def lead(self, followers: Sequence[Session]) -> None:
        """Has other runs share the training of this one; call it before any reports are asked for."""
        self._followers = followers

    def reports(self) -> Generator[Report, None, None]:
        """Trains, from the assignment's checkpoint or the newest whole one if there is any, or measures its subject;
        yields each report after writing it down."""
        self._resolved = self._resolved or resolve(self.assignment.source)
        threads, reports = thread_count(self._resolved.experiment), self._train()
        try:
            while True:
                with torch_threads(threads):
                    report = next(reports, None)
                if report is None:
                    return
                yield report
        finally:
            with torch_threads(threads):
                reports.close()

    def _train(self) -> Generator[Report, None, None]:
        attempt = self._attempt or self._begin()
        assert self._resolved is not None
        notes = HangReports(self.folder, attempt.number, self.world.world_size)
        with HangWatch(notes, self.world, self._resolved.experiment.hang, self._end_hung) as watch:
            loop = self._loop or self._build(self._resolved, attempt)
            watch.follow(loop.state)
            yield from self._written_down(loop, attempt, watch)

    def _begin(self) -> Attempt:
        store = self.prepare()
        self._attempt = attempt = _begin_attempt(self.folder, store, self.world, self.assignment, self._display)
        return attempt

    def _written_down(self, loop: Rounds, attempt: Attempt, watch: HangWatch) -> Generator[Report, None, None]:
        """The loop's reports, each once it is in the run's folder; while one is looked at, nobody waits for this
        rank."""
        training, failure = loop.run(), None
        try:
            for report in training:
                if self.world.is_master and not report.cut_short:
                    self.folder.append_metrics({"attempt": attempt.number, "time": now(), **report.metrics})
                self._hand_over(loop)
                with watch.paused():
                    yield report
        except GeneratorExit:
            raise
        except BaseException as error:
            failure = error
            raise
        finally:
            self._leave(loop, training, failure)

    def _leave(self, loop: Rounds, training: Generator[Report, None, None], failure: BaseException | None) -> None:
        """Ends the loop where it stands, and hands over what there is; what failed before that is what is told."""
        try:
            training.close()
            self._hand_over(loop)
        except (HookyardError, OSError) as error:
            if failure is None:
                raise
            _log.warning("what rank %d knew of the run last is not kept: %s", self.world.rank, error)
        finally:
            if self._link:
                self._link.finish()
            self._artifacts.close()

    def _build(self, resolved: ResolvedExperiment, attempt: Attempt) -> Rounds:
        """Builds the loop with its followers, and puts each where its attempt goes on from."""
        experiment, subject = resolved.experiment, self.assignment.subject
        if subject:
            kind: Callable[..., Rounds] = partial(
                EvaluationLoop,
                kind=subject.phase,
                rewinds=subject.rewinds,
                data_of=self._data_of,
                origin=self._origin(experiment),
            )
        elif trains_itself(type(resolved.task)):
            kind = CustomLoop
        else:
            loop_class = Leader if self._followers else Loop
            kind = partial(
                loop_class,
                data_of=self._data_of,
                origin=self._origin(experiment),
                resumes=attempt.checkpoint is not None,
            )
        loop = kind(resolved.task, experiment, resolved.hooks, self._context(experiment, attempt))
        self._put_where_it_goes_on(loop, attempt)
        if isinstance(loop, Leader):
            loop.board(
                [
                    follower._get_on(loop, SharedTraining(self.folder.name, attempt.number))
                    for follower in self._followers
                ]
            )
        return loop

    def _get_on(self, leader: Leader, training: SharedTraining) -> Follower:
        """Begins an attempt whose training is another run's."""
        attempt = self._attempt = replace(self._begin(), leader=training)
        assert self._resolved is not None
        experiment = self._resolved.experiment
        loop = Follower(leader, experiment, self._resolved.hooks, self._context(experiment, attempt))
        self._put_where_it_goes_on(loop, attempt)
        return loop

    def _context(self, experiment: Experiment, attempt: Attempt) -> RunContext:
        """What a loop is made with that is this run's alone."""
        folder, world = self.folder, self.world
        identity = {"rank": world.rank, "node": world.node, "attempt": attempt.number}
        rank_folder = folder.rank_folder(attempt.number, world.rank)
        self._artifacts = artifacts = Artifacts(folder.storage, world.rank, world.world_size)
        if attempt.number:
            artifacts.fetch()
        return RunContext(
            world=world,
            recorder=Recorder(folder.storage, rank_folder, identity, upload_interval_s=experiment.upload_interval_s),
            store=self._store,
            artifacts=artifacts.folder,
            send_artifacts=artifacts.send,
            display=self._display,
            config={**to_dict(experiment), "sweep": self.assignment.sweep},
            name=folder.name,
            stop_asked=self._stop_asked,
        )

    def _put_where_it_goes_on(self, loop: Rounds, attempt: Attempt) -> None:
        self._loop = loop
        order = _order_of(loop) if isinstance(loop, Loop) else None
        self._attempt = attempt = replace(attempt, epoch_iterations=loop.cursor.epoch_length or None, order=order)
        if self.world.is_master:
            self.folder.write_attempt(attempt)
        if checkpoint := self.assignment.subject.checkpoint if self.assignment.subject else attempt.checkpoint:
            loop.restore(checkpoint)

    def is_over(self) -> None:
        """Writes down where this run is over, though its training may go on for others."""
        assert self._loop is not None
        assert self._attempt is not None
        if isinstance(self._loop, Leader):
            self._loop.leave()
        if self.world.is_master:
            self.folder.write_attempt(replace(self._attempt, until=self._loop.state.iteration))

    def _origin(self, experiment: Experiment) -> InitialWeights | None:
        """The weights that the run begins with, as they were found when it was made. Rank 0 knows them."""
        found = self.folder.metadata().init if experiment.init and self.world.is_master else None
        return InitialWeights(**found) if found else None

    def _hand_over(self, loop: Rounds) -> None:
        """Keeps what is known of the run, and takes what hooks wrote to its storage."""
        if self.world.is_master:
            self.folder.write_info(loop.state.info)
        self._artifacts.send()

    def save(self) -> str:
        """Writes a checkpoint between two reports and returns its path; call it on every rank."""
        assert self._loop is not None
        assert self._store is not None
        path = self._loop.save()
        assert path is not None
        earlier = self._store.index.read()["owners"].get("sweep", []) if self.world.is_master else []
        name = path.rpartition("/")[2]
        self._store.retain("sweep", [*(one for one in earlier if one != name), name][-SWEEP_KEEPS:])
        return path


def _order_of(loop: Loop) -> DataOrder:
    described = to_dict(loop.experiment)
    return DataOrder(
        {name: described[name] for name in ("seed", "batch_size", "loader", "task", "task_args")}, loop.data.sizes()
    )


def _begin_attempt(
    folder: RunFolder, store: CheckpointStore, world: World, assignment: Assignment, display: Display | None
) -> Attempt:
    given = assignment.checkpoint
    was_given = given or assignment.source.continued_from

    def leave_out(reason: str) -> None:
        text = f"left out: {reason}"
        if display is not None:
            display.line(text)
        elif world.is_master:
            _log.warning("%s", text)

    def recover() -> None:
        store.recover()
        store.storage.delete_leftovers(
            is_pid_alive
        )  # an `out_dir` is not in the run's folder, in which its driver has done so

    def begin() -> Attempt:
        folder.storage.delete(HANG_REPORTS)
        if checkpoint and not was_given and not folder.attempts():
            raise UsageError(
                f"{store.path(checkpoint)} is of an earlier run; move it away, or give another out_dir or name"
            )
        position = store.position(checkpoint) if checkpoint else None
        begun = folder.begin_attempt(checkpoint, position, hosts, world.world_size)
        if display is not None and begun.number:
            display.line(_attempt_line(begun, [host.node for host in hosts]))
        return begun

    hosts = world.gather(
        Host(world.rank, world.node, world.local_rank, str(world.device), torch.__version__, torch.get_num_threads())
    )
    checkpoint = None
    if assignment.subject is None:
        world.broadcast(recover)
        checkpoint = world.broadcast(partial(store.adopt, given)) if given else store.latest(leave_out, world)
    attempt: Attempt = world.broadcast(begin)
    return attempt


def _attempt_line(attempt: Attempt, nodes: list[str]) -> str:
    """The line with which an attempt begins that is not the first."""
    begins = f"goes on from {attempt.checkpoint}" if attempt.checkpoint else "begins anew, as there is no checkpoint"
    ranks = f"{len(nodes)} rank{'s' if len(nodes) > 1 else ''}"
    return f"attempt {attempt.number} {begins}: {ranks} on {', '.join(dict.fromkeys(nodes))}"
