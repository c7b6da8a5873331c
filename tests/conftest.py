"""What every test shares: one thread for torch, as in a worker, and Ray's environment before anything imports ray."""

import gc
import os

# What is imported stays, and going through it again and again meanwhile is half of what it takes to collect the tests.
gc.disable()

import pytest  # noqa: E402
import torch  # noqa: E402

from orchestrator.engines.ray_environment import set_environment  # noqa: E402
from orchestrator.storage.stored_data import warn_once  # noqa: E402

torch.set_num_threads(1)
# The files of tests need not survive a power failure, and each wait for a disk takes milliseconds.
os.fsync = lambda file: None
# A call that Ray answers by starting itself is a mistake here: those processes would stay until all tests are over.
os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
set_environment(None)


def pytest_collection_finish() -> None:
    """Every test's module is imported: Python's garbage collector is as it always is from here on."""
    gc.enable()


@pytest.fixture(autouse=True)
def fresh_warnings() -> None:
    """Let each test see warnings that another test has seen."""
    warn_once.cache_clear()
