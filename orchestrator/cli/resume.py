"""`hookyard resume RUN`"""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.options import Address, AsJson
from orchestrator.cli.run import finish


def resume(
    run: Annotated[str, typer.Argument(help="The run's folder.")],
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Goes on with a run that was interrupted, failed or lost its driver, from its last checkpoint."""
    from orchestrator.runs import driver

    finish(driver.resume(run, address=address), as_json)
