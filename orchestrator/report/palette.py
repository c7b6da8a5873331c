"""Palette: the colours of charts, in both themes.

Ten colours for things that differ in kind: each has a contrast of 3 or more to the page, and any two stay apart for
people who see no red, no green or no blue. A test computes both. What differs in size is Viridis, which matplotlib's
authors made to be read in grey and by the colour-blind.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

PAGE = {"light": "#ffffff", "dark": "#15181e"}
"""The page's own colour."""
KINDS = (
    {"light": "#153066", "dark": "#2766d2"},
    {"light": "#ae8a0c", "dark": "#e49c39"},
    {"light": "#276642", "dark": "#b7f6d2"},
    {"light": "#6f5dc9", "dark": "#c99cff"},
    {"light": "#6f0c0c", "dark": "#c04227"},
    {"light": "#0c9cae", "dark": "#4bf6ff"},
    {"light": "#935415", "dark": "#eded93"},
    {"light": "#541e39", "dark": "#c94ba5"},
    {"light": "#6f9c54", "dark": "#93b778"},
    {"light": "#938a81", "dark": "#81786f"},
)
"""Colours for kinds; the last, a grey, is for what stands back."""
BACK = 9
_VIRIDIS = (
    "#440154",
    "#482878",
    "#3e4989",
    "#31688e",
    "#26828e",
    "#1f9e89",
    "#35b779",
    "#6ece58",
    "#b5de2b",
    "#fde725",
)
SHADES = 64


def shades() -> NDArray[np.uint8]:
    """SHADES colours from the least to the most, as red, green and blue."""
    anchors = np.array([[int(colour[place : place + 2], 16) for place in (1, 3, 5)] for colour in _VIRIDIS])
    places = np.linspace(0, len(anchors) - 1, SHADES)
    channels = [np.interp(places, np.arange(len(anchors)), anchors[:, channel]) for channel in range(3)]
    return np.stack(channels, axis=1).round().astype(np.uint8)


def stylesheet() -> str:
    """The colours as CSS: `.k0` and on set `--kind`, and `--page` is the page."""
    kinds = [f".k{number}{{--kind:light-dark({kind['light']},{kind['dark']})}}" for number, kind in enumerate(KINDS)]
    return "\n".join([f":root{{--page:light-dark({PAGE['light']},{PAGE['dark']})}}", *kinds])
