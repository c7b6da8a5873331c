"""Quantities as sentences say them."""


def seconds(value: float) -> str:
    """`12.3 ms`, `1.5 s`."""
    return f"{value * 1000:.3g} ms" if abs(value) < 1 else f"{value:.3g} s"


def size(value: float) -> str:
    """`12.3 MiB`, `1.5 GiB`."""
    return f"{value / 2**20:.3g} MiB" if abs(value) < 2**30 else f"{value / 2**30:.3g} GiB"
