"""The end of a rank that has trained nothing."""

import pytest
import torch

from orchestrator.engines.rank import Rank
from orchestrator.experiment.sections.workers import Workers


def test_rank_ends_although_it_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    Rank(Workers(gpu=True)).end()
