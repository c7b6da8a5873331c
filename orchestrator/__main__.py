"""`python -m orchestrator`, the same as `hookyard`."""

from orchestrator.cli import app


def main() -> None:
    """Runs the command line and exits with its code."""
    app(prog_name="hookyard")


if __name__ == "__main__":
    main()
