import signal
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from rich.text import Text

from orchestrator import run, sweep
from orchestrator.process.interrupts import Interrupts
from orchestrator.storage import Storage
from orchestrator.terminal import notebook
from orchestrator.terminal.notebook import NotebookDisplay, render_frame
from tests.tasks import experiment


class Output:
    """What a kernel gives for an output: it can be written anew."""

    def __init__(self, html: str) -> None:
        self.shown = [html]

    def update(self, html: str) -> None:
        self.shown.append(html)


@pytest.fixture
def outputs(monkeypatch: pytest.MonkeyPatch) -> list[Output]:
    """The outputs of the cells of a notebook that this process is the kernel of."""
    made: list[Output] = []

    def display(html: str, display_id: bool) -> Output:
        assert display_id
        made.append(Output(html))
        return made[-1]

    ipython, shown = ModuleType("IPython"), ModuleType("IPython.display")
    shell = SimpleNamespace(
        kernel=object(), events=SimpleNamespace(register=lambda event, callback: None)
    )
    vars(ipython).update(get_ipython=lambda: shell, display=shown)
    vars(shown).update(HTML=str, display=display)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    monkeypatch.setattr(notebook, "_INTERVAL_S", 0.005)
    return made


def wait_for(output: Output, text: str) -> str:
    return next(html for _ in iter(int, 1) if text in (html := output.shown[-1]))


def test_notebook_output_is_updated_in_place_and_ends_with_the_lines(
    outputs: list[Output], tmp_path: Path
) -> None:
    with NotebookDisplay(
        Storage(tmp_path), lambda lines: Text(f"in {lines} lines: <b> 3 of 8")
    ) as display:
        (output,) = outputs
        display.line("epoch 0 <script>alert(1)</script>")
        display.progress("train", 3, 10, "<now>")
        html = wait_for(output, "epoch 0")
        assert "in 30 lines: &lt;b&gt; 3 of 8" in html
        assert "epoch 0 &lt;script&gt;alert(1)&lt;/script&gt;" in html
        display.line("epoch 1")
        wait_for(output, "epoch 1")
    assert len(outputs) == 1
    assert output.shown[-1].startswith("<details><summary>epoch 1</summary>")
    assert "3 of 8" not in output.shown[-1]
    assert [line.split(" ", 1)[1] for line in (tmp_path / "log.txt").read_text().splitlines()][
        1
    ] == "epoch 1"


def test_failing_frame_does_not_end_training(outputs: list[Output]) -> None:
    with NotebookDisplay(None, lambda lines: 1 / 0) as display:  # type: ignore[arg-type,return-value]
        display.line("one")
    assert "one" in outputs[0].shown[-1]


def test_frames_are_drawn_as_on_a_terminal() -> None:
    assert ">running</span> of &lt;i&gt;" in render_frame(
        Text.assemble(("running", "bold red"), " of <i>")
    )


def test_second_interrupt_keeps_the_kernel_alive(
    outputs: list[Output], capsys: pytest.CaptureFixture[str]
) -> None:
    with Interrupts("hookyard resume x") as interrupts:
        signal.raise_signal(signal.SIGINT)
        assert interrupts.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_run_and_sweep_display_below_the_cell(
    outputs: list[Output], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    described = experiment(epochs=1, task_args={"train": 8, "val": 4})
    run(described, tmp_path, "one", local=True)
    space = {
        "metric": "val/accuracy",
        "space": {"optimizer.lr": {"choice": [0.1]}},
        "search": "grid",
    }
    sweep(described.model_copy(update={"sweep": space}), tmp_path, "all", local=True)
    assert len(outputs) == 2
    assert "val done  epoch 1" in outputs[0].shown[-1]
    assert "trial-0000 [1/1] optimizer.lr=0.1: val/accuracy" in outputs[1].shown[-1]
    shown = capfd.readouterr()
    assert shown.out + shown.err == ""
