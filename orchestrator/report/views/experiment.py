"""What was run: the experiment, and all around it that must be known to run it again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.report import page
from orchestrator.report.markup import together
from orchestrator.report.tables import facts, table


def experiment(config: str, about: Mapping[str, Any], attempts: Sequence[Mapping[str, Any]] = ()) -> page.Section:
    """The resolved experiment as it stands in its file, and what `run.json` and the attempts say."""
    git = about.get("git") or {}
    entries = {
        "command": shlex.join(map(str, about["argv"])) if about.get("argv") else None,
        "started": about.get("started"),
        "ended": about.get("ended"),
        "host": about.get("host"),
        "seed": str(about["seed"]) if "seed" in about else None,
        "git commit": f"{git['commit']}{' and changes' if git.get('dirty') else ''}" if git.get("commit") else None,
        "python": about.get("python"),
        "platform": about.get("platform"),
        **(about.get("versions") or {}),
        **(about.get("environment") or {}),
        **{f"known of it: {name}": str(value) for name, value in (about.get("info") or {}).items()},
    }
    content = [
        page.preformatted("experiment.yaml", config, opened=True),
        facts("Environment", entries),
        _attempts(attempts) if len(attempts) > 1 else None,
        page.preformatted("Changes to the commit", git["diff"]) if git.get("diff") else None,
    ]
    return page.Section("experiment", "Experiment", together(content))


def _attempts(attempts: Sequence[Mapping[str, Any]]) -> Any:
    rows = [(str(one["attempt"]), one.get("started"), one.get("checkpoint") or "the beginning") for one in attempts]
    return table("Lives of the worker group", ("attempt", "started", "from"), rows)
