"""`hookyard replay`: a training iteration, repeated from a checkpoint."""

from __future__ import annotations

from bdb import BdbQuit
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.debugger import check_terminal, post_mortem
from orchestrator.cli.options import AsJson, OneRun
from orchestrator.cli.output import echo, print_json, print_table, stdout_to_stderr
from orchestrator.errors import ConfigError, UsageError
from orchestrator.units import format_count

if TYPE_CHECKING:
    from hooks import Hook
    from orchestrator.replay.replay import Replay


def replay(
    run: OneRun,
    iteration: Annotated[
        int, typer.Option(metavar="N", min=1, help="The training iteration, as in its row.")
    ],
    rank: Annotated[int, typer.Option(metavar="R", min=0, help="The rank whose row is shown.")] = 0,
    pdb: Annotated[
        bool,
        typer.Option("--pdb", help="Open Python's debugger at the iteration's batch (1 rank)."),
    ] = False,
    hook: Annotated[
        str | None,
        typer.Option(metavar="FILE:CLASS", help="An additional hook (1 rank): probe.py:Probe"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Repeat a training iteration from the nearest checkpoint, and compare it with its stored row.

    Nothing is written into the run.

    Example: hookyard replay runs/spirals --iteration 12
    """
    from orchestrator.engines.error_origin import find_root_cause_in_user_code
    from orchestrator.engines.rank_failures import RankFailed
    from orchestrator.process.interrupts import interrupt_at_sigterm
    from orchestrator.replay.replay import replay as repeat
    from orchestrator.runs.result import open_run

    hooks: dict[str, Hook] = {}
    if pdb:
        check_terminal()
        hooks["replay_debugger"] = _make_debugger_hook(iteration)
    if hook is not None:
        hooks["replay_hook"] = _make_hook(hook)

    output = nullcontext() if pdb else stdout_to_stderr()
    try:
        with output, interrupt_at_sigterm(), post_mortem(pdb):
            result = repeat(open_run(run), iteration, rank, hooks)
    except RankFailed as error:
        if isinstance(find_root_cause_in_user_code(error), BdbQuit):
            # The user left the debugger.
            return
        raise

    if as_json:
        _print_as_json(result)
    else:
        _print_row(result)
        echo(_describe_outcome(result))


def _print_as_json(result: Replay) -> None:
    print_json(
        {
            "checkpoint": result.checkpoint,
            "threads": result.threads,
            "agrees": result.is_identical,
            "row": result.row.reset_index().to_dict("records"),
        }
    )


def _print_row(result: Replay) -> None:
    rows = []
    for name, values in result.row.iterrows():
        same = "yes" if values["same"] else "no"
        rows.append((name, values["stored"], values["replayed"], same))
    print_table(("column", "stored", "replayed", "same"), rows)


def _describe_outcome(result: Replay) -> str:
    threads = format_count(result.threads, "thread")
    start = f"Replayed from {result.checkpoint or 'the beginning'} with {threads}:"
    if result.row["stored"].isna().all():
        start += " the run failed in this iteration, the replay did not;"
    if result.losses.empty:
        return f"{start} no earlier losses to compare"
    first, last = result.losses["iteration"].agg(["min", "max"])
    verb = "are" if result.is_identical else "are not"
    return f"{start} the losses of iterations {first} to {last} {verb} bit-for-bit equal"


def _make_hook(argument: str) -> Hook:
    """Make the hook of --hook, which is a class in a file or a module."""
    from hooks.import_path import extend_import_path
    from orchestrator.experiment.make_hooks import make_hook

    place, _, name = argument.rpartition(":")
    if not place or not name:
        raise UsageError(
            f"--hook must be FILE:CLASS or MODULE:CLASS, such as probe.py:Probe; got {argument!r}"
        )
    file = Path(place)
    module = file.stem if file.suffix == ".py" else place
    if file.suffix == ".py" and not file.is_file():
        raise UsageError(f"--hook {argument}: the file {file} does not exist")

    extend_import_path([file.parent.absolute()])
    try:
        return make_hook("replay_hook", {"type": f"{module}:{name}"}).hook
    except ConfigError as error:
        problems = [str(replace(problem, path="")) for problem in error.problems]
        raise UsageError(f"--hook {argument}: {'; '.join(problems)}") from None


def _make_debugger_hook(iteration: int) -> Hook:
    """Make a hook that opens Python's debugger at the batch of an iteration."""
    from hooks import Hook, State
    from orchestrator.terminal.debugger import Debugger

    class StopAtBatch(Hook):
        def on_batch(self, state: State) -> None:
            if state.phase == "train" and state.iteration + 1 == iteration:
                Debugger(nullcontext).set_trace()

    return StopAtBatch()
