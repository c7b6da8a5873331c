"""Whether imported code has been edited."""

import sys
from contextlib import suppress
from pathlib import Path


def has_code_changed_since(moment: float) -> bool:
    """Return whether the file of an imported module is newer than a Unix time."""
    for module in [*sys.modules.values()]:
        file = getattr(module, "__dict__", {}).get("__file__")
        with suppress(OSError):
            if isinstance(file, str) and Path(file).stat().st_mtime > moment:
                return True
    return False
