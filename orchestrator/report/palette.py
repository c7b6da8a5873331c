"""Palette: the colours of charts, in both themes.

Ten colours for categories: each has a contrast of at least 3 to the page, and any two differ for colour-blind readers.
A test computes both. Sizes are in Viridis.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

PAGE = {"light": "#ffffff", "dark": "#15181e"}
"""Background."""
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
"""Colours of categories; the last is a grey for the background."""
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
    """Return SHADES colours, from low to high, as red, green and blue."""
    anchors = np.array([[int(colour[place : place + 2], 16) for place in (1, 3, 5)] for colour in _VIRIDIS])
    places = np.linspace(0, len(anchors) - 1, SHADES)
    channels = [np.interp(places, np.arange(len(anchors)), anchors[:, channel]) for channel in range(3)]
    return np.stack(channels, axis=1).round().astype(np.uint8)


def stylesheet() -> str:
    """Return the colours as CSS: `.k0` and so on set `--kind`; `--page` is the background."""
    kinds = [f".k{number}{{--kind:light-dark({kind['light']},{kind['dark']})}}" for number, kind in enumerate(KINDS)]
    return "\n".join([f":root{{--page:light-dark({PAGE['light']},{PAGE['dark']})}}", *kinds])
