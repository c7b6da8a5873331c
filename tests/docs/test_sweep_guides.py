"""The experiment files of the guides on sweeps, of which those pages run only a few."""

from pathlib import Path
from typing import get_args

import pytest
from typer.testing import CliRunner

from orchestrator import load_experiment
from orchestrator.cli import app
from orchestrator.experiment.sections.search import SearchName
from orchestrator.experiment.sections.sweep import SchedulerName, SweepSettings
from tests.docs.blocks import read_blocks
from tests.docs.runner import ROOT

GUIDES = ("tune", "seeds_and_folds", "populations")


@pytest.fixture
def sweeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[SweepSettings]:
    """The sweeps of the guides, beside the starter that they are based on."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert CliRunner().invoke(app, ["init", "spirals"]).exit_code == 0
    loaded = []
    for guide in GUIDES:
        for block in read_blocks(ROOT / "docs" / "guides" / f"{guide}.md"):
            if block.file is not None:
                block.write(tmp_path)
                if block.file.endswith(".py"):
                    continue
                settings = load_experiment(block.file).sweep
                assert settings is not None
                loaded.append(settings)
    return loaded


def test_every_sweep_is_valid_and_every_scheduler_has_one(sweeps: list[SweepSettings]) -> None:
    assert {settings.search.type for settings in sweeps} == set(get_args(SearchName))
    assert {settings.scheduler.type for settings in sweeps} == set(get_args(SchedulerName))


def test_shared_training_trains_once_for_all_decays(
    sweeps: list[SweepSettings], tmp_path: Path
) -> None:
    printed = CliRunner().invoke(app, ["sweep", "shared.yaml", "--plan"]).output
    assert "2 trainings" in printed
