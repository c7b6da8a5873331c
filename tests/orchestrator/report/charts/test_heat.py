from __future__ import annotations

import base64
from io import BytesIO

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from PIL import Image

from orchestrator.report import palette
from orchestrator.report.binning import worst_of_bins
from orchestrator.report.charts.heat import heat_map, png
from orchestrator.stats.read.query import Rows
from tests.orchestrator.report.reading import parsed, tables_of, text_of


def read_png(data: bytes) -> tuple[NDArray[np.uint8], bytes]:
    """Pixels and colours of a picture of indexed colours, of which the first is transparent."""
    picture = Image.open(BytesIO(data), formats=["PNG"])
    assert (picture.mode, picture.info["transparency"]) == ("P", 0)
    return np.asarray(picture), bytes(picture.getpalette() or ())


def test_a_picture_has_a_pixel_for_each_number() -> None:
    shades = np.array([[0, 1], [2, 64], [3, 4]], np.uint8)
    pixels, colours = read_png(png(shades))
    assert pixels.tolist() == shades.tolist()
    assert colours[3:] == palette.shades().tobytes()


def made() -> str:
    values = np.arange(12.0).reshape(3, 4)
    values[2, 0] = np.nan
    ranks, iterations = (places.ravel() for places in np.mgrid[0:3, 1:5])
    grid = worst_of_bins(
        Rows.of(pd.DataFrame({"rank": ranks, "iteration": iterations, "x": values.ravel() / 1000})), ["x"], 9, 9
    )["x"]
    return heat_map("own work", "step_s", grid, "How.")


def test_larger_numbers_have_later_shades_and_missing_ones_none() -> None:
    source = next(parsed(made()).iter("img")).get("src", "")
    pixels, _ = read_png(base64.b64decode(source.removeprefix("data:image/png;base64,")))
    assert pixels[0, 0] == 1
    assert pixels[2, 0] == 0
    assert (np.diff(pixels[:2].ravel().astype(int)) > 0).all()
    assert pixels.max() == palette.SHADES


def test_the_numbers_are_beside_the_picture_and_the_worst_is_named() -> None:
    tree = parsed(made())
    image = next(tree.iter("img"))
    values = np.frombuffer(base64.b64decode(image.get("data-values", "")), "<f4")
    assert values[1] == np.float32(0.001)
    assert np.isnan(values[8])
    assert np.frombuffer(base64.b64decode(image.get("data-columns", "")), np.uint8).reshape(3, 4)[1].tolist() == [
        1,
        2,
        3,
        4,
    ]
    assert "The largest is 11 ms: rank 2 at iteration 4." in text_of(next(tree.iter("figcaption")))


def test_the_first_row_is_above_and_each_has_a_line_in_the_table() -> None:
    labels = {one.text: one.get("style") for one in parsed(made()).iter("span") if one.get("class") == "y"}
    assert labels == {"0": "top:16.67%", "1": "top:50.00%", "2": "top:83.33%"}
    assert tables_of(made())["own work"] == [
        ["rank", "median of its cells", "largest", "of rank", "at iteration"],
        ["0", "1.5 ms", "3 ms", "0", "4"],
        ["1", "5.5 ms", "7 ms", "1", "4"],
        ["2", "10 ms", "11 ms", "2", "4"],
    ]
