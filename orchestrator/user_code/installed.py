"""Files that are installed with Python or its packages, and therefore are not user code."""

import os
import sysconfig
from pathlib import PurePath

_PREFIXES = tuple(
    f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "purelib", "platlib")
)

_PACKAGE_FOLDERS = frozenset({"site-packages", "dist-packages"})
"""Names of the folders with packages, also those outside this interpreter's own: of the base of a
virtual environment, of the user in `~/.local`, of Debian, and what a `.pth` file adds."""


def is_installed(file: str) -> bool:
    """Return whether a file belongs to Python's standard library or to an installed package."""
    return file.startswith(_PREFIXES) or not _PACKAGE_FOLDERS.isdisjoint(PurePath(file).parts)
