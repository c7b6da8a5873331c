"""What was run: the experiment, and all around it that must be known to run it again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from orchestrator.records.metadata import Attempt, RunMetadata
from orchestrator.report import page
from orchestrator.report.markup import joined
from orchestrator.report.tables import facts, table


def experiment(config: str, run: RunMetadata, attempts: Sequence[Attempt] = ()) -> page.Section:
    """The resolved experiment as it stands in its file, and what `run.json` and the attempts say."""
    git = run.git or {}
    entries = {
        "command": shlex.join(map(str, run.argv)) if run.argv else None,
        "started": run.started,
        "ended": run.ended,
        "host": run.host,
        "seed": None if run.seed is None else str(run.seed),
        "git commit": f"{git['commit']}{' and changes' if git.get('dirty') else ''}" if git.get("commit") else None,
        "python": run.python,
        "platform": run.platform,
        **run.versions,
        **run.environment,
        **{f"known of it: {name}": str(value) for name, value in run.info.items()},
    }
    rows = [(str(one.number), one.started, one.checkpoint or "the beginning") for one in attempts]
    content = [
        page.preformatted("experiment.yaml", config, opened=True),
        facts("Environment", entries),
        table("Attempts", ("attempt", "started", "from"), rows) if len(rows) > 1 else None,
        page.preformatted("Changes to the commit", git["diff"]) if git.get("diff") else None,
    ]
    return page.Section("experiment", "Experiment", joined(content))
