"""Pages in a real browser: headless Chromium, without a network."""

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from threading import Timer
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
