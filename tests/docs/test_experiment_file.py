"""The files of the guide on experiment files are merged as it says."""

from pathlib import Path

import pytest

from orchestrator import load_experiment, open_run
from orchestrator.experiment.load import to_dict
from tests.docs.runner import ROOT, PageRunner


@pytest.fixture
def page(page_runner: PageRunner, tmp_path: Path) -> Path:
    """The folder of the page, in which its commands have run."""
    page_runner.run(ROOT / "docs" / "guides" / "experiment_file.md")
    return tmp_path


def test_files_and_overrides_give_what_the_guide_says(page: Path) -> None:
    first, longer, hooks = (
        to_dict(load_experiment(page / f"{name}.yaml")) for name in ("first", "longer", "hooks")
    )

    assert longer["optimizer"] == {"type": "SGD", "lr": 0.1, "momentum": 0.9}
    assert (longer["epochs"], longer["steps"]) == (None, 500)
    assert longer["batch_size"] == first["batch_size"] == 64
    assert longer["hooks"]["ema"] == first["hooks"]["ema"]
    assert hooks["hooks"]["sync_buffers"] is None
    assert hooks["hooks"]["slow"]["decay"] == 0.999

    wide, sgd, changed = (open_run(page / "runs" / name) for name in ("wide", "sgd", "changes"))
    assert wide.config["optimizer"] == {"type": "AdamW", "lr": 0.01}
    assert wide.config["task_args"]["width"] == 64
    assert sgd.config["optimizer"] == {"type": "SGD", "lr": 0.1}
    assert sgd.config["hooks"]["ema"]["decay"] == 0.99
    assert sgd.config["hooks"]["throughput"] is not None
    rates = changed.stats.query("phase == 'train'").set_index("step")["lr"]
    assert (rates[60], rates[61]) == (0.003, 0.001)
