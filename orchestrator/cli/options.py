"""The flags that verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.completion import override_keys, run_folders
from orchestrator.records.metadata import EngineName

Config = Annotated[Path, typer.Argument(help="An experiment or sweep file.")]
RunOrSweep = Annotated[str, typer.Argument(help="The folder of a run or a sweep.", autocompletion=run_folders)]
OneRun = Annotated[str, typer.Argument(help="The folder of a run.", autocompletion=run_folders)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...", help="Laid over the file: optimizer.lr=0.05", autocompletion=override_keys
    ),
]
StorageFlag = Annotated[
    str, typer.Option("--storage", metavar="URL", help="Where runs are kept: a folder, or s3://...")
]
Name = Annotated[
    str | None, typer.Option("--name", help="The name of the run's folder; the experiment's own by default.")
]
Address = Annotated[
    str | None,
    typer.Option("--address", help="A Ray cluster to join; RAY_ADDRESS by default, else Ray is started here."),
]
Dashboard = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="URL",
        help="The cluster's dashboard: http://127.0.0.1:8265; RAY_API_SERVER_ADDRESS by default.",
    ),
]
JobName = Annotated[str, typer.Argument(metavar="JOB", help="A job's name, as submit printed it.")]
Engine = Annotated[
    EngineName | None,
    typer.Option(
        "--engine",
        help=(
            "What trains it: Ray Train, where nothing is said; a gang, which starts sooner; or one rank in this"
            " process."
        ),
    ),
]
Local = Annotated[bool, typer.Option("--local", help="One process, without Ray.")]
SkipPreflight = Annotated[bool, typer.Option("--skip-preflight", help="On a cluster: do not look at its nodes first.")]
PlanOnly = Annotated[bool, typer.Option("--plan", help="Print what would be done, and start nothing.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
