"""The hooks of the guide on hooks compute what it says, and the guide on tests lists every check."""

import importlib
import re
from pathlib import Path

import pytest
import torch

from orchestrator import load_experiment, run
from orchestrator.testing import ready_state
from tests.docs.blocks import write_files
from tests.docs.runner import ROOT

GUIDES = ROOT / "docs" / "guides"
FALLS = "hooks.loss_fall={type: 'falls:LossFall', every: 10 steps, window: 4}"


def test_loss_fall_compares_the_rows_before_it(folder: Path) -> None:
    write_files(GUIDES / "write_a_hook.md", folder)
    (folder / "digits.yaml").write_text(
        "{name: digits, task: experiments.digits:Digits, steps: 22}"
    )

    done = run(load_experiment("digits.yaml", [FALLS]), folder / "runs", local=True)

    training = done.stats.query("phase == 'train'").set_index("step")
    losses = training["loss"]
    # At step 10 the rows of steps 2 to 5 and of 6 to 9: the present one is not among them.
    falls = {
        step: losses.loc[step - 8 : step - 5].mean() - losses.loc[step - 4 : step - 1].mean()
        for step in (10, 20)
    }
    assert training["loss_fall"].dropna().to_dict() == pytest.approx(falls)
    log = (Path(done.path) / "log.txt").read_text()
    assert f"the largest fall of the loss was {max(falls.values()):.4f}" in log


def test_centralized_gradients_have_rows_of_mean_zero(folder: Path) -> None:
    write_files(GUIDES / "write_a_hook.md", folder)
    state = ready_state()

    importlib.import_module("centralize").Centralize().on_gradients(state)

    matrices = [gradient for gradient in state.gradients() if gradient.ndim > 1]
    assert matrices
    for matrix in matrices:
        means = matrix.flatten(1).mean(1)
        torch.testing.assert_close(means, torch.zeros_like(means))


def test_guide_on_tests_lists_every_check() -> None:
    page = (GUIDES / "test.md").read_text().split("\n## What check_hook checks\n")[1]
    listed = re.findall(r"^\* `([a-z ]+)`(?:,|:)", page, re.MULTILINE)
    sources = " ".join(
        file.read_text() for file in (ROOT / "orchestrator" / "testing").glob("*.py")
    )
    checks = re.findall(r'(?:CheckFailure|_fail|_expect_equal)\(\s*"([a-z ]+)"', sources)
    assert sorted(listed) == sorted(set(checks))
