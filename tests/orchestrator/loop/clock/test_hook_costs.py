from __future__ import annotations

from pathlib import Path

from orchestrator.checkpoint.store import CheckpointStore
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.stats.read.reading import recorded
from orchestrator.stats.write.recorder import Recorder
from orchestrator.storage import Storage
from tests.tasks import Points, Seen, experiment


def test_what_saving_took_stands_beside_what_hooks_took(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    identity = {"rank": 0, "node": "n", "attempt": 0}
    loop = Loop(
        Points(),
        experiment(),
        {"seen": Seen()},
        RunContext(store=CheckpointStore(storage), recorder=Recorder(storage, "stats/attempt=0/rank=0", identity)),
    )
    reports = loop.run()
    next(reports)
    loop.save()
    reports.close()
    costs = recorded(storage, "costs").read().to_pylist()
    (saving,) = [row for row in costs if row["hook"] == "(loop)"]
    assert (saving["event"], saving["calls"], saving["epoch"], saving["step"]) == ("save", 1, 0, 7)
    assert saving["seconds"] > 0
    assert {row["hook"] for row in costs} == {"(loop)", "seen"}
