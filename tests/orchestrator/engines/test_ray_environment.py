"""What Ray and the workers are given of the environment; nothing is started."""

import os
import sys

import pytest

from orchestrator.engines.ray_environment import read_environment, set_environment
from orchestrator.errors import UsageError


def test_named_environment_variables_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "one")
    monkeypatch.setenv("OTHER", "two")
    assert read_environment(["HF_TOKEN"]) == {"HF_TOKEN": "one"}
    assert read_environment([]) == {}
    with pytest.raises(
        UsageError, match="environment: WANDB_API_KEY is not set; export it, or remove it"
    ) as told:
        read_environment(["HF_TOKEN", "WANDB_API_KEY"])
    assert "one" not in str(told.value).split()


@pytest.mark.parametrize(
    ("address", "before", "after"),
    [(None, None, "0"), (None, "1", "1"), ("10.0.0.1:6379", None, None)],
)
def test_workers_on_this_machine_get_no_environment_of_uv(
    monkeypatch: pytest.MonkeyPatch, address: str | None, before: str | None, after: str | None
) -> None:
    name = "RAY_ENABLE_UV_RUN_RUNTIME_ENV"
    monkeypatch.setattr(os, "environ", {} if before is None else {name: before})
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    set_environment(address)
    assert os.environ.get(name) == after
