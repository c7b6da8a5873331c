"""The driver of a sweep: hands trials to Ray Tune, shows how they fare, and keeps what they made."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from hooks.state import Display
from orchestrator.config.checks.space import count_trials, trials_at_once
from orchestrator.config.load import check_experiment, reload_experiment, to_dict, to_yaml
from orchestrator.config.python.objects import main_source_code
from orchestrator.config.resolve import resolve
from orchestrator.config.sections.experiment import Experiment, check_run_name
from orchestrator.config.sections.sweep import HyperBand, Population
from orchestrator.config.sections.sweep import Sweep as Settings
from orchestrator.engines.lifecycle import failing
from orchestrator.engines.main_classes import with_classes_of_main
from orchestrator.engines.ray_environment import (
    Ray,
    Resources,
    chosen_address,
    connection_line,
    environment_values,
)
from orchestrator.errors import DamagedFile, MetricMissing, UsageError
from orchestrator.loop.model.weight_sources import find_for
from orchestrator.records.lease import Lease
from orchestrator.records.metadata import RunMetadata
from orchestrator.records.process import Process
from orchestrator.records.provenance import provenance
from orchestrator.records.run_driver import make_lease
from orchestrator.records.run_folder import DEFAULT_STORAGE, ENDED, RunFolder, nothing_started, now
from orchestrator.records.sweep_folder import SCRATCH, open_sweep_folder, trial_name
from orchestrator.runs.driver import experiment_to_resume, resume_command
from orchestrator.stats.aggregate.trial_index import TrialIndex, TrialRecord
from orchestrator.stats.write.compaction import compact
from orchestrator.storage import Storage
from orchestrator.sweeps.results.analysis import configurations_of
from orchestrator.sweeps.results.population_history import History
from orchestrator.sweeps.results.population_replay import replay
from orchestrator.sweeps.results.previous_trials import PreviousTrial, previous_trials, remaining_trials, seconds_used
from orchestrator.sweeps.results.result import Sweep
from orchestrator.sweeps.stopping_rules import StoppingRules
from orchestrator.sweeps.sweep_context import SweepContext, make_search
from orchestrator.sweeps.trial_announcer import TrialAnnouncer
from orchestrator.sweeps.trial_setup import trial_source
from orchestrator.terminal.display import TerminalDisplay, say
from orchestrator.terminal.frames import LiveFrame
from orchestrator.terminal.hang_reporter import HangReporter
from orchestrator.terminal.interrupts import Interrupts
from orchestrator.terminal.notebook import NotebookDisplay, in_notebook

REPLAY = "replay.yaml"
"""A population's best trial as a single run."""

_ORPHANS_S = 30
"""How long the processes of a lost driver may take to end."""


def sweep(
    experiment: Experiment,
    storage: str | Path = DEFAULT_STORAGE,
    name: str | None = None,
    *,
    local: bool = False,
    address: str | None = None,
    fail_fast: bool = False,
) -> Sweep:
    """Runs the trials of a sweep and returns what they made. A trial that fails does not end the sweep, unless
    `fail_fast`.

    With `local` the trials run one after the other in this process, each as one rank.

    Raises UsageError where the name is taken, an extra is missing or not even one trial fits, before anything is
    started; RunError where the sweep itself failed.
    """
    experiment = check_experiment(experiment)
    settings = experiment.sweep
    if settings is None:
        raise UsageError("this experiment has no sweep section; use run (hookyard run)")
    if experiment.source.continued_from:
        raise UsageError(
            f"this experiment goes on from {experiment.source.continued_from}, and the trials of a sweep begin anew"
        )
    address = chosen_address(address, local=local)
    Storage(storage).reach()
    _refuse_what_is_missing(experiment, settings, local, address)
    _find_all_weights(experiment, settings)
    metadata = {
        **provenance(experiment.import_paths),
        "source": experiment.source,
        "tags": experiment.tags,
        "notes": experiment.notes,
        "local": local,
        "fail_fast": fail_fast,
        "sweep": _described(settings),
    }
    folder = RunFolder(storage, check_run_name(experiment, name))
    folder.refuse_if_taken()
    with Lease(folder.storage) as lease:
        folder = RunFolder.create(
            storage, folder.name, to_yaml(experiment), code=main_source_code(to_dict(experiment)), **metadata
        )
        return _carry_out(folder, experiment, {}, address, lease)


