"""`hookyard replay`, and the debugger of `--pdb`."""

from __future__ import annotations

import sys
import traceback
from bdb import BdbQuit
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

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
        check_terminal(in_process=True)
        hooks["replay_debugger"] = _make_debugger_hook(iteration)
    if hook is not None:
        hooks["replay_hook"] = _make_hook(hook)
    try:
        output = nullcontext() if pdb else stdout_to_stderr()
        with output, interrupt_at_sigterm(), post_mortem(pdb):
            result = repeat(open_run(run), iteration, rank, hooks)
    except RankFailed as error:
        if isinstance(find_root_cause_in_user_code(error), BdbQuit):  # the user left the debugger
            return None
        raise
    return _print_replay(result, as_json)


def _print_replay(result: Replay, as_json: bool) -> None:
    if as_json:
        row = result.row.reset_index().to_dict("records")
        data = {
            "checkpoint": result.checkpoint,
            "threads": result.threads,
            "agrees": result.is_identical,
            "row": row,
        }
        return print_json(data)
    rows = [
        (name, str(values["stored"]), str(values["replayed"]), "yes" if values["same"] else "no")
        for name, values in result.row.iterrows()
    ]
    print_table(("column", "stored", "replayed", "same"), rows)
    return echo(_describe_outcome(result))


def _describe_outcome(result: Replay) -> str:
    threads = f"{format_count(result.threads, 'thread')}"
    start = f"Replayed from {result.checkpoint or 'the beginning'} with {threads}:"
    if result.row["stored"].isna().all():
        start += " the run failed in this iteration, the replay did not;"
    if not len(result.losses):
        return f"{start} no earlier losses to compare"
    first, last = result.losses["iteration"].agg(["min", "max"])
    verb = "are" if result.is_identical else "are not"
    return f"{start} the losses of iterations {first} to {last} {verb} bit-for-bit equal"


def _make_hook(argument: str) -> Hook:
    from hooks.import_path import extend_import_path
    from orchestrator.experiment.components import make_hook

    file, _, name = argument.rpartition(":")
    if not file or not name:
        raise UsageError(
            f"--hook must be FILE:CLASS or MODULE:CLASS, such as probe.py:Probe; got {argument!r}"
        )
    if file.endswith(".py") and not Path(file).is_file():
        raise UsageError(f"--hook {argument}: the file {file} does not exist")
    extend_import_path([Path(file).parent.absolute()])
    try:
        return make_hook(
            "replay_hook", {"type": f"{Path(file).stem if file.endswith('.py') else file}:{name}"}
        ).hook
    except ConfigError as error:
        problems = (str(replace(problem, path="")) for problem in error.problems)
        raise UsageError(f"--hook {argument}: {'; '.join(problems)}") from None


def _make_debugger_hook(iteration: int) -> Hook:
    from hooks import Hook, State
    from orchestrator.terminal.debugger import Debugger

    class StopAtBatch(Hook):
        def on_batch(self, state: State) -> None:
            if state.phase == "train" and state.iteration + 1 == iteration:
                Debugger(nullcontext).set_trace()

    return StopAtBatch()


def check_terminal(in_process: bool) -> None:
    """Raise UsageError if --pdb has nothing to debug in this process, or no terminal."""
    if not in_process:
        raise UsageError("--pdb debugs training in this process: add --local")
    if not sys.stdin.isatty():
        raise UsageError("--pdb needs a terminal, and stdin is not one")


@contextmanager
def post_mortem(enabled: bool) -> Iterator[None]:
    """Open Python's debugger in the frame of user code if the block fails."""
    try:
        yield
    except Exception as error:
        if enabled and not isinstance(error, UsageError):
            _start_debugger(error)
        raise


def _start_debugger(error: Exception) -> None:
    from orchestrator.engines.error_origin import (
        count_frames_below_user_code,
        find_root_cause_in_user_code,
    )
    from orchestrator.terminal.debugger import Debugger

    first = find_root_cause_in_user_code(error)
    if isinstance(first, BdbQuit):
        return
    print(*traceback.format_exception_only(first), sep="", end="", file=sys.stderr)
    debugger = Debugger(nullcontext)
    if frames := count_frames_below_user_code(first):
        debugger.cmdqueue.append(f"up {frames}")
    debugger.reset()
    debugger.interaction(None, first.__traceback__)
