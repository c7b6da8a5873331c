"""The command line: one verb, one file. A verb imports torch or ray when it is called, so that `--help` does not
wait."""

from typing import Annotated

import typer

from orchestrator.cli.average import average
from orchestrator.cli.compare import compare
from orchestrator.cli.doctor import doctor
from orchestrator.cli.errors import Verbs
from orchestrator.cli.evaluate import evaluate
from orchestrator.cli.hooks import hooks
from orchestrator.cli.init import init
from orchestrator.cli.logs import logs
from orchestrator.cli.ls import ls
from orchestrator.cli.note import note
from orchestrator.cli.replay import replay
from orchestrator.cli.report import report
from orchestrator.cli.resume import resume
from orchestrator.cli.rm import rm
from orchestrator.cli.run import run
from orchestrator.cli.samples import samples
from orchestrator.cli.schema import schema
from orchestrator.cli.show import show
from orchestrator.cli.stats import stats
from orchestrator.cli.status import status
from orchestrator.cli.stop import stop
from orchestrator.cli.submit import submit
from orchestrator.cli.sweep import sweep
from orchestrator.cli.validate import validate
from orchestrator.cli.watch import watch

app = typer.Typer(
    cls=Verbs,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Runs hooked PyTorch experiments on Ray, sweeps over anything in them, and keeps what every rank measured.",
)

for verb in (
    init,
    run,
    sweep,
    resume,
    evaluate,
    average,
    watch,
    ls,
    show,
    stats,
    samples,
    replay,
    compare,
    doctor,
    report,
    note,
    rm,
    submit,
    status,
    logs,
    stop,
    validate,
    hooks,
    schema,
):
    app.command()(verb)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"hookyard {version('hookyard')}")
        raise typer.Exit


@app.callback()
def hookyard(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
