"""What the engine in this process leaves for the next run."""

import gc
import weakref
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import torch

from orchestrator.engines import in_process
from orchestrator.engines.in_process import InProcess
from orchestrator.engines.rank_failures import RankFailed
from orchestrator.experiment.sections.workers import Workers


class _Model:
    """A model in a reference cycle."""

    def __init__(self) -> None:
        self.itself = self


class _FailingSession:
    models: ClassVar[list[weakref.ref[_Model]]] = []

    def __init__(self, *arguments: Any, **options: Any) -> None: ...

    def reports(self) -> Iterator[Any]:
        model = _Model()
        self.models.append(weakref.ref(model))
        raise torch.OutOfMemoryError("CUDA out of memory")
        yield


def test_begin_frees_the_model_that_a_failed_runs_traceback_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(in_process, "Session", _FailingSession)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    engine = InProcess(Workers())
    assignment: Any = None

    gc.disable()
    try:
        engine.begin(assignment, None)
        try:
            engine.next()
        except RankFailed:
            engine.end()  # as the runner of a sweep does, while it handles the error
        engine.begin(assignment, None)
        (model,) = _FailingSession.models
        assert model() is None
    finally:
        gc.enable()
