"""`hookyard note RUN [TEXT] [--tag TAG] [--untag TAG]`"""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.options import RunOrSweep
from orchestrator.errors import UsageError


def note(
    run: RunOrSweep,
    text: Annotated[str | None, typer.Argument(help="What to say of it, instead of what was said before.")] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="A tag to add.")] = None,
    untag: Annotated[list[str] | None, typer.Option("--untag", help="A tag to take away.")] = None,
) -> None:
    """Writes a note about a run that is over, and tags; `ls` shows both. An experiment's `notes` and `tags` are what it
    begins with."""
    from orchestrator.records.run_driver import lease_of
    from orchestrator.records.run_folder import RunFolder

    folder = RunFolder.open(run)
    if text is None and not tag and not untag:
        raise UsageError("say what to note: a text, --tag or --untag")
    with lease_of(folder):
        metadata = folder.metadata()
        if missing := [name for name in untag or () if name not in metadata.tags]:
            raise UsageError(f"{folder} has no tag {', '.join(missing)}; it has {', '.join(metadata.tags) or 'none'}")
        tags = [name for name in dict.fromkeys([*metadata.tags, *(tag or ())]) if name not in (untag or ())]
        folder.update(tags=tags, notes=metadata.notes if text is None else text)
