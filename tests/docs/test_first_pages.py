"""The tutorials show the starter files as `hookyard init` writes them."""

import re
from pathlib import Path

import pytest
import yaml

from tests.docs.blocks import Block, read_blocks
from tests.docs.runner import ROOT

STARTER = ROOT / "orchestrator" / "cli" / "starter"
TUTORIALS = ROOT / "docs" / "start"


def read_starter(name: str) -> str:
    text = (STARTER / name).read_text()
    return text.replace("starter", "spirals").replace("Starter", "Spirals")


def find_block(page: Path, language: str) -> Block:
    return next(block for block in read_blocks(page) if block.language == language)


@pytest.mark.parametrize(
    ("page", "name"),
    [("first_run.md", "starter.yaml"), ("first_sweep.md", "starter_sweep.yaml")],
)
def test_shown_experiment_is_the_starter(page: str, name: str) -> None:
    shown = find_block(TUTORIALS / page, "yaml")
    assert yaml.safe_load(shown.text) == yaml.safe_load(read_starter(name))


def test_shown_task_has_the_lines_of_the_starter() -> None:
    starter = read_starter("starter.py").splitlines()
    shown = find_block(TUTORIALS / "first_run.md", "py").text.splitlines()
    without_types = [
        line for line in shown if not line.startswith(("    def ", "    width: ", "    noise: "))
    ]
    left_out = ("", "        ...")
    assert [line for line in without_types if line not in (*starter, *left_out)] == []


def test_shown_fields_have_the_defaults_of_the_starter() -> None:
    starter = read_starter("starter.py")
    shown = find_block(TUTORIALS / "first_run.md", "py").text
    for name in ("width", "noise"):
        default = rf"^    {name}: .* = (\S+)$"
        assert re.findall(default, shown, re.MULTILINE) == re.findall(
            default, starter, re.MULTILINE
        )
