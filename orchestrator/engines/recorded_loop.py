"""A loop that is ready to train, and the recorders of what it reports. Used in workers."""

import logging
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from orchestrator.engines.attempt_recorder import AttemptRecorder
from orchestrator.engines.hang_watch import HangWatch
from orchestrator.loop.base_loop import BaseLoop
from orchestrator.loop.report import Report
from orchestrator.loop.sharing.failed_run import call_for_each_run, marking_failed_run

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

    def restore(self) -> None:
        """Restore the checkpoints of the runs, and record with which data and settings they
        train."""
        recorders = self._recorders
        leaders = [None, *(recorders[0].as_leader for _ in recorders[1:])]
        try:
            call_for_each_run(AttemptRecorder.record_training, recorders, leaders)
            self.loop.restore(*(recorder.checkpoint for recorder in recorders))
            call_for_each_run(AttemptRecorder.record_samples, recorders)
            call_for_each_run(AttemptRecorder.read_repeated_reports, recorders)
        except BaseException:
            self.loop.abandon()
            raise

    def reports(self) -> Generator[Report, None, None]:
        """Train, write the loop's reports to the runs' folders, and yield them; write the last files
        of the runs at the end, and after a failure."""
        failure = None
        try:
            yield from self._train()
        except GeneratorExit:
            raise
        except BaseException as error:
            failure = error
            raise
        finally:
            self._write_last_files(failure)

    def _train(self) -> Iterator[Report]:
        """Train, write the loop's reports and yield them. If a report cannot be written, the loop
        ends as after an error of its own."""
        reports = self.loop.run()
        for report in reports:
            try:
                self._write(report)
                with self._watch.pause():
                    yield report
            except BaseException as error:
                reports.throw(error)
                raise

    def _record_ends(self) -> None:
        """Record which runs have ended, if training continues for others."""
        if not self.loop.active:
            return
        call_for_each_run(AttemptRecorder.record_end, self._recorders)

    def _write(self, report: Report) -> None:
        """Write a report and the files of its run, and show how it differs from one that it
        repeats. An error is marked as that of the run."""
        recorder = self._recorders[report.run_index]
        with marking_failed_run(report.run_index):
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
