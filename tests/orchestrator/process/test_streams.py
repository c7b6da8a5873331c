import sys
from types import ModuleType, SimpleNamespace

import pytest

from orchestrator.process.streams import is_notebook


def test_only_a_kernel_counts_as_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_notebook()
    shell = ModuleType("IPython")
    vars(shell)["get_ipython"] = lambda: None
    monkeypatch.setitem(sys.modules, "IPython", shell)
    assert not is_notebook()
    vars(shell)["get_ipython"] = lambda: SimpleNamespace(kernel=object())
    assert is_notebook()
