"""Images, figures and tables, decoded again with Pillow and pandas, and what is refused."""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import Tensor

from hooks.images import copy_image
from hooks.media import MediaEntry, copy_table, draw_figure, measure_png
from hooks.state import State

ENTRY = {"kind": "image", "phase": "val", "epoch": 0, "step": 7, "iteration": 7, "samples": 56}


def decoded(data: bytes) -> Any:
    return np.asarray(Image.open(io.BytesIO(data)))


def pixels(tensor: Tensor) -> Any:
    return decoded(copy_image("x", tensor)())


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_image_has_the_bytes_of_the_tensor(channels: int) -> None:
    tensor = torch.randint(0, 256, (channels, 5, 7), dtype=torch.uint8)
    expected = tensor.permute(1, 2, 0).numpy()
    np.testing.assert_array_equal(pixels(tensor), expected[..., 0] if channels == 1 else expected)
    assert measure_png(copy_image("x", tensor)()) == (7, 5)


def test_gray_image_needs_no_channel() -> None:
    tensor = torch.randint(0, 256, (5, 7), dtype=torch.uint8)
    np.testing.assert_array_equal(pixels(tensor), tensor.numpy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_floats_are_scaled_and_clipped(dtype: torch.dtype) -> None:
    tensor = torch.tensor([[-0.5, 0.0, 0.25], [0.5, 1.0, 1.5]], dtype=dtype)
    # 255 times the value: 63.75 and 127.5, where NumPy rounds to the even neighbor, too.
    np.testing.assert_array_equal(pixels(tensor), [[0, 0, 64], [128, 255, 255]])


def test_mask_is_black_and_white() -> None:
    np.testing.assert_array_equal(pixels(torch.eye(2, dtype=torch.bool)), [[255, 0], [0, 255]])


def test_batch_is_a_grid_by_hand() -> None:
    """Nine images of one pixel: eight in the first row, with two pixels between them."""
    found = pixels(torch.arange(1, 10, dtype=torch.uint8).reshape(9, 1, 1, 1))
    expected = np.zeros((4, 22), dtype=np.uint8)
    expected[0, ::3] = range(1, 9)
    expected[3, 0] = 9
    np.testing.assert_array_equal(found, expected)


def test_only_the_first_images_of_a_large_batch_are_shown() -> None:
    batch = torch.rand(100, 1, 3, 3)
    np.testing.assert_array_equal(pixels(batch), pixels(batch[:64]))


def test_image_is_that_of_the_call() -> None:
    tensor = torch.zeros(2, 2)
    encode = copy_image("x", tensor)
    tensor.fill_(1)
    assert decoded(encode()).max() == 0


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.zeros(5), r"image 'x' has the shape \(5,\); expected \(H, W\), \(C, H, W\)"),
        (torch.zeros(8, 8, 3), r"has the shape \(8, 8, 3\); .* with 1, 3 or 4 channels C"),
        (torch.zeros(2, 3, 0, 4), r"has the shape \(2, 3, 0, 4\)"),
        (torch.zeros(2, 2, dtype=torch.int64), "has the type torch.int64; expected uint8"),
        (torch.tensor([[0.5, float("nan")]]), "has values that are NaN or infinite"),
        (torch.tensor([[0.5, float("inf")]]), "has values that are NaN or infinite"),
        ([[1.0]], "image 'x' is a list; expected a tensor"),
    ],
)
def test_wrong_images_are_refused(tensor: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        State().record_image("x", tensor)


@pytest.mark.parametrize(
    "name", ["", "/a", "a/", "a//b", "../a", "a/../b", ".a", "a\\b", "a\nb", 3]
)
def test_wrong_names_are_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="name"):
        State().record_image(name, torch.zeros(2, 2))


def test_other_ranks_do_nothing() -> None:
    state = State(rank=1, world_size=2)
    wrong: Any = "neither an image nor a figure nor a table"
    for record in (state.record_image, state.record_figure, state.record_table):
        record("", wrong)


def test_figure_is_drawn_at_once() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    figure, axes = pyplot.subplots(figsize=(3, 2), dpi=50)
    axes.plot([1, 2])
    expected = io.BytesIO()
    figure.savefig(expected, format="png")
    encode = draw_figure("x", figure)
    figure.clear()
    pyplot.close(figure)
    np.testing.assert_array_equal(decoded(encode()), decoded(expected.getvalue()))
    assert measure_png(encode()) == (150, 100)


def test_table_is_that_of_the_call() -> None:
    frame = pd.DataFrame({"word": ["a,b", 'c"d'], "score": [0.1, 2.5]})
    encode = copy_table("x", frame)
    frame.loc[0, "score"] = 9.0
    expected = pd.DataFrame({"word": ["a,b", 'c"d'], "score": [0.1, 2.5]})
    pd.testing.assert_frame_equal(pd.read_csv(io.BytesIO(encode())), expected)


def test_index_with_names_is_a_column() -> None:
    frame = pd.DataFrame({"score": [1, 2]}, index=pd.Index(["a", "b"], name="word"))
    found = pd.read_csv(io.BytesIO(copy_table("x", frame)()))
    assert found.to_dict("list") == {"word": ["a", "b"], "score": [1, 2]}


@pytest.mark.parametrize(
    ("index", "columns"),
    [
        (pd.RangeIndex(2), {}),
        (pd.RangeIndex(2, name="class"), {"class": [0, 1]}),
        (pd.RangeIndex(5, 7, name="class"), {"class": [5, 6]}),
        (pd.RangeIndex(2, 4), {"Unnamed: 0": [2, 3]}),
        (pd.RangeIndex(0, 4, 2), {"Unnamed: 0": [0, 2]}),
    ],
    ids=str,
)
def test_only_an_index_that_counts_the_rows_is_left_out(
    index: pd.RangeIndex, columns: dict[str, list[int]]
) -> None:
    frame = pd.DataFrame({"score": [1, 2]}, index=index)
    written = pd.read_csv(io.BytesIO(copy_table("x", frame)()))
    assert written.to_dict("list") == {**columns, "score": [1, 2]}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (lambda state: state.record_figure("x", 3), "figure 'x' is an int; expected a Matplotlib"),
        (lambda state: state.record_table("x", [1]), "table 'x' is a list; expected a pandas"),
    ],
)
def test_other_objects_are_refused(record: Callable[[State], None], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        record(State())


def test_file_is_named_after_the_name_and_the_step() -> None:
    entry: Any = MediaEntry("val/ema/samples", **ENTRY)  # type: ignore[arg-type]
    assert entry.file == "media/val/ema/samples/step-00000007.png"
    table: Any = MediaEntry("val/worst", **{**ENTRY, "kind": "table"})  # type: ignore[arg-type]
    assert table.file == "media/val/worst/step-00000007.csv"
