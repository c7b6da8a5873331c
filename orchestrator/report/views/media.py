"""Images, figures and tables that a run has recorded, with a slider over the steps."""

import base64
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from hooks.matrix import MAX_LABELED, draw_matrix, read_matrix
from hooks.media import FOLDER, MediaEntry, read_table
from orchestrator.disk.media import read_media
from orchestrator.disk.run_folder import RunFolder
from orchestrator.report import page
from orchestrator.report.markup import Markup, concatenate, element
from orchestrator.report.matrices import render_matrix
from orchestrator.report.tables import make_table
from orchestrator.units import number_epoch

Link = Callable[[str], str]
"""Function that returns the address of a file."""
MAX_NAMES = 30
"""Maximum number of names that are shown."""
MAX_STEPS = 24
"""Maximum number of steps of which the page holds the content."""
MAX_LINKED = 1000
"""Maximum number of steps to whose images the page links."""
MAX_BYTES = 2**24
"""Size of the files that the page holds, beyond which it holds fewer steps."""
MAX_ROWS = 100
"""Maximum number of rows of a table."""
_SMALL = 256
"""Width of an image in pixels up to which it is enlarged, and its pixels stay squares."""


def render_media(folder: RunFolder, link: Link | None) -> list[page.Section]:
    """Render what a run has recorded, if anything. `link` is for images that the page does not
    hold."""
    by_name: dict[str, list[MediaEntry]] = {}
    for entry in read_media(folder.storage):
        by_name.setdefault(entry.name, []).append(entry)
    if not by_name:
        return []

    shown = dict([*by_name.items()][:MAX_NAMES])
    steps = MAX_STEPS if link else _choose_number_of_steps(folder, shown)
    figures = [_render_name(folder, entries, steps, link) for entries in shown.values()]
    content = [element("div", *figures, class_="charts")]
    if len(by_name) > MAX_NAMES:
        names = ", ".join([*by_name][MAX_NAMES:])
        content.append(page.make_note(f"Not shown: {names}. Their files are in {FOLDER}/."))
    return [page.Section("media", "Images and tables", concatenate(content))]


def _choose_number_of_steps(folder: RunFolder, by_name: Mapping[str, Sequence[MediaEntry]]) -> int:
    """Return how many steps of each name a page may hold."""
    sizes = {name: state.size_bytes for name, state in folder.storage.tree(FOLDER).items()}

    def measure(steps: int) -> int:
        total = 0
        for entries in by_name.values():
            for entry in _select(entries, steps):
                total += sizes.get(entry.file.removeprefix(f"{FOLDER}/"), 0)
        return total

    steps = MAX_STEPS
    while steps > 1 and measure(steps) > MAX_BYTES:
        steps //= 2
    return steps


def _select(entries: Sequence[MediaEntry], max_steps: int) -> list[MediaEntry]:
    """Return at most `max_steps` entries, spread evenly over the run, with the last one."""
    places = np.linspace(len(entries) - 1, 0, min(max_steps, len(entries))).round()
    return [entries[int(place)] for place in reversed(places)]


def _render_name(
    folder: RunFolder, entries: Sequence[MediaEntry], steps: int, link: Link | None
) -> Markup:
    """Render the entries of one name, with a slider if there are several steps."""
    name = entries[0].name
    is_linked = link is not None and entries[0].is_image
    selected = _select(entries, MAX_LINKED if is_linked else steps)

    def render(entry: MediaEntry) -> Markup:
        label = element("p", _describe(entry), class_="note")
        content = _render_content(folder, entry, link)
        return element("div", label, content, hidden=entry is not selected[-1])

    caption = [element("b", name)]
    if len(selected) < len(entries):
        note = f"{len(selected)} of {len(entries):,} steps"
        caption.append(element("span", note, class_="note"))
    parts = [element("figcaption", *caption)]
    if len(selected) > 1:
        parts.append(_make_slider(name, len(selected)))
    parts.append(element("div", *folder.storage.map(render, selected), class_="frames"))
    return element("figure", *parts, id=f"media-{name}", class_="media")


def _make_slider(name: str, steps: int) -> Markup:
    """Make a slider over the steps of a name, which begins at the last one."""
    return element(
        "input",
        type="range",
        max=steps - 1,
        value=steps - 1,
        autocomplete="off",
        aria_label=f"Step of {name}",
    )


def _describe(entry: MediaEntry) -> str:
    return f"epoch {number_epoch(entry.epoch)}, step {entry.step:,}"


def _render_content(folder: RunFolder, entry: MediaEntry, link: Link | None) -> Markup:
    """Render a file: a link to an image, or else what it holds."""
    if link and entry.is_image:
        return _make_image(entry, link(entry.file), entry.width, entry.height)
    try:
        data = folder.storage.read(entry.file)
    except FileNotFoundError:
        return page.make_note(f"{entry.file} is missing.")
    return _embed(entry, data)


def _embed(entry: MediaEntry, data: bytes) -> Markup:
    if entry.is_image:
        return _make_image(entry, _encode(data), entry.width, entry.height)
    if entry.kind == "table":
        return _render_table(read_table(data))
    matrix = read_matrix(data)
    if max(matrix.shape) > MAX_LABELED:
        return _make_image(entry, _encode(draw_matrix(data)))
    return render_matrix(matrix)


def _encode(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def _make_image(
    entry: MediaEntry, source: str, width: int | None = None, height: int | None = None
) -> Markup:
    is_small = entry.kind == "image" and entry.width <= _SMALL
    return element(
        "img",
        src=source,
        alt=f"{entry.name}, {_describe(entry)}",
        width=width,
        height=height,
        loading="lazy",
        class_="small" if is_small else None,
    )


def _render_table(frame: pd.DataFrame) -> Markup:
    shown = frame.head(MAX_ROWS)
    caption = f"{len(shown)} of {len(frame):,} rows" if len(shown) < len(frame) else None
    rows = shown.astype(object).where(shown.notna(), None).itertuples(index=False, name=None)
    return make_table(caption, [str(name) for name in frame.columns], rows)
