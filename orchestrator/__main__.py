"""`python -m orchestrator`, the same as `hookyard`."""

import os

from orchestrator.cli import app


def main() -> None:
    """Run the command line, and exit with its code."""
    _open_standard_streams()
    app(prog_name="hookyard")


def _open_standard_streams() -> None:
    """Open the null device as the standard streams that a daemon has closed, because the next files
    would get their numbers."""
    number = os.open(os.devnull, os.O_RDWR)
    while number <= 2:
        number = os.open(os.devnull, os.O_RDWR)
    os.close(number)


if __name__ == "__main__":
    main()
