import pytest
import torch

from hooks import Hook, State
from orchestrator.loop.loop import Loop
from tests.tasks import Points, experiment


def _settings() -> tuple[bool, str, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.benchmark,
    )


class Looks(Hook):
    """Notes how torch is set."""

    def __init__(self) -> None:
        self.seen: set[tuple[bool, str, bool]] = set()

    def on_step(self, state: State) -> None:
        self.seen.add(_settings())

    def on_end(self, state: State) -> None:
        self.seen.add(_settings())


def test_torch_settings_apply_only_while_the_run_trains() -> None:
    before, said = (
        _settings(),
        {"deterministic": True, "float32_matmul_precision": "high", "cudnn_benchmark": True},
    )
    looks, others = Looks(), Looks()
    one, other = (
        Loop(Points(), experiment(**said), {"looks": looks}).run(),
        Loop(Points(), experiment(), {"looks": others}).run(),
    )
    for _ in zip(one, other, strict=True):
        assert _settings() == before == (False, "highest", False)
    assert (looks.seen, others.seen) == ({(True, "high", True)}, {before})
    left = Loop(Points(), experiment(**said), {"looks": looks}).run()
    next(left)
    left.close()
    failing = Loop(Points(fails=True), experiment(**said), {}).run()
    with pytest.raises(ArithmeticError):
        next(failing)
    assert looks.seen == {(True, "high", True)}
    assert _settings() == before
