"""`hookyard replay RUN --iteration N [--rank R] [--pdb] [--hook probe.py:Probe]`"""

from __future__ import annotations

from bdb import BdbQuit
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.options import AsJson, OneRun
from orchestrator.cli.output import echo, print_json, print_table, talk
from orchestrator.cli.post_mortem import post_mortem, refuse_without_terminal
from orchestrator.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from hooks import Hook
    from orchestrator.runs.replay import Replay


def replay(
    run: OneRun,
    iteration: Annotated[
        int, typer.Option("--iteration", min=1, help="Where to stop: a training iteration, as its row counts it.")
    ],
    rank: Annotated[int, typer.Option("--rank", min=0, help="Whose row is shown.")] = 0,
    pdb: Annotated[
        bool, typer.Option("--pdb", help="Open Python's debugger at that iteration's batch; of one rank.")
    ] = False,
    hook: Annotated[
        str | None, typer.Option("--hook", metavar="FILE:CLASS", help="A hook in addition, of one rank: probe.py:Probe")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Trains again from the nearest checkpoint up to an iteration, writing nothing into the run, and shows that row's
    numbers beside the stored ones, and whether they agree bit for bit."""
    from orchestrator.engines.rank_failures import RankFailed, first_of_the_experiment
    from orchestrator.runs.replay import replay as again
    from orchestrator.runs.result import open_run

    hooks: dict[str, Hook] = {}
    if pdb:
        refuse_without_terminal(in_process=True)
        hooks["replay_debugger"] = _debugger(iteration)
    if hook is not None:
        hooks["replay_hook"] = _hook(hook)
    try:
        with nullcontext() if pdb else talk(), post_mortem(pdb):
            done = again(open_run(run), iteration, rank, hooks)
    except RankFailed as error:
        if isinstance(first_of_the_experiment(error), BdbQuit):  # somebody has seen enough
            return None
        raise
    if as_json:
        return print_json(
            {"checkpoint": done.checkpoint, "agrees": done.agrees, "row": done.row.reset_index().to_dict("records")}
        )
    rows = [
        (name, str(one["stored"]), str(one["replayed"]), "yes" if one["same"] else "no")
        for name, one in done.row.iterrows()
    ]
    print_table(("number", "stored", "replayed", "same"), rows)
    return echo(f"from {done.checkpoint or 'the beginning'}: {_in_words(done)}")


def _in_words(done: Replay) -> str:
    whole = "nothing is stored before it"
    if len(done.losses):
        first, last = done.losses["iteration"].agg(["min", "max"])
        whole = (
            f"the losses of iterations {first} to {last} {'agree' if done.agrees else 'do not agree'} bit for bit with"
            " the stored ones"
        )
    return (
        f"{whole}; the run failed in this iteration, and the replay did not"
        if done.row["stored"].isna().all()
        else whole
    )


def _hook(named: str) -> Hook:
    from hooks.import_path import extend_import_path
    from orchestrator.config.components import make_hook

    file, _, name = named.rpartition(":")
    if not file or not name:
        raise UsageError(f"--hook is a file, or a module, and a class in it, such as probe.py:Probe; got {named!r}")
    if file.endswith(".py") and not Path(file).is_file():
        raise UsageError(f"--hook {named}: there is no file {file}")
    extend_import_path([Path(file).parent.absolute()])
    try:
        return make_hook("replay_hook", {"type": f"{Path(file).stem if file.endswith('.py') else file}:{name}"}).hook
    except ConfigError as error:
        raise UsageError(f"--hook {named}: {'; '.join(problem.message for problem in error.problems)}") from None


def _debugger(iteration: int) -> Hook:
    from hooks import Hook, State
    from orchestrator.terminal.breakpoints import Debugger

    class AtBatch(Hook):
        def on_batch(self, state: State) -> None:
            if state.phase == "train" and state.iteration + 1 == iteration:
                Debugger(nullcontext).set_trace()

    return AtBatch()