def _find_all_weights(experiment: Experiment, settings: Settings) -> None:
    """Raises ConfigError where weights that a trial may begin with are not there."""
    varied = {path: domain.candidates() for path, domain in settings.space.items() if path.partition(".")[0] == "init"}
    for chosen in product(*varied.values()) if varied or experiment.init else ():
        find_for(resolve(trial_source(experiment.source, settings, dict(zip(varied, chosen, strict=True)))).experiment)


def resume_sweep(
    path: str | Path,
    *,
    failed: bool = False,
    accept_changes: bool = False,
    address: str | None = None,
    force_lease: bool = False,
) -> Sweep:
    """Goes on with a sweep that was interrupted or lost its driver: finished trials stay as they are, interrupted ones
    go on from their newest checkpoints, the others are begun; those that failed are tried again with `failed`.

    Raises UsageError where nothing is left to do; where it is still under way, or may be on another machine, unless
    `force_lease` says it is not; or where the file it came from says something else by now, unless `accept_changes`
    goes on with that.
    """
    folder = open_sweep_folder(path)
    with make_lease(folder, force=force_lease) as lease:
        return go_on(folder, lease, failed=failed, accept_changes=accept_changes, address=address)


def go_on(folder: RunFolder, lease: Lease, *, failed: bool, accept_changes: bool, address: str | None) -> Sweep:
    """As `resume_sweep`, of a sweep whose lease is had."""
    with nothing_started():
        metadata = folder.metadata()
        address = chosen_address(address, local=metadata.local)
        experiment = _as_it_stands(folder, accept_changes)
        settings = experiment.sweep
        assert settings is not None
        previous = previous_trials(folder, settings, failed_again=failed)
    if not remaining_trials(settings, previous):
        if metadata.status in ("running", "interrupted"):
            say(f"All {len(previous)} trials of {folder} are over; nothing is left but to write that down.")
            return _concluded(folder, experiment)
        raise UsageError(
            f"all {len(previous)} trials of {folder} are over; there is nothing to"
            f" resume{_hint_of_failed(previous, failed)}"
        )
    _refuse_what_is_missing(experiment, settings, metadata.local, address)
    again = {
        "status": "running",
        "error": None,
        "stopped": [],
        "sweep": _described(settings),
        "resumed": [*metadata.resumed, now()],
    }
    with nothing_started():
        TrialIndex(folder, settings.objectives).join()
        _wait_for_orphans(folder, [trial_name(number) for number, trial in previous.items() if not trial.over])
        History(folder).forget_unbegun({trial_name(number): trial.values for number, trial in previous.items()})
        folder.write_experiment(to_yaml(experiment), experiment.source)
        folder.update(**again, **asdict(Process.this()))
    return _carry_out(folder, experiment, previous, address, lease)


def _as_it_stands(folder: RunFolder, accept_changes: bool) -> Experiment:
    """The sweep as it was begun, or as its file says now where that is accepted."""
    begun = experiment_to_resume(folder)
    file = begun.source.file
    if file is None or not Path(file).exists():
        return begun
    present = reload_experiment(begun.source)
    if present == begun:
        return begun
    if present.sweep is None:
        raise UsageError(f"{file} has no sweep section any more; {folder} was begun with one")
    assert begun.sweep is not None
    if present.sweep.repeats != begun.sweep.repeats:
        raise UsageError(
            f"{folder} was begun with repeats: {begun.sweep.repeats}, and {file} says {present.sweep.repeats} by now:"
            " its trials would be of other configurations. Change it back, or begin another sweep"
        )
    if accept_changes:
        return present
    difference = difflib.unified_diff(
        to_yaml(begun).splitlines(), to_yaml(present).splitlines(), f"{folder}/experiment.yaml", file, lineterm="", n=1
    )
    raise UsageError(
        "\n".join(difference)
        + f"\n{file} has changed since the sweep was begun. Change it back, or go on with it as it is "
        "now, for the trials that are not over, with --accept-changes"
    )


