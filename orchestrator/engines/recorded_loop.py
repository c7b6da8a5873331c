"""A loop that is ready to train, and the recorders of what it reports. Used in workers."""

import logging
from collections.abc import Generator, Sequence
from typing import Any

from orchestrator.engines.attempt_recorder import AttemptRecorder
from orchestrator.engines.hang_watch import HangWatch
from orchestrator.loop.base_loop import BaseLoop
from orchestrator.loop.report import Report
from orchestrator.loop.sharing.failed_run import call_for_each_run, mark_failed_run

_log = logging.getLogger("hookyard")


class RecordedLoop:
    """A loop, and a recorder for the attempt of each of its runs, which writes what the loop
    reports into the run's folder. The time of the caller does not count as a hang for `watch`."""

    def __init__(
        self, loop: BaseLoop[Any], recorders: Sequence[AttemptRecorder], watch: HangWatch
    ) -> None:
        self.loop = loop
        self._recorders = recorders
        self._watch = watch
        loop.when_run_ended = self._record_ends

    def restore(self, checkpoints: Sequence[str | None]) -> None:
        """Restore the checkpoint of each run, None for one without, and record with which data and
        settings the runs train."""
        recorders = self._recorders
        leaders = [None, *(recorders[0].as_leader for _ in recorders[1:])]
        try:
            call_for_each_run(AttemptRecorder.record_training, recorders, leaders)
            self.loop.restore(*checkpoints)
            call_for_each_run(AttemptRecorder.record_samples, recorders)
            call_for_each_run(AttemptRecorder.read_repeated_reports, recorders)
        except BaseException:
            self.loop.abandon()
            raise

    def reports(self) -> Generator[Report, None, None]:
        """Train, write the loop's reports to the runs' folders, and yield them.

        If that fails, the loop ends as after an error of its own. An error is marked with the index
        of the run that failed.
        """
        reports = self.loop.run()
        failure = None
        index = 0
        try:
            for report in reports:
                index = report.run_index
                try:
                    self._write(report)
                    with self._watch.pause():
                        yield report
                except BaseException as error:
                    reports.throw(error)
                    raise
        except GeneratorExit:
            raise
        except BaseException as error:
            failure = error
            if isinstance(error, Exception):
                mark_failed_run(error, index)
            raise
        finally:
            self._write_last_files(failure)

    def _record_ends(self) -> None:
        """Record which runs have ended, if training continues for others."""
        if not self.loop.active:
            return
        call_for_each_run(AttemptRecorder.record_end, self._recorders)

    def _write(self, report: Report) -> None:
        """Write a report and the files of its run, and show how it differs from one that it
        repeats."""
        recorder = self._recorders[report.run_index]
        recorder.write_report(report)
        if difference := recorder.find_difference(report):
            self.loop.state.show(difference)
        recorder.write_files()

    def _write_last_files(self, failure: BaseException | None) -> None:
        """Write the last files of the runs; an earlier `failure` takes precedence over new errors."""
        try:
            call_for_each_run(AttemptRecorder.write_files, self._recorders)
        except Exception as error:
            if failure is None:
                raise
            _log.warning("rank %d could not write its last files: %s", self.loop.world.rank, error)
