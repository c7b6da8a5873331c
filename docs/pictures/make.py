"""Make the pictures of the docs from sweeps and runs, or draw them: `python docs/pictures/make.py
[NAME ...]`.

Needs Chromium for the reports. The pictures are written beside this file.
"""

import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
# Scripts look for packages in their own folder, and not in that of the project.
sys.path.append(str(HERE.parents[1]))

from docs.pictures.curves import draw_curves  # noqa: E402
from docs.pictures.run_drawings import (  # noqa: E402
    draw_crashes,
    draw_growth,
    draw_iteration,
    draw_storage,
    draw_timeline,
)
from docs.pictures.screenshots import (  # noqa: E402
    draw_first_sweep,
    draw_live_page,
    draw_report,
)
from docs.pictures.sweep_drawings import (  # noqa: E402
    draw_race,
    draw_repeats,
    draw_rungs,
    draw_shared_training,
)
from docs.pictures.terminal import draw_terminal  # noqa: E402

SCREENSHOTS = {
    "report": draw_report,
    "first_sweep": draw_first_sweep,
    "live_page": draw_live_page,
    "terminal": draw_terminal,
    "curves": draw_curves,
}
"""Functions that train in a folder, and write the picture of their name."""
DRAWINGS = {
    "timeline": draw_timeline,
    "iteration": draw_iteration,
    "storage": draw_storage,
    "crashes": draw_crashes,
    "rungs": draw_rungs,
    "race": draw_race,
    "shared_training": draw_shared_training,
    "repeats": draw_repeats,
    "growth": draw_growth,
}
"""Functions that return the figure of their name."""


def make(name: str) -> None:
    """Make one picture."""
    if name in DRAWINGS:
        DRAWINGS[name]().write(HERE / f"{name}.svg")
        return
    with tempfile.TemporaryDirectory() as folder:
        SCREENSHOTS[name](Path(folder))


if __name__ == "__main__":
    for name in sys.argv[1:] or [*SCREENSHOTS, *DRAWINGS]:
        make(name)
