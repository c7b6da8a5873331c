from pathlib import Path

import pytest

from hooks.position import Position
from orchestrator import UsageError
from orchestrator.disk.attempts import Attempt
from orchestrator.disk.run_folder import RunFolder
from orchestrator.replay.preconditions import check_has_beginning, check_setup_since


def make_attempts(*setups: tuple[int, int]) -> list[Attempt]:
    """Make attempts of the numbers of their ranks and the iterations at which they start."""
    return [
        Attempt(number, position=Position(iteration=start), world_size=ranks)
        for number, (ranks, start) in enumerate(setups)
    ]


@pytest.mark.parametrize(
    "setups",
    [
        [(2, 0), (1, 100), (1, 200)],
        [(2, 0), (1, 100)],
        # An attempt whose rows were all replaced does not count.
        [(1, 0), (2, 180), (1, 160)],
    ],
)
def test_change_of_ranks_before_the_checkpoint_does_not_count(
    setups: list[tuple[int, int]], tmp_path: Path
) -> None:
    attempts = make_attempts(*setups)
    check_setup_since(RunFolder(tmp_path), attempts, attempts[-1], 150)


@pytest.mark.parametrize(
    ("setups", "changed_at"),
    [
        ([(2, 0), (1, 100), (1, 200)], 100),
        ([(1, 0), (2, 100), (1, 200)], 200),
        ([(2, 0), (1, 200)], 200),
    ],
)
def test_change_of_ranks_since_the_checkpoint_is_refused(
    setups: list[tuple[int, int]], changed_at: int, tmp_path: Path
) -> None:
    attempts = make_attempts(*setups)
    with pytest.raises(
        UsageError,
        match=f"is at iteration 50, before ranks or batches changed at {changed_at}; keep more",
    ):
        check_setup_since(RunFolder(tmp_path), attempts, attempts[-1], 50)


def test_run_without_the_checkpoint_of_its_start_is_refused(tmp_path: Path) -> None:
    attempts = [Attempt(0, checkpoint="epoch-0003", position=Position(iteration=30))]
    with pytest.raises(UsageError, match="started from epoch-0003, which has been deleted"):
        check_has_beginning(RunFolder(tmp_path), attempts)
