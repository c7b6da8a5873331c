"""`python -m orchestrator`, the same as `hookyard`."""

from orchestrator.cli import app
from orchestrator.cli.errors import open_standard_streams


def main() -> None:
    """Runs the command line and exits with its code."""
    open_standard_streams()
    app(prog_name="hookyard")


if __name__ == "__main__":
    main()
