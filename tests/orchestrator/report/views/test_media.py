"""What a run has recorded, as its page shows it."""

import base64
import io
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from hooks import State
from hooks.matrix import encode_matrix
from orchestrator.disk.media import MediaWriter
from orchestrator.disk.run_folder import RunFolder
from orchestrator.report.views import media
from orchestrator.report.views.media import render_media
from orchestrator.storage import Storage
from tests.orchestrator.report.reading import parsed, text_of

HOSTILE = "<script>alert(1)<&quot;script>"


def recording(folder: Path) -> State:
    return State(media=MediaWriter(Storage(folder)), phase="val")


def shown(folder: Path, link: Any = None) -> Any:
    (section,) = render_media(RunFolder(folder), link)
    return {
        figure.findtext("figcaption/b"): figure for figure in parsed(section.content).iter("figure")
    }


def frames(figure: Any) -> list[Any]:
    (content,) = (part for part in figure if part.get("class") == "frames")
    return list(content)


def record_images(state: State, count: int, name: str = "samples") -> None:
    for step in range(count):
        state.step = step
        state.epoch = step // 10
        state.record_image(name, torch.full((4, 6), step, dtype=torch.uint8))
        state.media.flush()  # type: ignore[union-attr]


def test_run_that_has_recorded_nothing_has_no_section(tmp_path: Path) -> None:
    assert render_media(RunFolder(tmp_path), None) == []


def test_image_of_each_step_is_on_the_page_and_the_last_one_in_sight(tmp_path: Path) -> None:
    record_images(recording(tmp_path), 12)
    figure = shown(tmp_path)["val/samples"]
    slider = figure.find("input")
    assert (slider.get("max"), slider.get("value")) == ("11", "11")
    assert [frame.get("hidden") for frame in frames(figure)] == [""] * 11 + [None]
    assert [text_of(frame) for frame in frames(figure)][8:] == [
        "epoch 1, step 8",
        "epoch 1, step 9",
        "epoch 2, step 10",
        "epoch 2, step 11",
    ]
    for step, frame in enumerate(frames(figure)):
        image = frame.find("img")
        kind, _, data = image.get("src").partition(",")
        assert kind == "data:image/png;base64"
        pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))
        np.testing.assert_array_equal(pixels, np.full((4, 6), step))
        assert (image.get("width"), image.get("height")) == ("6", "4")
    assert image.get("alt") == "val/samples, epoch 2, step 11"


def test_single_step_has_no_slider(tmp_path: Path) -> None:
    record_images(recording(tmp_path), 1)
    assert shown(tmp_path)["val/samples"].find("input") is None


def test_many_steps_are_shown_evenly_and_linked_wholly(tmp_path: Path) -> None:
    record_images(recording(tmp_path), 70)
    figure = shown(tmp_path)["val/samples"]
    steps = [int(text_of(frame).rpartition(" ")[2]) for frame in frames(figure)]
    assert steps[0] == 0
    assert steps[-1] == 69
    assert len(steps) == media.MAX_STEPS
    assert set(np.diff(steps)) == {3}
    assert figure.findtext("figcaption/span") == "24 of 70 steps"
    linked = shown(tmp_path, "/media?{}".format)["val/samples"]
    assert frames(linked)[3].find("img").get("src") == (
        "/media?media/val/samples/step-00000003.png"
    )
    assert len(frames(linked)) == 70


def test_page_holds_fewer_steps_of_large_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_images(recording(tmp_path), 24)
    total = sum(path.stat().st_size for path in (tmp_path / "media").rglob("*.png"))
    monkeypatch.setattr(media, "MAX_BYTES", total / 3)
    assert len(frames(shown(tmp_path)["val/samples"])) == 6


def test_table_has_its_cells(tmp_path: Path) -> None:
    state = recording(tmp_path)
    frame = pd.DataFrame({"text": ["<b>", None], "score": [0.25, 3.0]})
    state.record_table("worst", frame)
    state.step = 1
    state.record_table("worst", pd.DataFrame({"number": range(150)}))
    state.media.flush()  # type: ignore[union-attr]
    first, last = frames(shown(tmp_path)["val/worst"])
    cells = [[text_of(cell) for cell in row] for row in first.iter("tr")]
    assert cells == [["text", "score"], ["<b>", "0.25"], ["", "3"]]
    assert text_of(last.find("div/table/caption")) == "100 of 150 rows"
    assert len(list(last.iter("tr"))) == 101


def test_matrix_is_a_table_of_shades_or_a_picture(tmp_path: Path) -> None:
    state = recording(tmp_path)
    small = np.array([[3, 1], [0, 12]])
    state.add_media("matrix", "small", partial(encode_matrix, small, "target / prediction"))
    state.add_media("matrix", "large", partial(encode_matrix, np.eye(100), ""))
    state.media.flush()  # type: ignore[union-attr]
    figures = shown(tmp_path)
    (frame,) = frames(figures["val/small"])
    assert text_of(frame.find("div/table/caption")).startswith("Rows: target. Columns: prediction.")
    rows = [[text_of(cell) for cell in row] for row in frame.iter("tr")]
    assert rows == [["", "0", "1"], ["0", "3", "1"], ["1", "0", "12"]]
    shares = [cell.get("style") for cell in frame.find("div/table/tbody").iter("td")]
    assert shares == ["--share:100%", "--share:33%", "--share:0%", "--share:100%"]
    (frame,) = frames(figures["val/large"])
    assert frame.find("img").get("src").startswith("data:image/png;base64,")


def test_names_are_escaped_and_lost_files_named(tmp_path: Path) -> None:
    state = recording(tmp_path)
    record_images(state, 2, HOSTILE)
    (tmp_path / f"media/val/{HOSTILE}/step-00000001.png").unlink()
    lost = frames(shown(tmp_path)[f"val/{HOSTILE}"])[1]
    assert text_of(lost).endswith("step-00000001.png is missing.")


def test_more_names_than_a_page_shows_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(media, "MAX_NAMES", 1)
    state = recording(tmp_path)
    for name in ("a", "b", "c"):
        record_images(state, 1, name)
    assert [*shown(tmp_path)] == ["val/a"]
    (section,) = render_media(RunFolder(tmp_path), None)
    assert "Not shown: val/b, val/c. Their files are in media/." in section.content


def test_index_cannot_lead_out_of_the_run(tmp_path: Path) -> None:
    """A name that somebody else has written is left out."""
    record_images(recording(tmp_path), 1)
    index = tmp_path / "media.jsonl"
    line = index.read_text()
    outside = line.partition(', "crc"')[0].replace("val/samples", "../../secret") + "}\n"
    index.write_text(line + outside)
    assert [*shown(tmp_path)] == ["val/samples"]
