"""What is said of a command line that is wrong."""

import pytest
from typer.testing import CliRunner

from orchestrator.cli import app


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            ["stats", "runs/x", "--by", "ranks"],
            "--by must be one of trial, rank, node, hook, phase, span, row, got 'ranks' (did you mean 'rank'?)."
            " See hookyard stats --help",
        ),
        (["reprot"], "no command 'reprot' (did you mean 'report'?). See hookyard --help"),
        (["trian"], "no command 'trian' (did you mean 'run'?). See hookyard --help"),
        (["list"], "no command 'list' (did you mean 'ls'?). See hookyard --help"),
        (["run"], "CONFIG is missing. See hookyard run --help"),
        (["samples", "runs/x"], "--where is missing. See hookyard samples --help"),
        (
            ["ls", "--storrage", "x"],
            "no flag --storrage (did you mean '--storage'?). See hookyard ls --help",
        ),
        (
            ["run", "x.yaml", "--epochs", "3"],
            "no flag --epochs; to change the experiment, write epochs=3. See hookyard run --help",
        ),
        (
            ["sweep", "x.yaml", "--optimizer.lr=0.1", "--local"],
            "no flag --optimizer.lr; to change the experiment, write optimizer.lr=0.1."
            " See hookyard sweep --help",
        ),
        (
            ["verify", "--batch-size", "--json", "x.yaml"],
            "no flag --batch-size; to change the experiment, write batch_size=VALUE."
            " See hookyard verify --help",
        ),
        (
            ["run", "x.yaml", "--epoch", "3"],
            "no flag --epoch; to change the experiment, write epochs=3. See hookyard run --help",
        ),
        (
            ["run", "x.yaml", "--lr", "0.1"],
            "no flag --lr; to change the experiment, write optimizer.lr=0.1. See hookyard run --help",
        ),
        (
            ["sweep", "x.yaml", "--num-workers=4"],
            "no flag --num-workers; to change the experiment, write loader.num_workers=4."
            " See hookyard sweep --help",
        ),
        (
            ["run", "x.yaml", "--tags=[paper]"],
            "no flag --tags; to change the experiment, write tags='[paper]'. See hookyard run --help",
        ),
        (["ls", "--tags"], "no flag --tags (did you mean '--tag'?). See hookyard ls --help"),
        (["run", "x.yaml", "--xy", "3"], "no flag --xy. See hookyard run --help"),
        (["verify", "x.yaml", "--local"], "no flag --local. See hookyard verify --help"),
        (["ls", "--tag"], "--tag needs a value. See hookyard ls --help"),
        (["run", "x.yaml", "--local=3"], "--local takes no value. See hookyard run --help"),
        (["run", "x.yaml", "-e", "3"], "no flag -e. See hookyard run --help"),
        (["resume", "runs/x", "--epochs", "3"], "no flag --epochs. See hookyard resume --help"),
        (["--verson"], "no flag --verson (did you mean '--version'?). See hookyard --help"),
        (
            ["resume", "runs/x", "--workers", "x"],
            "--workers must be an integer. See hookyard resume --help",
        ),
        (
            ["replay", "runs/x", "--iteration", "0"],
            "--iteration must be at least 1. See hookyard replay --help",
        ),
        (
            ["resume", "runs/x", "epochs=8"],
            "unexpected argument: epochs=8. To continue a run with other values:"
            " hookyard run RUN@last epochs=8. See hookyard resume --help",
        ),
        (
            ["show", "runs/x", "runs/y"],
            "unexpected argument: runs/y. See hookyard show --help",
        ),
        (
            ["ls", "--storage", ""],
            "the path of a run or of a storage is empty; write . for this folder",
        ),
        (
            ["show", "runs/x", "--yaml", "--json"],
            "--yaml and --json cannot be combined; leave out one of them",
        ),
        (
            ["stats", "runs/x", "--json", "--format", "csv"],
            "--json and --format csv contradict each other; leave out one of them",
        ),
        (["evaluate", "runs/x", "--name", "y"], "no flag --name. See hookyard evaluate --help"),
        (["predict", "runs/x", "--epochs", "3"], "no flag --epochs. See hookyard predict --help"),
        (
            ["average", "runs/x", "--std", "x"],
            "--std must be a number. See hookyard average --help",
        ),
        (
            ["serve", "--port", "70000"],
            "--port must be at most 65535. See hookyard serve --help",
        ),
        (
            ["show", "runs/x", "epochs=8", "more"],
            "unexpected argument: epochs=8 more. To continue a run with other values:"
            " hookyard run RUN@last epochs=8. See hookyard show --help",
        ),
        (["--"], "missing command. See hookyard --help"),
        (["--version=3"], "--version takes no value. See hookyard --help"),
        (["ls", "--help=3"], "--help takes no value. See hookyard ls --help"),
    ],
)
def test_a_wrong_command_line_is_reported_in_one_line(call: list[str], message: str) -> None:
    result = CliRunner().invoke(app, call)
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"{message}\n")


def test_hookyard_alone_shows_only_its_help() -> None:
    result = CliRunner().invoke(app, [])
    assert (result.exit_code, result.stderr) == (2, "")
    assert "[OPTIONS] COMMAND [ARGS]..." in result.stdout
