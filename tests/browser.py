"""Pages in a real browser: headless Chromium, without a network."""

import base64
import fcntl
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from select import select
from threading import Timer
from time import monotonic, sleep
from typing import Any

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--allow-file-access-from-files",
    "--window-size=1400,1000",
    "--remote-debugging-port=0",
    "--enable-logging=stderr",
)
ANSWER_TIMEOUT_S = 120
FRAMES = """<!DOCTYPE html><body><script>
const look = (page, frame, opened_ms) => { const document = page.document, window = page; return (LOOK); };
const paint = (page) => new Promise((done) => page.requestAnimationFrame(() => page.requestAnimationFrame(done)));
const all = async () => {
  for (const [url, width] of PAGES) {
    const frame = document.createElement("iframe");
    frame.style.cssText = `width:${width}px;height:900px;border:0`;
    document.body.append(frame);
    const began = performance.now();
    await new Promise((done) => { frame.onload = done; frame.src = url; });
    await paint(frame.contentWindow);
    const opened_ms = performance.now() - began;
    console.log("SAW " + JSON.stringify(await look(frame.contentWindow, frame, opened_ms)));
    frame.remove();
  }
};
all().catch((error) => console.log("FAILED " + error.stack)).finally(() => console.log("DONE"));
</script>"""


def inspect_pages(
    pages: Sequence[tuple[Path, int]], look: str, timeout_s: float = 120
) -> tuple[list[Any], list[str]]:
    """Open files, each in a frame of a width in pixels, and evaluate a JavaScript expression in
    each.

    The expression may use `document`, `window`, `frame` and `opened_ms`, the milliseconds from the
    request to the second painted frame. Return the values, and the other messages on the browser's
    console.
    """
    assert CHROMIUM is not None
    # A process of the browser may still write into its profile.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        urls = json.dumps([(path.absolute().as_uri(), width) for path, width in pages])
        outer = Path(folder, "frames.html")
        outer.write_text(FRAMES.replace("LOOK", look).replace("PAGES", urls))
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder}/profile", outer.as_uri()]
        answers, others = [], []
        for message in re.findall(r'CONSOLE\S* "(.*)", source: ', _output(command, timeout_s)):
            if message.startswith("SAW "):
                answers.append(json.loads(message.removeprefix("SAW ")))
            else:
                others.append(message)
    return answers, others


def _output(command: Sequence[str], timeout_s: float) -> str:
    """Return what the browser writes until it is done, or until the timeout."""
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        too_late = Timer(timeout_s, process.kill)
        too_late.start()
        try:
            assert process.stderr is not None
            return "".join(takewhile(lambda line: '"DONE", source: ' not in line, process.stderr))
        finally:
            too_late.cancel()
            process.terminate()


class Tab:
    """A page in headless Chromium, driven over a pipe by Chrome's DevTools protocol."""

    def __init__(self, write: int, read: int) -> None:
        self._write = write
        self._read = read
        self._received = b""
        self._last = 0
        self._session = ""
        self.messages: list[str] = []
        """Errors of the page."""

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol, and return its result."""
        self._last += 1
        request = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            request["sessionId"] = self._session
        os.write(self._write, json.dumps(request).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._last:
            self._note(answer)
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            ready, _, _ = select([self._read], [], [], ANSWER_TIMEOUT_S)
            assert ready, f"the browser has not answered for {ANSWER_TIMEOUT_S} s"
            received = os.read(self._read, 2**16)
            assert received, "the browser has ended"
            self._received += received
        message, _, self._received = self._received.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Runtime.exceptionThrown":
            self.messages.append(str(event["params"]["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded":
            self.messages.append(event["params"]["entry"]["text"])

    def attach(self) -> None:
        """Open an empty page, and drive it from now on."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def open(self, url: str) -> None:
        """Open an address, and wait until its scripts have run."""
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def see(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str, timeout_s: float = 60) -> None:
        """Wait until an expression is true."""
        until = monotonic() + timeout_s
        while not self.see(expression):
            assert monotonic() < until, f"{expression} is still false"
            sleep(0.05)

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press a key, such as Tab (9) or Enter (13)."""
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                windowsVirtualKeyCode=code,
                text=text if kind == "keyDown" else "",
            )

    def show(self, width: int, theme: str, height: int = 900) -> None:
        """Set the size in pixels, and the theme, `light` or `dark`."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        feature = {"name": "prefers-color-scheme", "value": theme}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def photograph(self, file: Path) -> None:
        """Write a picture of what is in sight."""
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


@contextmanager
def open_tab() -> Iterator[Tab]:
    """Start a browser, and yield its page."""
    assert CHROMIUM is not None
    to_read, write = os.pipe()
    read, to_write = os.pipe()

    def place_pipe() -> None:  # where the browser expects it
        low = fcntl.fcntl(to_read, fcntl.F_DUPFD, 10)
        high = fcntl.fcntl(to_write, fcntl.F_DUPFD, 10)
        os.dup2(low, 3)
        os.dup2(high, 4)

    flags = [flag for flag in FLAGS if not flag.startswith(("--remote-debugging", "--enable-log"))]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [CHROMIUM, *flags, "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=place_pipe,
            close_fds=False,
        )
        os.close(to_read)
        os.close(to_write)
        try:
            tab = Tab(write, read)
            tab.attach()
            yield tab
        finally:
            os.close(write)
            os.close(read)
            process.terminate()
            process.wait(30)
