"""The loop of a task with hooks: each epoch in order. Runs in workers.

`Loop._produce_reports` is an epoch: train, save what hooks have requested, such as the hook
`checkpoint`, validate, decide whether to stop and save that, report. The stages between are in
`hooks/position.py`.

The batches of a training phase are in `training.py`, what an evaluation computes in `evaluation.py`,
and the passes over val and test in `inference.py`. What a run owns, such as its rows and reports, is
in `training_run.py`, when a validation or a test is due in `hooked_run.py`, and when a checkpoint is
saved in `saving/run_checkpoints.py`; how a loop begins, ends and fails is in `base_loop.py`.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial

from hooks.hook import Hook
from hooks.position import Stage
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.yaml.origins import InitialWeights
from orchestrator.loop.base_loop import BaseLoop
from orchestrator.loop.building import MakeData, build_training
from orchestrator.loop.data.phases import build_data
from orchestrator.loop.hooked_run import HookedRun
from orchestrator.loop.model.torch_settings import torch_settings
from orchestrator.loop.report import Report, produce_within
from orchestrator.loop.run_building import build_run
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.runs import Runs, SingleRun
from orchestrator.loop.sharing.failed_run import marking_failed_run
from orchestrator.loop.sharing.shared_run import Member
from orchestrator.loop.sharing.shared_runs import SharedRuns
from orchestrator.loop.state_warnings import StateWarnings
from orchestrator.loop.stopping import INTERRUPTED, StopDecision
from orchestrator.loop.training import Training
from orchestrator.task import Task


class HookedLoop(BaseLoop[HookedRun]):
    """A loop that owns a training, with its model and data, and its runs: usually one."""

    def __init__(self, training: Training, runs: Sequence[HookedRun]) -> None:
        self.task = training.task
        self.experiment = training.experiment
        self.training = training
        super().__init__(runs)

    def run(self) -> Generator[Report, None, None]:
        # Between reports, another run with other settings may be running in this process.
        return produce_within(partial(torch_settings, self.experiment), super().run())

    def _close(self) -> None:
        self.training.close()


class Loop(HookedLoop):
    """The loop that trains a task with hooks.

    `followers` are further runs that share the training. Each has its own observing hooks,
    validation, checkpoints and reports. The other arguments are those of `build_training`.
    """

    def __init__(
        self,
        task: Task,
        experiment: Experiment,
        hooks: Mapping[str, Hook],
        context: RunContext | None = None,
        *,
        followers: Sequence[Member] = (),
        make_data: MakeData = build_data,
        origin: InitialWeights | None = None,
        resumes: bool = False,
    ) -> None:
        context = context or RunContext()
        training = build_training(
            task,
            experiment,
            hooks,
            context,
            make_data=make_data,
            origin=origin,
            resumes=resumes,
        )
        self._warnings = StateWarnings(training)
        self._runs: Runs
        if followers:
            self._runs = SharedRuns(training, [Member(experiment, hooks, context), *followers])
        else:
            self._runs = SingleRun(build_run(training, experiment, context, training.plan))
        super().__init__(training, self._runs.all)

    def _begin(self) -> None:
        for run in self.runs:
            run.check_data()
        self._runs.join_plans()
        with self._marking_failed_run():
            self.training.begin()
        self._warnings.begin()
        for run in self.runs:
            run.check_phase_names()

    def _marking_failed_run(self) -> AbstractContextManager[None]:
        """Return a context that marks errors of the training as those of the first active run."""
        return marking_failed_run(self.active[0].index)

    # An epoch, or a part of one

    def _produce_reports(self) -> Iterator[Report]:
        if self.runs[0].cursor.stage is not Stage.TRAIN:
            for run in self.runs:
                run.random_states.continue_training()

        while self.active:
            if self._is_training_due():
                stop = self._train()
                if stop.is_interruption:  # within the phase
                    yield from self._report_interruption()
                    return
            yield from self._runs.take_turns(self._finish_round)

    def _is_training_due(self) -> bool:
        run = self.active[0]
        return run.cursor.stage in (Stage.REPORTED, Stage.TRAIN) and not run.is_finished()

    def _finish_round(self, run: HookedRun) -> Generator[Report, None, bool]:
        """Save what hooks have requested, validate if it is due, decide whether to stop, and report;
        return whether the run continues.

        If the run ends, its test phases follow.
        """
        if run.cursor.stage is Stage.TRAINED:
            run.validate()

        if run.cursor.stage is Stage.VALIDATED:
            run.agree_to_stop()
            run.save_stop()
            ends = run.ends_here()
            yield run.report(is_final=ends and not run.is_test_due())
            if not ends and not self._is_end_requested(run):
                run.agree_to_stop()  # a hook may have requested it in on_report
                if not run.decision:
                    return True
                yield from self._stop_after_report(run)

        if run.is_test_due() and not self._is_end_requested(run):
            run.test()
            yield run.report(is_final=True)
        self._end_run(run)
        return False

    def _stop_after_report(self, run: HookedRun) -> Iterator[Report]:
        """Save a run that stops at its report, and report that it does, unless a test phase follows
        and does so."""
        run.save_stop()
        if not run.is_test_due():
            run.cursor.begin_train_phase()
            yield run.report(is_final=True)

    def _report_interruption(self) -> Iterator[Report]:
        for run in self.active:
            yield run.report(is_final=True)
            self._end_run(run)

    def _train(self) -> StopDecision:
        """Train until the phase ends or the runs are interrupted; return whether they stop here."""
        is_resumed = self.active[0].cursor.stage is Stage.TRAIN
        for run in self.active:
            run.cursor.begin_train_phase()
        self._runs.begin_phase()
        with self._marking_failed_run():
            self.training.begin_phase()
            for run in self.active:
                run.random_states.continue_training()
            stop = self._agree_if_requested() if is_resumed else StopDecision()
            if not stop:
                stop = self._iterate()
            if not stop.is_interruption:
                self._end_phase()

        for run in self.active:
            run.end_training(stop, self.training.after_phase)
        return stop

    def _iterate(self) -> StopDecision:
        """Iterate over the batches of the phase, and save and stop where it is due."""
        saves_in_background = any(run.checkpoints.in_background for run in self.active)
        for pause in self.training.iterate():
            if pause == "last iteration":
                return StopDecision((INTERRUPTED,), is_interruption=True)
            if pause == "checkpoint":
                self._save_requested()
                continue
            if saves_in_background:
                for run in self.active:
                    run.commit_if_written()
            stop = self._agree_if_requested()
            if stop:
                return stop
        return StopDecision()

    def _agree_if_requested(self) -> StopDecision:
        """Decide with all ranks whether the runs stop within the phase, if any rank has a request;
        collective."""
        if self.training.stopping.is_stop_requested():
            return self._agree_to_stop()
        return StopDecision()

    def _agree_to_stop(self) -> StopDecision:
        """Decide with all ranks whether the runs stop within the phase, and save an interruption;
        collective."""
        training = self.training
        stop = training.stopping.agree()
        if stop.is_interruption:
            training.modes.evaluate(keep=True)
            for run in self.active:
                run.save_unless_saved()
        elif stop:
            training.state.request_checkpoint("stop")
        return stop

    def _save_requested(self) -> None:
        """Save the checkpoints that hooks have requested within a training phase; collective."""
        self._warnings.show_changes()
        self._runs.forward_requests()
        for run in self.active:
            run.save_if_requested()

    def _end_phase(self) -> None:
        self._warnings.show_changes()
        metrics = self.training.complete_phase()
        for run in self.active:
            run.add_metrics(metrics)
        self.training.end_phase()
        self._runs.end_phase()
