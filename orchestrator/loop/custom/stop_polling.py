"""The polling of a task's own loop whether it has to stop. Runs in workers."""

from time import perf_counter

from orchestrator.loop.custom.custom_run import CustomRun
from orchestrator.loop.stopping import StopCoordinator


class StopPolling:
    """Answers to a task that asks in each of its iterations whether training has to end.

    The ranks check together only every few calls, and give the last answer in between.
    """

    def __init__(self, stopping: StopCoordinator, run: CustomRun) -> None:
        self._stopping = stopping
        self._run = run
        self._state = run.state
        self._clock = run.clock
        self._called_at = perf_counter()
        """Moment of the last call, which tells how long an iteration takes."""
        self._calls_until_check = 0
        self._has_to_stop = False
        """The answer of the last check."""

    def should_stop(self) -> bool:
        """Return whether training has to end. All ranks agree; some calls communicate."""
        state = self._state
        if state.ended_early or (state.max_steps is not None and state.step >= state.max_steps):
            return True
        now = perf_counter()
        self._clock.iteration_s = now - self._called_at
        self._called_at = now
        self._calls_until_check -= 1
        if self._calls_until_check <= 0:
            self._run.checkpoints.finish_if_written()
            self._has_to_stop = self._stopping.is_stop_requested()
            self._calls_until_check = self._stopping.next_check - state.iteration
        return self._has_to_stop
