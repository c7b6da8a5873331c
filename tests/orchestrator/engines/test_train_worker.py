"""The numbers with which a worker of Ray Train sends its reports: the queue delivers a report that a
later attempt repeats only once, and a report that ends a round early before the round's own."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import ray

from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines.report_queue import ReportOrdinal
from orchestrator.engines.train_worker import ReportSender
from orchestrator.loop.report import Report
from orchestrator.loop.world import World


class Job:
    """A job's folder and queue, whose driver ends the run at a final report."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.ordinals: list[ReportOrdinal] = []
        self.put = SimpleNamespace(remote=self._put)

    def _put(self, ordinal: ReportOrdinal, report: Report) -> bool:
        self.ordinals.append(ordinal)
        return not report.is_final

    def train(self, *reports: Report) -> list[bool]:
        """Train an attempt that makes these reports; return whether it continued after each."""
        sender = ReportSender(self, World(), self.folder)
        answers = []
        for report in reports:
            self.folder.append_report({"attempt": 0, **report.metrics})
            answers.append(sender.send(report))
        return answers


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setattr(ray, "get", lambda answer: answer)
    (tmp_path / "run").mkdir()
    return Job(RunFolder(tmp_path, "run"))


def make_report(iteration: int, *, is_final: bool = False, is_partial: bool = False) -> Report:
    return Report({"iteration": iteration}, is_final=is_final, is_partial=is_partial)


def test_reports_have_consecutive_numbers(job: Job) -> None:
    assert job.train(make_report(10), make_report(20), make_report(30, is_final=True)) == [
        True,
        True,
        False,
    ]
    assert job.ordinals == [(1, False), (2, False), (3, True)]


def test_resumed_run_counts_the_reports_of_its_folder(job: Job) -> None:
    job.train(make_report(10), make_report(20))
    job.ordinals.clear()
    job.train(make_report(30), make_report(40))
    assert job.ordinals == [(3, False), (4, False)]


def test_partial_report_is_the_last_after_its_predecessor(job: Job) -> None:
    job.train(make_report(10), make_report(15, is_final=True, is_partial=True))
    assert job.ordinals == [(1, False), (1, True)]


def test_partial_report_can_be_the_first_of_an_attempt(job: Job) -> None:
    job.train(make_report(10), make_report(20))
    job.ordinals.clear()
    job.train(make_report(25, is_final=True, is_partial=True))
    assert job.ordinals == [(2, True)]
