"""The runs of the guide on using a model have the weights and the length that it says."""

import torch

from orchestrator import open_run
from tests.docs.runner import ROOT, PageRunner


def test_longer_and_finer_runs(page_runner: PageRunner) -> None:
    page_runner.run(ROOT / "docs" / "guides" / "use_a_model.md")

    first, finer = (open_run(f"runs/{name}") for name in ("first", "finer"))
    longer = page_runner.names["longer"]
    assert longer.name == f"first-from-{first.best.checkpoint}-2"
    assert longer.metrics["epoch"].max() == 14
    assert (finer.metrics["epoch"].max(), finer.config["optimizer"]["lr"]) == (11, 0.001)
    weights = first.weights("best")
    again = page_runner.names["again"].state_dict()
    assert all(torch.equal(weight, weights[name]) for name, weight in again.items())
