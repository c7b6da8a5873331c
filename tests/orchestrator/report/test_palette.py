"""Contrast as WCAG 2.2 reckons it, and colours as the colour-blind see them (Machado, Oliveira and Fernandes 2009)."""

from __future__ import annotations

import re
from importlib import resources

import numpy as np
import pytest
from numpy.typing import NDArray

from orchestrator.report import palette

Floats = NDArray[np.float64]

SEEN = {
    "everybody": np.eye(3),
    "no red": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "no green": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "no blue": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)


def linear(*colours: str) -> Floats:
    channels = np.array([[int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)] for colour in colours])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def lab(colours: Floats) -> Floats:
    xyz = np.clip(colours, 0, 1) @ XYZ.T / [0.95047, 1, 1.08883]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116).T
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=1)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_colour_stands_out_from_the_page(theme: str) -> None:
    luminance = linear(*(kind[theme] for kind in palette.KINDS)) @ XYZ[1]
    page = float((linear(palette.PAGE[theme]) @ XYZ[1])[0])
    contrast = (np.maximum(luminance, page) + 0.05) / (np.minimum(luminance, page) + 0.05)
    assert contrast.min() >= 3


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("who", SEEN)
def test_any_two_colours_can_be_told_apart(theme: str, who: str) -> None:
    seen = lab(linear(*(kind[theme] for kind in palette.KINDS)) @ SEEN[who].T)
    apart = np.linalg.norm(seen[:, None] - seen[None], axis=-1)
    assert apart[~np.eye(len(seen), dtype=bool)].min() >= 20


def test_shades_grow_lighter_step_by_step() -> None:
    shades = [f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in palette.shades()]
    assert len(shades) == palette.SHADES
    assert (np.diff(linear(*shades) @ XYZ[1]) > 0).all()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read_on_the_page_and_on_what_is_raised(theme: str) -> None:
    style = resources.files("orchestrator.report").joinpath("style.css").read_text()
    pairs = re.findall(r"--(\w+): light-dark\((#\w{6}), (#\w{6})\)", style)
    colours = {name: pair[theme == "dark"] for name, *pair in pairs}
    texts = linear(*(colours[name] for name in ("ink", "soft", "accent", "bad", "good", "warn"))) @ XYZ[1]
    for ground in (palette.PAGE[theme], colours["raised"]):
        luminance = float((linear(ground) @ XYZ[1])[0])
        contrast = (np.maximum(texts, luminance) + 0.05) / (np.minimum(texts, luminance) + 0.05)
        assert contrast.min() >= 4.5
