"""The description of a hook's class."""

from pathlib import Path

from orchestrator.experiment.hook_reference import describe_hook
from tests.orchestrator.experiment.samples import Band, Shadow


def test_hook_is_described_as_plain_data() -> None:
    described = describe_hook("shadow", Shadow)
    assert described["parameters"][0] == {
        "name": "decay",
        "type": "float >= 0 and <= 1",
        "required": False,
        "default": 0.5,
        "doc": "Fraction that is kept.",
    }
    assert described["parameters"][1] == {
        "name": "every",
        "type": "Interval in epochs or steps",
        "required": False,
        "default": "1 epoch",
        "doc": "Interval, as text.",
    }
    assert [one["type"] for one in described["parameters"][2:]] == [
        "int",
        "near | far",
        "list[str]",
    ]
    assert (described["events"], described["priority"], described["ranks"]) == (
        ["on_update"],
        "LOW (70)",
        "all",
    )
    assert Path(described["source"]).name == "samples.py"
    assert [one["required"] for one in describe_hook("band", Band)["parameters"]] == [True, True]
