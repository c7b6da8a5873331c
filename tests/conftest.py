"""What every test shares: one thread for torch, as in a worker, and Ray's environment before anything imports ray."""

import pytest
import torch

from orchestrator.runs.environment import set_environment

torch.set_num_threads(1)
set_environment(None)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever runs the tests in several processes runs all of Ray's in one of them: they share a cluster."""
    for item in items:
        if item.get_closest_marker("ray"):
            item.add_marker(pytest.mark.xdist_group("ray"))
