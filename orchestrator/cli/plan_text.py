"""The plan of a run or a sweep as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

from orchestrator.cli.output import echo, print_json, print_table
from orchestrator.cli.plan import ExperimentPlan, ResourcePlan, SharedTraining, SweepPlan
from orchestrator.engines.resources import Resources
from orchestrator.units import format_count


def show_plan(plan: ExperimentPlan, as_json: bool) -> None:
    """Print the folder, the resources and the trials, the order of the hooks, and the resolved
    experiment."""
    if as_json:
        print_json(plan)
        return
    from orchestrator.experiment.yaml.writer import dump_yaml

    for label, text in _format_lines(plan):
        echo(f"{label + ':':<15} {text}")
    echo("")
    _print_hooks(plan.hooks)
    echo("")
    echo(dump_yaml(plan.config), nl=False)


def _format_lines(plan: ExperimentPlan) -> Iterator[tuple[str, str]]:
    parent = plan.continued_from
    if parent:
        yield "continues from", f"{parent}, sha256 {parent.sha256[:12]}"
    yield from _format_resources(plan.resources)
    yield "folder", plan.path
    if plan.sweep:
        yield from _format_trials(plan.sweep, Resources(plan.resources.required))


def _format_resources(resources: ResourcePlan) -> Iterator[tuple[str, str]]:
    required = Resources(resources.required)
    if resources.present is None:
        yield "resources", f"needs {required}, {resources.address} was not asked"
        return
    present = Resources(resources.present)
    yield "resources", f"needs {required}, this machine has {present}"
    shortages = required.find_shortages(present)
    if shortages:
        texts = [f"needs {shortage.needed}, has {shortage.present}" for shortage in shortages]
        yield "does not fit", ", ".join(texts)


def _format_trials(sweep: SweepPlan, required: Resources) -> Iterator[tuple[str, str]]:
    sharing = sweep.shared_training or SharedTraining(sweep.trials, (), {})
    text = f"{sweep.trials}"
    if sharing.shared:
        text += f" in {format_count(sharing.trainings, 'training')}"
    if sweep.repeats > 1:
        kind = "seeds" if sweep.repeated_path == "seed" else f"values of {sweep.repeated_path}"
        text += f", {sweep.repeats} {kind} per configuration"
    if sweep.at_once is not None:
        text += f", {sweep.at_once} at a time ({required} each)"
    yield "trials", text
    for path in sharing.shared:
        yield "shared training over", path
    if sharing.reason_for_all:
        yield "not shared", sharing.reason_for_all
    for path, reason in sharing.not_shared.items():
        yield "not shared", f"{path}, because {reason}"


def _print_hooks(hooks: Mapping[str, Mapping[str, list[str]]]) -> None:
    """Print a table of the hooks of each event, with a column for each kind of rank."""
    rows = []
    for event in dict.fromkeys(chain.from_iterable(hooks.values())):
        cells = [", ".join(names.get(event, ["-"])) for names in hooks.values()]
        rows.append((event, *cells))
    print_table(("event", *hooks), rows)
