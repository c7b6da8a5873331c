"""What the pages say is run: their code and experiment files, and their links."""

import importlib
import re
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from hooks import HOOKS
from orchestrator import load_experiment, run
from orchestrator.cli import app
from orchestrator.experiment.components import DEFAULT_HOOKS
from tests.docs.blocks import read_blocks

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMED = re.compile(r"^```(?:python|yaml)\n# (\S+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
"""A block whose first line is a comment with nothing but a file name."""


def write_files(page: Path, folder: Path) -> None:
    for name, text in NAMED.findall(page.read_text()):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def table_rows(text: str) -> list[list[str]]:
    """The cells of each row of the tables in a page whose first cell is code, without the backticks
    of that."""
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in text.splitlines()
        if line.startswith("| `")
    ]
    return [[first.strip("`"), *others] for first, *others in rows]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to call from."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_readme_task_and_hook_train(folder: Path) -> None:
    write_files(ROOT / "README.md", folder)
    done = run(load_experiment("study/wine.yaml"), folder / "runs", local=True)
    stats, metrics = done.stats, done.metrics
    assert stats.query("phase == 'train'")["confidence"].between(1 / 3, 1).all()
    assert metrics["val/accuracy"].iloc[-1] > 0.9
    assert len(metrics) == 10


def typed(*words: str) -> str:
    """What a command prints."""
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_hooks_page_hook_records_the_weight_norm(folder: Path) -> None:
    write_files(ROOT / "README.md", folder)
    write_files(ROOT / "docs" / "hooks.md", folder)
    hooks = yaml.safe_load(
        re.findall(r"```yaml\n(hooks:.*?)```", (ROOT / "docs" / "hooks.md").read_text(), re.DOTALL)[
            0
        ]
    )
    entry = hooks["hooks"]["weight_norm"]
    overrides = ["epochs=5", f"hooks.weight_norm={{type: '{entry['type']}', every: 20 steps}}"]
    stats = run(load_experiment("study/wine.yaml", overrides), folder / "runs", local=True).stats
    training = stats[stats["phase"] == "train"]
    assert len(training) == 25
    assert training[training["weight_norm"].notna()]["step"].tolist() == [20]
    assert entry["every"] == "20 steps"


def test_hooks_page_hook_reads_recent_rows(folder: Path) -> None:
    write_files(ROOT / "README.md", folder)
    write_files(ROOT / "docs" / "hooks.md", folder)
    hook = "hooks.loss_fall={type: 'study.falls:LossFall', every: 10 steps, window: 4}"
    done = run(load_experiment("study/wine.yaml", ["epochs=5", hook]), folder / "runs", local=True)
    training = done.stats[done.stats["phase"] == "train"].set_index("step")
    losses = training["loss"]
    # at step 10 the rows of steps 2 to 5 and of 6 to 9: the present one is not among them
    falls = {
        step: losses.loc[step - 8 : step - 5].mean() - losses.loc[step - 4 : step - 1].mean()
        for step in (10, 20)
    }
    assert training["loss_fall"].dropna().to_dict() == pytest.approx(falls)
    assert (
        f"the loss fell by at most {max(falls.values()):.4f}"
        in (Path(done.path) / "log.txt").read_text()
    )


def test_testing_page_tests_pass(folder: Path) -> None:
    for page in ("hooks", "guides/task", "testing"):
        write_files(ROOT / "docs" / f"{page}.md", folder)
    sys.path.append(str(folder))
    tests = [
        test
        for name in ("test_norms", "test_diabetes")
        for test in vars(importlib.import_module(f"study.{name}")).items()
    ]
    called = [name for name, test in tests if name.startswith("test_") and test() is None]
    assert len(called) == 4


def test_testing_page_lists_every_check() -> None:
    section = (ROOT / "docs" / "testing.md").read_text().split("\n| check |")[1].split("\n\n")[0]
    told = [check for check, _ in table_rows(section)]
    sources = " ".join(
        file.read_text() for file in (ROOT / "orchestrator" / "testing").glob("*.py")
    )
    assert sorted(told) == sorted(
        {*re.findall(r'(?:CheckFailure|_fail|_expect_equal)\(\s*"([a-z ]+)"', sources)}
    )


def test_hooks_page_lists_every_hook_and_the_defaults() -> None:
    page = (ROOT / "docs" / "hooks.md").read_text()
    groups = dict(re.findall(r"^\| (\w+) \| (`.+) \|$", page, re.MULTILINE))
    named = [
        (group, name) for group, cell in groups.items() for name in re.findall(r"`(\w+)`", cell)
    ]
    assert sorted(named) == sorted(
        (hook.__module__.split(".")[1], name) for name, hook in HOOKS.items()
    )
    (defaults,) = re.findall(
        r"^(`\w+`(?:(?:,| and)\s`\w+`)+)\sare in every run", page, re.MULTILINE
    )
    assert tuple(re.findall(r"`(\w+)`", defaults)) == DEFAULT_HOOKS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_yaml_parts_of_every_page_are_valid(folder: Path, page: Path) -> None:
    """Whatever a page shows of an experiment without a file's name, laid over one of the digits."""
    parts = [
        yaml.safe_load(block.text)
        for block in read_blocks(page)
        if block.language == "yaml" and not block.text.startswith("#")
    ]
    for written in parts:
        part = {
            key: value
            for key, value in written.items()
            if key in ("scheduler", "workers", "sync_batchnorm", "accumulate")
        }
        part |= (
            {"optimizer": written["optimizer"]}
            if written.get("optimizer", {}).get("type", "task") != "task"
            else {}
        )
        hooks = {
            name: hook for name, hook in (written.get("hooks") or {}).items() if "type" not in hook
        }
        (folder / "part.yaml").write_text(
            yaml.safe_dump(
                {
                    "name": "part",
                    "task": "experiments.digits:Digits",
                    "epochs": 100,
                    **part,
                    "hooks": hooks,
                }
            )
        )
        load_experiment(folder / "part.yaml")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_have_targets(page: Path) -> None:
    links = [
        link for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page)) if "://" not in link
    ]
    missing = [link for link in links if not leads_somewhere(page, *link.partition("#")[::2])]
    assert not missing


def without_code(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


def leads_somewhere(page: Path, target: str, heading: str) -> bool:
    target_page = page.parent / target if target else page
    if not target_page.exists():
        return False
    # The build of the site knows the anchors of what it generates.
    is_generated = "reference" in target_page.parts
    return not heading or is_generated or heading in anchors(target_page)


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", without_code(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
