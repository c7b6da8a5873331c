"""The experiment and its environment."""

import shlex
from collections.abc import Sequence

from orchestrator.disk.attempts import Attempt
from orchestrator.disk.metadata import RunMetadata
from orchestrator.report import page
from orchestrator.report.markup import concatenate
from orchestrator.report.tables import Quantity, make_table


def render_experiment(
    config: str, run: RunMetadata, attempts: Sequence[Attempt] = ()
) -> page.Section:
    """Render the experiment file, the environment and the attempts of a run or a sweep."""
    content = [
        page.make_details("experiment.yaml", config, is_open=True),
        make_table("Environment", ("", "value"), _list_facts(run), class_="facts"),
    ]
    if len(attempts) > 1:
        rows = []
        for attempt in attempts:
            start = attempt.checkpoint or "the beginning"
            rows.append((str(attempt.number), attempt.started, start))
        content.append(make_table("Attempts", ("attempt", "started", "from"), rows))
    diff = (run.provenance.git or {}).get("diff")
    if diff:
        content.append(page.make_details("Changes to the commit", diff))
    return page.Section("experiment", "Experiment", concatenate(content))


def _list_facts(run: RunMetadata) -> list[tuple[str, Quantity]]:
    """Return what is known of a run's environment."""
    provenance = run.provenance
    entries = {
        "command": shlex.join(provenance.argv) if provenance.argv else None,
        "started": run.started,
        "ended": run.ended,
        "host": run.driver.host if run.driver else None,
        "seed": None if run.seed is None else str(run.seed),
        "git commit": provenance.describe_commit(),
        "python": provenance.python,
        "platform": provenance.platform,
        **provenance.versions,
        **provenance.environment,
    }
    for name, value in run.info.items():
        entries[f"info: {name}"] = str(value)
    return [(name, Quantity(name, value)) for name, value in entries.items() if value is not None]
