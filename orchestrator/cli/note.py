"""`hookyard note`: notes and tags of a run that has ended."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from orchestrator.cli.options import RunOrSweep
from orchestrator.errors import UsageError


def note(
    run: RunOrSweep,
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="The note; replaces the one before.")
    ] = None,
    tag: Annotated[list[str] | None, typer.Option(metavar="TAG", help="A tag to add.")] = None,
    untag: Annotated[list[str] | None, typer.Option(metavar="TAG", help="A tag to remove.")] = None,
) -> None:
    """Write a note about a run that has ended, or change its tags; `ls` shows both.

    A run starts with the `notes` and `tags` of its experiment.

    Example: hookyard note runs/spirals "first try" --tag baseline
    """
    from orchestrator.disk.run_folder import RunFolder
    from orchestrator.disk.run_status import make_lease

    folder = RunFolder.open(run)
    if text is None and not tag and not untag:
        raise UsageError("nothing to note: give a text, --tag or --untag")
    if "" in (tag or ()):
        raise UsageError("--tag must not be empty")

    with make_lease(folder):
        metadata = folder.read_metadata()
        missing = [name for name in untag or () if name not in metadata.tags]
        if missing:
            present = "it has no tags"
            if metadata.tags:
                present = f"its tags are {', '.join(metadata.tags)}"
            raise UsageError(f"{folder} has no tag {', '.join(missing)}; {present}")

        tags = dict.fromkeys([*metadata.tags, *(tag or ())])
        kept = [name for name in tags if name not in (untag or ())]
        notes = metadata.notes if text is None else text
        folder.run_file.replace(replace(metadata, tags=kept, notes=notes))
