"""Matrices: their numbers come back, and their pictures are as dark as the numbers are large."""

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hooks.matrix import compute_shares, draw_matrix, encode_matrix, format_number, read_matrix

COUNTS = np.array([[8, 2, 0], [0, 5, 5], [1, 0, 0]])


def picture(values: Any) -> Any:
    return np.asarray(Image.open(io.BytesIO(draw_matrix(encode_matrix(values, "")))))


def test_numbers_come_back() -> None:
    data = encode_matrix(COUNTS, "target / prediction")
    assert data.decode().splitlines()[:2] == ["target / prediction,0,1,2", "0,8,2,0"]
    found = read_matrix(data)
    assert found.index.name == "target / prediction"
    np.testing.assert_array_equal(found.to_numpy(), COUNTS)


def test_share_is_that_of_the_largest_in_the_row() -> None:
    shares = compute_shares(read_matrix(encode_matrix(COUNTS, "")))
    np.testing.assert_allclose(shares, [[1, 0.25, 0], [0, 1, 1], [1, 0, 0]])


def test_rows_of_zeros_and_of_nothing_are_white() -> None:
    shares = compute_shares(read_matrix(encode_matrix([[0, 0], [np.nan, -3]], "")))
    np.testing.assert_allclose(shares, [[0, 0], [0, 1]])


def test_small_matrix_has_a_cell_for_each_number() -> None:
    corner = np.array([[[0, 0, 0]]])
    cells = picture(COUNTS)[54::52, 54::52] + corner  # near the upper left corner of each
    assert cells.shape == (3, 3, 3)
    assert (cells[0, 2] == 255).all()
    # 60% of #1e5dc0 on white, by hand: 255 - 0.6 * (255 - 30), and so on.
    assert cells[0, 0].tolist() == [120, 158, 217]


@pytest.mark.parametrize("size", [33, 1000, 1100])
def test_large_matrix_is_a_map(size: int) -> None:
    found = picture(np.eye(size))
    scale = max(1, 1024 // size)
    assert found.shape == (size * scale, size * scale, 3)
    diagonal = np.arange(size) * scale
    assert (found[diagonal, diagonal] == [120, 158, 217]).all()
    assert (found[0, scale:] == 255).all()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (123456.0, "123456"),
        (0.12345, "0.123"),
        (-2.0, "-2"),
        (np.nan, "nan"),
        (np.inf, "inf"),
    ],
)
def test_counts_have_all_their_digits(value: float, text: str) -> None:
    assert format_number(value) == text
