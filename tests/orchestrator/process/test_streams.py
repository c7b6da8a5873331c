import os
import sys
from types import ModuleType, SimpleNamespace

import pytest

from orchestrator.process.streams import PipeSafe, is_notebook


def test_only_a_kernel_counts_as_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_notebook()
    shell = ModuleType("IPython")
    vars(shell)["get_ipython"] = lambda: None
    monkeypatch.setitem(sys.modules, "IPython", shell)
    assert not is_notebook()
    vars(shell)["get_ipython"] = lambda: SimpleNamespace(kernel=object())
    assert is_notebook()


def test_text_for_a_closed_terminal_is_dropped() -> None:
    terminal, own_end = os.openpty()
    with open(own_end, "w", buffering=1) as opened:
        stream = PipeSafe(opened)
        os.close(terminal)
        assert stream.write("lost\n") == 5
        stream.flush()
