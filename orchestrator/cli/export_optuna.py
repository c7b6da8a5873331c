"""`hookyard export-optuna`"""

import shlex
from typing import Annotated

import typer

from orchestrator.cli.options import complete_runs
from orchestrator.cli.output import echo
from orchestrator.storage import without_credentials
from orchestrator.units import format_count


def export_optuna(
    sweep: Annotated[
        str, typer.Argument(metavar="SWEEP", help="The sweep.", autocompletion=complete_runs)
    ],
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Storage of Optuna, such as sqlite:///study.db.")
    ],
) -> None:
    """Write the ended trials of a sweep as a study of Optuna, for optuna-dashboard and Optuna's plots.

    Example: hookyard export-optuna runs/spirals-sweep sqlite:///study.db
    """
    from orchestrator.sweeps.results.optuna_study import export_study
    from orchestrator.sweeps.results.result import open_sweep

    opened = open_sweep(sweep)
    count = export_study(opened, url)
    echo(f"Wrote the study '{opened.name}' with {format_count(count, 'trial')}. To look at it:")
    echo(f"  optuna-dashboard {shlex.quote(without_credentials(url))}")