def _wait_for_orphans(folder: RunFolder, names: Sequence[str]) -> None:
    """Waits until the trials of a driver that is gone have gone too: two processes must not write one trial."""
    until, trials = monotonic() + _ORPHANS_S, [RunFolder(folder.storage / "trials", name) for name in names]
    while alive := [run for run in folder.storage.each(RunFolder.metadata, trials) if _is_trained_here(run)]:
        if monotonic() > until:
            raise UsageError(
                f"{folder}/trials/{alive[0].name} is still being trained by process {alive[0].pid}; end that first"
            )
        sleep(0.5)


def _is_trained_here(trial: RunMetadata) -> bool:
    return (
        trial.status == "running" and trial.driver is not None and trial.driver.is_visible() and trial.driver.is_alive()
    )


def _described(settings: Settings) -> dict[str, Any]:
    """What trials are judged by, with several metrics the first and all of them; and how many there are to be."""
    metric, mode = settings.objectives[0]
    counts = {"trials": count_trials(settings), "repeats": settings.repeats, "aggregate": settings.aggregate}
    return {"metric": metric, "mode": mode, "objectives": settings.objectives, **counts}


def _carry_out(
    folder: RunFolder, experiment: Experiment, previous: Mapping[int, PreviousTrial], address: str | None, lease: Lease
) -> Sweep:
    """Runs what is left of a sweep, and writes down how that went."""
    settings, metadata = experiment.sweep, folder.metadata()
    assert settings is not None
    # Tune would take Ctrl-C for itself.
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"
    how = resume_command(folder)
    words = "Each trial ends at its next report; it will go on from its newest checkpoint."
    shown = NotebookDisplay if in_notebook() else TerminalDisplay
    with failing(folder), shown(folder.storage, LiveFrame(folder)) as display, Interrupts(how, words) as interrupts:

        def asked() -> bool:
            lease.check()
            return interrupts.requested

        announcer, index = TrialAnnouncer(display, settings, previous), TrialIndex(folder, settings.objectives)
        ranks = 1 if metadata.local else experiment.workers.max_count
        search = make_search(experiment, settings, previous, display.line)
        rules = StoppingRules(settings, ranks, search=search, asked=asked, fail_fast=metadata.fail_fast)
        hangs = HangReporter(
            lambda: [RunFolder(folder.storage / "trials", name) for name in announcer.under_way()],
            display,
            lambda: interrupts.requested,
        )
        rules.replay_reports(
            {trial_name(number): trial.reports for number, trial in previous.items()}, seconds_used(metadata, previous)
        )
        context = SweepContext(experiment, settings, folder, previous, search, rules, announcer, index)
        if metadata.local:
            from orchestrator.sweeps.in_process import SequentialTrials

            with hangs:
                SequentialTrials(context, interrupts.fail).run()
        else:
            _on_ray(context, address, display, hangs)
            if interrupts.requested:
                say(f"Interrupted. To go on: {how}")
        if rules.metric_missing:
            raise MetricMissing(rules.metric_missing)
    return _concluded(folder, experiment, interrupts.requested)


def _on_ray(sweep: SweepContext, address: str | None, display: Display, hangs: HangReporter) -> None:
    """Runs what is left as trials of Ray Tune, as many at once as there is room for."""
    experiment, settings, previous = sweep.experiment, sweep.settings, sweep.previous
    display.line(connection_line(address))
    with Ray(address, environment=environment_values(experiment.environment) if address else None) as ray:
        from orchestrator.sweeps.tune.launch import launch

        at_once, arithmetic = _concurrency(ray, experiment, settings)
        left = f"{len(remaining_trials(settings, previous))} trials{' left,' if previous else ''}"
        display.line(f"{left} of {experiment.workers.describe('rank')}, {at_once} at a time: {arithmetic}")
        with hangs:
            launch(sweep, at_once)


def _hint_of_failed(previous: Mapping[int, PreviousTrial], asked: bool) -> str:
    """Return what can be done about trials that failed; empty where none did."""
    failed = sum(trial.failed for trial in previous.values())
    if not failed or asked:
        return ""
    return f"; with --failed, the {failed} that failed {'are' if failed > 1 else 'is'} tried again"


