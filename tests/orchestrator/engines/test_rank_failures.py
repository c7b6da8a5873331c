"""Who is blamed when several ranks fail: by what they raised, by who is gone and by time, never by
the text."""

import copy
import errno
import os
import pickle
import random
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from hooks.errors import HookError
from orchestrator.engines.error_origin import can_be_secondary, find_root_cause, is_user_error
from orchestrator.engines.rank_failures import RankFailed, find_root_failure
from tests.ranks import on_ranks
from tests.tasks import Points


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    """The error with a traceback of its own."""
    try:
        raise error from cause
    except BaseException as caught:
        return caught


def out_of_cpp() -> BaseException:
    """A plain RuntimeError that no Python code has raised."""
    try:
        torch.zeros(2) @ torch.zeros(3)
    except RuntimeError as caught:
        return caught
    raise AssertionError


@pytest.mark.parametrize(
    ("error", "secondary"),
    [
        (raised(ValueError("gloo: Connection closed by peer")), False),
        (raised(RuntimeError("NCCL error: Connection reset")), False),
        (raised(ConnectionError("Connection refused by the data server")), False),
        (raised(dist.DistBackendError("all is well")), True),
        (raised(dist.DistNetworkError("all is well")), True),
        (raised(HookError("ema", "on_step", "x"), dist.DistBackendError("x")), True),
        (raised(HookError("ema", "on_step", "gloo"), raised(KeyError("NCCL"))), False),
        (raised(ValueError("while it was handled"), out_of_cpp()), True),
        (out_of_cpp(), True),
    ],
)
def test_secondary_failure_is_recognized_by_type_and_origin(
    error: BaseException, secondary: bool
) -> None:
    assert can_be_secondary(error) is secondary


class Empty(Exception):
    """An error that is false, because it has a length."""

    def __len__(self) -> int:
        return 0


def test_causes_may_form_a_cycle() -> None:
    alone = ValueError("raised from itself")
    first, second = ValueError("first"), TypeError("second")
    for error, cause in [(alone, alone), (first, second), (second, first)]:
        failure = RankFailed.from_error(0, 1, raised(error, cause))
        assert failure.message.startswith(f"{type(error).__name__}: {error}")
        assert failure.is_user_error
    assert find_root_cause(first) is second


def test_error_may_be_false() -> None:
    empty = raised(Empty("nothing"))
    assert RankFailed.from_error(0, 1, empty).message.startswith("Empty: nothing")
    assert find_root_cause(raised(HookError("ema", "on_step", "x"), empty)) is empty


@pytest.mark.parametrize(
    ("number", "again"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EIO, False)]
)
def test_retry_on_a_full_disk_would_fail_again(number: int, again: bool) -> None:
    """TensorBoard's writer raises such an error as it is, not as one of the storage."""
    refused = OSError(number, os.strerror(number))
    assert is_user_error(refused) is again
    assert is_user_error(raised(HookError("tensorboard", "on_step", "x"), refused)) is again


def _lose_a_peer(rank: int, world_size: int) -> list[bool]:
    """Rank 1 ends; rank 0 finds out in a collective, in a wait for one, and in a backward pass."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    if rank == 1:
        return []
    found = []
    loss = model(torch.ones(1, 2)).sum()
    for lose in (
        loss.backward,
        lambda: dist.all_reduce(torch.zeros(1)),
        lambda: dist.all_reduce(torch.zeros(1), async_op=True).wait(),
    ):
        try:
            lose()
        except Exception as error:
            found.append(can_be_secondary(error) and not is_user_error(error))
    return found


def test_loss_of_a_peer_can_be_secondary() -> None:
    assert on_ranks(_lose_a_peer)[0] == [True, True, True]


def failed(rank: int, at: float, secondary: bool = False, words: str = "x") -> RankFailed:
    return RankFailed(rank, 4, words, at, secondary, False, "", None)


ORDERS = [
    (
        "the rank's own failure, however it is worded",
        [failed(0, 2, secondary=True), failed(1, 1, words="gloo Connection closed")],
        1,
    ),
    (
        "its own, though the secondary failure's clock is ahead",
        [failed(0, 0.9, secondary=True), failed(1, 1)],
        1,
    ),
    (
        "the rank that is gone",
        [
            failed(0, 1, secondary=True, words="out of memory"),
            RankFailed.died(1, 4),
            failed(2, 1, secondary=True),
        ],
        1,
    ),
    (
        "its own, as a third rank was torn down for it",
        [RankFailed.died(0, 4), failed(1, 1), failed(2, 2, secondary=True)],
        1,
    ),
    ("the first of two user errors", [failed(0, 2), failed(1, 1)], 1),
    (
        "the first, where all may be secondary",
        [failed(0, 2, secondary=True), failed(1, 1, secondary=True)],
        1,
    ),
]


@pytest.mark.parametrize(
    ("failures", "blamed"), [order[1:] for order in ORDERS], ids=[order[0] for order in ORDERS]
)
def test_root_failure_of_several_is_found(failures: list[RankFailed], blamed: int) -> None:
    random.Random(0).shuffle(failures)
    assert find_root_failure({failure.rank: failure for failure in failures}).rank == blamed


def test_rank_failure_can_be_pickled() -> None:
    told = RankFailed.from_error(3, 4, raised(KeyError("epoch")))
    for copied in (pickle.loads(pickle.dumps(told)), copy.copy(told)):
        assert str(copied) == str(told)
        assert copied.trace == told.trace
        assert (copied.rank, copied.at, copied.can_be_secondary, copied.is_user_error) == (
            3,
            told.at,
            False,
            True,
        )


def test_failure_in_an_inherited_method_of_the_task_names_it() -> None:
    with pytest.raises(RuntimeError) as caught:
        Points().forward(torch.nn.Linear(2, 2), [torch.zeros(1, 3)])
    assert caught.value.__traceback__ is not None
    error = caught.value.with_traceback(caught.value.__traceback__.tb_next)  # without this function
    assert RankFailed.from_error(0, 4, error).message.endswith(" (in forward() of the task)")


def test_failure_names_the_line_in_the_experiment() -> None:
    """Here, torch raises: what is told is the line that called it, and the traceback has the
    rest."""
    told = RankFailed.from_error(0, 4, out_of_cpp())
    line = 1 + Path(__file__).read_text().splitlines().index(
        "        torch.zeros(2) @ torch.zeros(3)"
    )
    assert told.message.endswith(f" ({__file__}:{line}, in out_of_cpp)")
    assert told.trace.startswith("Traceback (most recent call last)")
    assert told.message.startswith(told.trace.strip().splitlines()[-1])


@pytest.mark.parametrize(
    ("words", "again"),
    [
        ("CUDA error: device-side assert triggered", True),
        ("CUDA error: uncorrectable ECC error", False),
    ],
)
def test_gpu_failure_is_reported_as_one(words: str, again: bool) -> None:
    cause = raised(
        torch.AcceleratorError(f"{words}\nCUDA kernel errors might be asynchronously reported")
    )
    told = RankFailed.from_error(1, 4, raised(HookError("console", "on_step", "x"), cause))
    assert (told.is_user_error, told.can_be_secondary) == (again, False)
    assert told.message.startswith(
        f"the GPU failed: {words}. It surfaced in hook 'console' (on_step), but may have"
    )
    assert ("a label or a token ID" in told.message) is again
    assert "CUDA_LAUNCH_BLOCKING=1" in told.message
