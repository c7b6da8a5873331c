"""`python -m orchestrator`, the same as `hookyard`."""

import os

from orchestrator.cli import app


def main() -> None:
    """Run the command line, and exit with its code."""
    # A daemon may have closed its standard streams; the next files would get their numbers.
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    app(prog_name="hookyard")


if __name__ == "__main__":
    main()