def _concluded(folder: RunFolder, experiment: Experiment, interrupted: bool = False) -> Sweep:
    """What no trial is trained in any more: its tables joined, its end written down."""
    assert experiment.sweep is not None
    folder.storage.delete(SCRATCH)
    index = TrialIndex(folder, experiment.sweep.objectives)
    _join_rows(folder, index)
    index.join()
    if isinstance(experiment.sweep.scheduler, Population):
        _write_replay(folder, experiment)
    done = Sweep(folder)
    ended_by_failure = folder.metadata().fail_fast and failed_trials(done) > 0
    status = "interrupted" if interrupted else "failed" if ended_by_failure else "finished"
    folder.update(status=status, ended=now(), best=_best_trial(done))
    return done


def _best_trial(done: Sweep) -> dict[str, Any] | None:
    """What the best trial reached, and its configuration, for `ls`; None where none has reported the sweep's metric."""
    try:
        trial = done.best
    except UsageError:
        return None
    if trial.best is None:
        return None
    leader = configurations_of(done.trials, *done.objective, done.aggregate)[0] if done.repeats > 1 else None
    of_group = (
        {"configuration": leader.number, "mean": leader.mean, "in_words": leader.in_words(done.objective[0])}
        if leader
        else {}
    )
    return {"trial": trial.name, **asdict(trial.best), **of_group}


def _join_rows(sweep: RunFolder, index: TrialIndex) -> None:
    """Joins what the ranks of each trial that is over have written, where that has not been done."""
    for name, record in index.records().items():
        if isinstance(record, TrialRecord) and record.status in ENDED and not record.compacted:
            folder = RunFolder(sweep.storage / "trials", name)
            compact(folder.storage, folder.attempts())


def _write_replay(folder: RunFolder, experiment: Experiment) -> None:
    """Keeps the best trial of a population as an experiment that changes its values when that trial's weights saw
    them."""
    try:
        best = replay(folder, experiment, Sweep(folder).best.name)
    except UsageError as error:
        return say(f"There is no {REPLAY}: {error}")
    return folder.storage.write(REPLAY, to_yaml(best))


def _refuse_what_is_missing(experiment: Experiment, settings: Settings, local: bool, address: str | None) -> None:
    """Raises UsageError where an extra or what a trial asks of this machine is missing, or trials that wait for each
    other would run one after the other."""
    needed = {"optuna": settings.search == "optuna", "sklearn": settings.scheduler.type == "pb2"}
    for package, extra in (("optuna", "optuna"), ("sklearn", "pb2")):
        if needed[package] and find_spec(package) is None:
            raise UsageError(
                f"this sweep needs the package {package}, which is not installed: pip install 'hookyard[{extra}]'"
            )
    if not local:
        with_classes_of_main(experiment.source, address)
    from orchestrator.engines.in_process import refuse_what_is_not_here

    refuse_what_is_not_here(experiment.workers, f"each trial of {experiment.name}", address, local=local)
    if local and isinstance(settings.scheduler, HyperBand | Population):
        raise UsageError(
            f"the trials of {settings.scheduler.type} live side by side, and in one process they run one after the"
            " other. Leave out --local, or say sweep.scheduler=fifo"
        )


def _concurrency(ray: Any, experiment: Experiment, settings: Settings) -> tuple[int, str]:
    """How many trials run side by side, and the arithmetic; raises UsageError where not even one fits."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    workers, asked = experiment.workers, Resources.asked_by(experiment.workers)
    has = Resources.of(
        {resource: sum(node.get(resource, 0) for node in nodes) for resource in {"CPU", "GPU", *workers.bundle()}}
    )
    where = f"{has}" if len(nodes) == 1 else f"{has} on {len(nodes)} nodes"
    more = " at least" if workers.min_count < workers.max_count else ""
    arithmetic = f"each asks for {asked}{more}, the cluster has {where}"
    at_once = trials_at_once(settings, count_trials(settings), workers, nodes)
    if at_once < 1:
        raise UsageError(
            f"no trial fits: {arithmetic}, and each of its {workers.min_count} ranks needs a place on one node"
        )
    return at_once, arithmetic


def failed_trials(outcome: Sweep) -> int:
    """How many trials of a sweep that is over failed, or died without a word."""
    records = outcome.records().values()
    return sum(isinstance(record, DamagedFile) or record.status not in (*ENDED, "interrupted") for record in records)
