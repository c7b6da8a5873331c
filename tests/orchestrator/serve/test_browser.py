"""The live page in a browser, while a run starts, grows and ends: nothing is loaded again by hand."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from orchestrator.serve.app import make_app
from orchestrator.serve.server import listen, make_server
from orchestrator.storage.read_only import ReadOnlyStorage
from tests.browser import CHROMIUM, Tab, open_tab
from tests.orchestrator.serve.stepping import stepping_run
from tests.orchestrator.tables.test_run_index import write_run

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
SLIDERS = "[...document.querySelectorAll('#media input')]"
INPUT = "new Event('input', { bubbles: true })"
FOCUSED = "document.activeElement"
CONTROLS = "[...document.querySelectorAll('a, button, input:not([type=hidden]), select')]"


@contextmanager
def served(storage: Path) -> Iterator[str]:
    """Serve a storage in a thread, and yield its address without the token."""
    server = make_server(make_app(ReadOnlyStorage(storage), "token", "127.0.0.1"))
    with listen("127.0.0.1", 0) as listener:
        thread = Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def shared_tab() -> Iterator[Tab]:
    with open_tab() as tab:
        yield tab


@pytest.fixture
def tab(shared_tab: Tab) -> Tab:
    """A tab without a page, and without errors of an earlier test's page, whose server has ended."""
    shared_tab.call("Page.navigate", url="about:blank")
    shared_tab.wait("location.href === 'about:blank'")
    shared_tab.messages.clear()
    return shared_tab


def text(selector: str) -> str:
    return f"document.querySelector('{selector}')?.textContent"


def test_pages_follow_a_run(tmp_path: Path, tab: Tab) -> None:
    storage = tmp_path / "runs"
    storage.mkdir()
    steps = tmp_path / "steps"
    curve = "document.querySelector('[aria-label=accuracy]')?.calcdata?.at(0)?.length"
    with served(storage) as address:
        tab.open(f"{address}/?token=token")
        assert "token" not in tab.see("location.href")
        tab.wait(f"{text('main')}.includes('There are no runs yet')")
        with stepping_run(storage, steps):
            tab.wait(f"{text('tbody .status')} === 'running'")
            tab.open(f"{address}/runs/digits")
            tab.see("window.isFirst = true")
            for epoch in range(2):
                (steps / str(epoch)).touch()
                tab.wait(f"{text('.tiles')}.includes('epoch {epoch + 1}, step')")
            tab.see("document.querySelector('#learning').scrollIntoView()")
            tab.wait(f"{curve} === 2")
            tab.see("[...document.querySelectorAll('summary')].at(-1).focus()")
            tab.see(f"{SLIDERS}[0].value = 0, {SLIDERS}[0].dispatchEvent({INPUT})")

            (steps / "2").touch()
            tab.wait(f"{curve} === 3")
            tab.wait(f"{SLIDERS}[0].max === '2'")
            chosen, followed = tab.see(f"{SLIDERS}.map((slider) => slider.ariaValueText)")
            assert (chosen, followed) == ("epoch 1, step 7", "epoch 3, step 21")
            tab.see("document.querySelector('#media').scrollIntoView()")
            tab.wait("[...document.querySelectorAll('#media img')].at(-1).naturalWidth === 5")
            tab.wait(f"{text('h1 .status')} === 'finished'")
        tab.wait(f"{text('#log pre')}.includes('epoch 3')")

        assert tab.see("window.isFirst"), "the page was loaded again"
        assert tab.see(f"{FOCUSED}.tagName") == "SUMMARY"
        assert tab.see("window.scrollY") > 0
        assert tab.messages == []


def test_page_says_when_the_server_is_gone(tmp_path: Path, tab: Tab) -> None:
    with served(tmp_path) as address:
        tab.open(f"{address}/?token=token")
    tab.wait(f"{text('[role=status]')}.startsWith('The server does not answer')")


def test_list_is_filtered_grouped_and_compared_by_keyboard(tmp_path: Path, tab: Tab) -> None:
    for name, size in (("first", 8), ("second", 16), ("third", 16)):
        write_run(tmp_path, name, batch_size=size)
    with served(tmp_path) as address:
        tab.open(f"{address}/?token=token")
        tab.wait("document.querySelectorAll('tbody tr').length === 3")
        number = tab.see(f"{CONTROLS}.length")
        reached = []
        for _ in range(number):
            tab.press("Tab", 9)
            reached.append(tab.see(f"{CONTROLS}.indexOf({FOCUSED})"))
            assert tab.see(f"getComputedStyle({FOCUSED}).outlineStyle") != "none", reached
        assert reached == list(range(number))

        tab.see("document.querySelector('input[type=search]').focus()")
        tab.call("Input.insertText", text="batch_size=16")
        tab.wait("document.querySelectorAll('tbody tr').length === 2")
        assert tab.see("location.search").startswith("?filter=batch_size%3D16")
        for _ in range(2):
            tab.see("document.querySelector('tbody input:not(:checked)').focus()")
            tab.press(" ", 32, " ")
        tab.see("document.querySelector('[action=\"/compare\"] button').focus()")
        tab.press("Enter", 13, "\r")
        tab.wait(f"{text('h1')}?.startsWith('Comparison of')")
        assert tab.messages == []


@pytest.mark.parametrize("width", [420, 1280])
def test_nothing_sticks_out(tmp_path: Path, tab: Tab, width: int) -> None:
    notes = "a-note-without-a-space-" * 20
    for name in ("first", "x" * 200):
        write_run(tmp_path, name, metadata={"notes": notes, "tags": [notes]})
    with served(tmp_path) as address:
        tab.open(f"{address}/?token=token")
        tab.show(width, "dark")
        for path in (
            "/",
            "/?group=batch_size",
            "/runs/first",
            f"/compare?run=first&run={'x' * 200}",
        ):
            tab.open(address + path)
            root = "document.documentElement"
            assert tab.see(f"{root}.scrollWidth - {root}.clientWidth") == 0, path
        assert tab.messages == []
