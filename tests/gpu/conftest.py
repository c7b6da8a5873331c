"""The device of the GPU tests: `pytest tests/gpu -m gpu`, or `--device cpu` for those that a CPU
can run."""

import os
from collections.abc import Iterator

import pytest
import torch

# Torch asks for it before its first matrix product with deterministic algorithms.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device", choices=("cuda", "cpu"), default="cuda", help="where the tests marked gpu run"
    )


@pytest.fixture
def device(request: pytest.FixtureRequest) -> torch.device:
    # Where this file is no initial conftest, its option is not there.
    name = request.config.getoption("--device", default="cuda")
    if name == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        pytest.skip(
            f"torch {torch.__version__} finds no GPU that it can use; --device cpu runs what a CPU can"
        )
    return torch.device("cuda", 0)


@pytest.fixture
def cuda(device: torch.device) -> torch.device:
    """The GPU, for tests that look at what only a GPU has."""
    if device.type != "cuda":
        pytest.skip("looks at what only CUDA has")
    return device


@pytest.fixture
def same_numbers_each_time() -> Iterator[None]:
    """Deterministic algorithms, so that two ways to compute one thing can be compared bit for
    bit."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)
