from orchestrator.disk.attempts import Attempt
from orchestrator.disk.metadata import Provenance, RunMetadata
from orchestrator.report.views.experiment import render_experiment
from tests.orchestrator.report.reading import parsed, tables_of, text_of

RUN = RunMetadata(
    name="x",
    status="finished",
    started="2026-11-22T03:00:00Z",
    seed=0,
    provenance=Provenance(
        argv=["hookyard", "run", "a b.yaml"],
        versions={"torch": "2.13.0"},
        git={"commit": "abc", "dirty": True, "diff": "-<b>\n+</b>"},
    ),
)


def test_experiment_section_has_file_command_and_versions() -> None:
    content = render_experiment("name: x  # <i>\n", RUN).content
    assert [text_of(one) for one in parsed(content).iter("pre")] == [
        "name: x  # <i>\n",
        "-<b>\n+</b>",
    ]
    assert tables_of(content)["Environment"][1:] == [
        ["command", "hookyard run 'a b.yaml'"],
        ["started", "2026-11-22T03:00:00Z"],
        ["seed", "0"],
        ["git commit", "abc with changes"],
        ["torch", "2.13.0"],
    ]


def test_several_attempts_are_listed() -> None:
    attempts = [Attempt(0, started="1"), Attempt(1, "epoch-0003", started="2")]
    table = tables_of(render_experiment("", RUN, attempts).content)["Attempts"]
    assert table[1:] == [["0", "1", "the beginning"], ["1", "2", "epoch-0003"]]
    assert "Attempts" not in str(render_experiment("", RUN, attempts[:1]).content)
