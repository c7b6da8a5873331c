"""The runner of pages fails where a page does not work as printed."""

from pathlib import Path

import pytest

from tests.docs.blocks import read_blocks
from tests.docs.output import find_difference, refresh
from tests.docs.runner import PageError, PageRunner


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("step_s   1.05 ms", "step_s  3 min 20 s"),
        ("train  25.79k/s", "train  4.1/s"),
        ("memory 409 MiB", "memory 1.2 GiB"),
        ("save  172.7k", "save  8990"),
        ("├────┼──────┤", ""),
        ("lr  -1e-05", "lr 0.3"),
        ("commit 0a3f9bc1", "commit 99ffa0c"),
        ("took 2 h", "took 15 s"),
        ("2026-11-29 13:20", "2027-01-02 01:59"),
        ("waits 93% of the time", "waits 7.5% of the time"),
        ("torch 2.13.0+cpu", "torch 2.11.0+cu126"),
        ("accuracy 1", "accuracy 0.9714"),
        ("step_s  1.2 ms  0", "step_s  1.2 ms  1"),
    ],
)
def test_measurements_are_masked(one: str, other: str) -> None:
    assert find_difference(one, other) is None
    assert find_difference(other, one) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("val/loss 0.3", "train/loss 0.3"),
        ("1 ms", "-"),
        ("hookyard run --local", "hookyard run"),
        ("0.1 ms  0.2 ms", "0.1 ms"),
        ("finished", "failed"),
        ("(epoch 12, step 156)", "(epoch 12, step 300)"),
        ("in the checkpoint epoch-0012", "in the checkpoint epoch-0009"),
        ("step 120", "step 12"),
    ],
)
def test_text_and_counts_are_compared(one: str, other: str) -> None:
    assert find_difference(one, other)
    assert find_difference(other, one)


@pytest.mark.parametrize(
    ("shown", "fresh"),
    [
        ("rank  step_s\n0  1 ms\n1  3 ms", "rank  step_s\n0     2.5 ms\n1     2 ms"),
        ("...\n0  1 ms\n...", "...\n0     2.5 ms\n..."),
        ("...\n──  ──\n0  1 ms\n...", "...\n────  ──────\n0     2.5 ms\n..."),
        ("rank ...\n...\n1  ... 3 ms\n", "rank ...\n...\n1  ... 2 ms\n"),
        ("...\n5     2 ms\n...", "...\n0     2.5 ms\n..."),
        ("...\nstep_s  rank\n0  1 ms\n...", "...\nrank  step_s\n0     2.5 ms\n..."),
    ],
)
def test_refreshed_output_leaves_out_the_same(shown: str, fresh: str) -> None:
    printed = "rank  step_s\n────  ──────\n0     2.5 ms\n1     2 ms\n"
    assert refresh(shown, printed) == fresh


PRINTED = "wrote a.py\nepoch 0\nepoch 1\nBest: 0.9 (epoch 1)\nNext:\n"


@pytest.mark.parametrize(
    "expected",
    [
        PRINTED,
        "...",
        "wrote a.py\n...\nNext:",
        "...\nepoch 1\nBest: 0.1 (epoch 1)\n...",
        "wrote a.py\n...\nBest: ... (epoch 1)\nNext:",
        "wrote a.py\nepoch 0\n\nepoch 1\n...",
    ],
)
def test_expected_output_is_found(expected: str) -> None:
    assert find_difference(expected, PRINTED) is None


def test_progress_of_a_slow_machine_is_skipped() -> None:
    progress = "val  epoch 4  11/13  loss 0.159  0.2 ms (data 0.1 ms)\n"
    assert find_difference("train done\nval done", f"train done\n{progress}val done\n") is None
    assert find_difference(progress, progress) is None
    assert find_difference(progress, "") is not None


@pytest.mark.parametrize(
    ("expected", "difference"),
    [
        ("wrote b.py\n...", "shown, but not printed there: wrote b.py"),
        ("epoch 0\n...", "shown, but not printed there: epoch 0"),
        ("...\nepoch 0\nNext:", "shown, but not printed there: Next:"),
        ("...\nNext:\nepoch 0\n...", "shown, but not printed there: epoch 0"),
        ("wrote a.py", "more was printed than is shown"),
        ("...\nepoch 1", "more was printed than is shown"),
        ("", "more was printed than is shown"),
    ],
)
def test_other_output_is_a_difference(expected: str, difference: str) -> None:
    assert find_difference(expected, PRINTED) == difference


