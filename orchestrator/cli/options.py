"""The arguments and flags that several verbs share, and their completion in a shell, which reads
only file names."""

from glob import glob
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.disk.if_exists import IfExists
from orchestrator.disk.metadata import EngineName

_WITHOUT_HOOKS = ("distributed", "metrics", "model")
"""Folders of the package `hooks` that hold no hooks."""


def complete_runs(incomplete: str) -> list[str]:
    """Complete the runs and sweeps in `runs`, or in the folder that was typed."""
    parent = incomplete.rpartition("/")[0] if "/" in incomplete else "runs"
    folders = sorted(file.removesuffix("/run.json") for file in glob(f"{parent}/*/run.json"))
    return [folder for folder in folders if folder.startswith(incomplete) and folder.isprintable()]


def complete_hooks(incomplete: str) -> list[str]:
    """Complete the hooks that ship; each has a file of its name."""
    import hooks

    files = Path(hooks.__file__).parent.glob("*/*.py")
    names = sorted(
        file.stem
        for file in files
        if file.parent.name not in _WITHOUT_HOOKS and file.stem != "__init__"
    )
    return [name for name in names if name.startswith(incomplete)]


Config = Annotated[Path, typer.Argument(metavar="CONFIG", help="An experiment file.")]
RunOrSweep = Annotated[
    str, typer.Argument(metavar="RUN", help="A run or a sweep.", autocompletion=complete_runs)
]
OneRun = Annotated[str, typer.Argument(metavar="RUN", help="A run.", autocompletion=complete_runs)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Values to change: optimizer.lr=0.05"),
]
StorageFlag = Annotated[
    str,
    typer.Option(
        metavar="URL", help="The folder or bucket that holds all runs, such as s3://bucket/runs."
    ),
]
Name = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Name of the run; the experiment's name by default."),
]
IfNameExists = Annotated[
    IfExists,
    typer.Option(
        "--if-exists",
        help="If there is a run of this name: error; number: name this one NAME-2; replace: remove"
        " the other.",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="A Ray cluster to join: auto or ray://HOST:10001. By default RAY_ADDRESS, or a Ray on"
        " this machine.",
    ),
]
Engine = Annotated[
    EngineName | None,
    typer.Option(
        help="train: Ray Train (default); gang: Ray actors, starts sooner; in-process: one rank, no Ray."
    ),
]
Local = Annotated[bool, typer.Option("--local", help="Run in this process, without Ray.")]
SkipPreflight = Annotated[
    bool, typer.Option("--skip-preflight", help="Do not check the cluster's nodes first.")
]
PlanOnly = Annotated[bool, typer.Option("--plan", help="Print what would run, and exit.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
