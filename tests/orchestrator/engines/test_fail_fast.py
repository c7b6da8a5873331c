"""Which failures end a run on Ray Train at once."""

from __future__ import annotations

import pytest
from ray.train import ControllerError

from orchestrator.engines.fail_fast import EndOnMistake
from orchestrator.engines.rank_failures import RankFailed
from orchestrator.engines.train_failures import first_failure

MISTAKE = RankFailed.from_error(1, TypeError("no"))
LOST = RankFailed.from_error(0, ConnectionError("peer gone"))


def test_a_mistake_ends_the_run_and_is_told_in_its_own_words() -> None:
    with pytest.raises(RankFailed) as raised:
        EndOnMistake().after_exception(None, {0: LOST, 1: MISTAKE})
    assert str(first_failure(ControllerError(raised.value))) == "rank 1: TypeError: no"


def test_what_need_not_come_again_is_left_to_ray_train() -> None:
    EndOnMistake().after_exception(None, {0: LOST})
    EndOnMistake().after_exception(None, {0: RuntimeError("the process is gone")})