PAGE = """
# A page

<!-- continues: first.md -->
<!-- prepare:
hookyard init spirals
python -c "open('made.txt', 'w').write('made')"
-->

> [!NOTE]
> ```python
> # study/more.py
> answer = 40
>
> size = 3
> ```

```console
$ hookyard --version \\
    | cat
hookyard 0.1.0
$ hookyard run missing.yaml
...missing.yaml...
$ cat made.txt
made
```

1. In a list:

   ```python
   from study.more import answer
   from study.first import step

   if True:
       print("it is", answer + step)
   [answer]
   ```

   ```text
   it is 42
   [40]
   ```

```python
# study/more.py
answer = "changed"
```

```python
from study.more import answer
```

```yaml
hooks: {}
```
"""
FIRST = "```python\n# study/first.py\nstep = 2\n```\n"


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    (tmp_path / "first.md").write_text(FIRST)
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    return page


def run_page(page: Path) -> PageRunner:
    runner = PageRunner(page.parent / "folder")
    runner.run(page)
    return runner


def test_page_runs_in_its_order(page: Path) -> None:
    runner = run_page(page)
    assert runner.names["answer"] == "changed"
    assert runner.names["step"] == 2
    assert (page.parent / "folder" / "study" / "more.py").read_text() == 'answer = "changed"\n'
    assert (page.parent / "folder" / "spirals.yaml").exists()


def test_blocks_have_their_lines_and_files(page: Path) -> None:
    blocks = read_blocks(page)
    lines = PAGE.splitlines()
    assert [block.language for block in blocks] == [
        *("continues", "prepare", "python", "console", "python", "text"),
        *("python", "python", "yaml"),
    ]
    assert [block.file for block in blocks if block.file] == ["study/more.py"] * 2
    assert lines[blocks[2].line - 1] == "> # study/more.py"
    assert blocks[2].text == "# study/more.py\nanswer = 40\n\nsize = 3\n"
    assert lines[blocks[3].line - 1].startswith("$ hookyard --version")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("hookyard 0.1.0", "ray 0.1.0", "shown, but not printed there: ray 0.1.0"),
        ("\nmade\n```", "\n```", "more was printed than is shown"),
        ("it is 42", "it was 42", "shown, but not printed there: it was 42"),
        ("[answer]\n   ```\n\n   ```text", "7\n   ```\n\n   ```", "not printed there: .40."),
        (
            "$ hookyard run missing.yaml\n...missing.yaml...",
            "$ hookyard run missing.yaml",
            "exits with 2",
        ),
        ("hookyard init spirals", "hookyard init in", "exits with 2"),
        ("```yaml\nhooks: {}", "```bash\nhookyard ls", "commands stand in ```console"),
        ("$ hookyard --version", "hookyard --version", "the first line of ```console"),
    ],
)
def test_page_that_is_wrong_fails(page: Path, old: str, new: str, message: str) -> None:
    assert PAGE.count(old) == 1
    page.write_text(PAGE.replace(old, new))
    with pytest.raises(PageError, match=message):
        run_page(page)


@pytest.mark.parametrize(
    ("stale", "fresh"),
    [
        ("hookyard 0.1.0", "hookyard 0.0.9"),
        ("hookyard 0.1.0", "another program\nof two lines"),
        ("made\n```", "maid\n```"),
        ("it is 42", "it was 42"),
        ("[40]", "[39]"),
    ],
)
def test_stale_page_is_updated(page: Path, stale: str, fresh: str) -> None:
    page.write_text(PAGE.replace(stale, fresh))
    PageRunner(page.parent / "folder", update=True).run(page)
    assert page.read_text() == PAGE


def test_page_is_not_updated_where_lines_beside_omissions_are_gone(page: Path) -> None:
    stale = PAGE.replace("hookyard 0.1.0", "hookyard 0.0.9\n...\nand its license")
    page.write_text(stale)
    with pytest.raises(PageError, match="shown, but not printed there"):
        PageRunner(page.parent / "folder", update=True).run(page)
    assert page.read_text() == stale


def test_other_machine_is_called_vm(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.node", lambda: "laptop")
    page.write_text("```python\nprint('ran on laptop')\n```\n```\nran on vm\n```\n")
    run_page(page)


def test_code_that_is_wrong_fails(page: Path) -> None:
    page.write_text(PAGE.replace("import answer\n", "import question\n", 1))
    with pytest.raises(ImportError, match="question"):
        run_page(page)


def test_counts_may_differ_only_where_they_depend_on_timing() -> None:
    shown = "Best: trial-0001, val/accuracy 0.955 (epoch 9, step 225)"
    printed = "Best: trial-0000, val/accuracy 0.97 (epoch 11, step 275)"
    assert find_difference(shown, printed) is not None
    assert find_difference(shown, printed, counts_vary=True) is None
    assert find_difference(shown, "Best: none", counts_vary=True) is not None
    dated = "scratch  val/loss 0.3 (epoch-0010)  2026-11-29 14:32  4 s"
    other = "scratch  val/loss 0.2 (epoch-0009)  2026-12-01 09:05  16 s"
    assert find_difference(dated, other, counts_vary=True) is None
