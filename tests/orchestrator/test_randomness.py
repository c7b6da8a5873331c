import io
import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from orchestrator.randomness import (
    random_state,
    restore_random_state,
    seed_all,
    with_own_generators,
)


def draw() -> list[float]:
    """Two numbers of each kind from each generator; Gaussian ones come in pairs, of which half is
    kept back."""
    return [
        *(random.random() for _ in range(2)),
        random.gauss(0, 1),
        *np.random.rand(2).tolist(),
        float(np.random.randn()),
        *torch.rand(2).tolist(),
        torch.randn(()).item(),
    ]


def test_a_seed_fixes_every_generator() -> None:
    seed_all(7)
    first = draw()
    seed_all(7)
    assert draw() == first
    seed_all(8)
    assert draw() != first


def test_seeding_is_that_of_each_library() -> None:
    seed_all(5)
    ours = draw()
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    assert draw() == ours


def test_seeds_larger_than_numpys_are_taken() -> None:
    seed_all(2**32 + 5)
    ours = float(np.random.rand())
    np.random.seed(5)
    assert float(np.random.rand()) == ours


def test_the_state_continues_exactly_also_through_a_file_without_code() -> None:
    seed_all(3)
    draw()  # leaves half a pair of Gaussian numbers in two generators
    file = io.BytesIO()
    torch.save(random_state(), file)
    expected = [draw(), draw()]
    seed_all(99)
    draw()
    file.seek(0)
    restore_random_state(torch.load(file, weights_only=True))
    assert [draw(), draw()] == expected


def drawn(count: int) -> Iterator[list[float]]:
    for _ in range(count):
        yield draw()


def test_own_generators_start_at_their_seed_and_restore_the_state() -> None:
    seed_all(11)
    aside = list(drawn(3))
    seed_all(4)
    around = [draw() for _ in range(4)]
    seed_all(4)
    mixed = [draw()]
    items = []
    for item in with_own_generators(drawn(3), 11):
        items.append(item)
        mixed.append(draw())
    assert items == aside
    assert mixed == around


def test_a_process_that_never_used_the_gpu_makes_no_context_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def asked(*_: object) -> None:
        raise AssertionError("the GPU was asked")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", asked)
    monkeypatch.setattr(torch.cuda, "set_rng_state", asked)
    state = random_state()
    assert state["cuda"] is None
    restore_random_state(state | {"cuda": torch.zeros(16, dtype=torch.uint8)})
