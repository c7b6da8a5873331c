"""The command line. A verb imports torch or ray only when it runs, so `--help` is fast."""

from typing import Annotated

import typer

from orchestrator.cli.average import average
from orchestrator.cli.commands import ExperimentCommand, Subcommand, Subcommands
from orchestrator.cli.compare import compare
from orchestrator.cli.doctor import doctor
from orchestrator.cli.evaluate import evaluate
from orchestrator.cli.export_optuna import export_optuna
from orchestrator.cli.hooks import hooks
from orchestrator.cli.init import init
from orchestrator.cli.jobs import logs, status, stop
from orchestrator.cli.ls import ls
from orchestrator.cli.note import note
from orchestrator.cli.predict import predict
from orchestrator.cli.query import query
from orchestrator.cli.replay import replay
from orchestrator.cli.report import report
from orchestrator.cli.resume import resume
from orchestrator.cli.rm import rm
from orchestrator.cli.run import run
from orchestrator.cli.samples import samples
from orchestrator.cli.schema import schema
from orchestrator.cli.serve import serve
from orchestrator.cli.show import show
from orchestrator.cli.stats import stats
from orchestrator.cli.submit import submit
from orchestrator.cli.sweep import sweep
from orchestrator.cli.validate import validate
from orchestrator.cli.verify import verify
from orchestrator.cli.watch import watch

PANELS = {
    "Train": (init, validate, verify, run, sweep, resume),
    "Results": (
        watch,
        serve,
        ls,
        show,
        stats,
        query,
        report,
        compare,
        doctor,
        export_optuna,
        note,
        rm,
    ),
    "Checkpoints and samples": (evaluate, predict, average, samples, replay),
    "Clusters": (submit, status, logs, stop),
    "Reference": (hooks, schema),
}

WITH_EXPERIMENT_KEYS = (validate, verify, run, sweep, submit)
"""Commands whose overrides may change any key of an experiment."""

app = typer.Typer(
    cls=Subcommands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Run PyTorch experiments and sweeps on Ray, with hooks and per-rank statistics.",
)

for panel, verbs in PANELS.items():
    for verb in verbs:
        kind = ExperimentCommand if verb in WITH_EXPERIMENT_KEYS else Subcommand
        app.command(cls=kind, rich_help_panel=panel)(verb)


def _print_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        typer.echo(f"hookyard {version('hookyard')}")
        raise typer.Exit


@app.callback()
def hookyard(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass
