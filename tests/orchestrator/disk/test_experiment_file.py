import pytest

from orchestrator.disk.experiment_file import parse_experiment


def test_edited_numbers_are_read_as_in_a_config() -> None:
    """YAML 1.1 reads `1e-3` as text and `010` as 8."""
    text = "optimizer: {lr: 1e-3}\nsteps: 010\nname: on\n"
    assert parse_experiment(text) == {"optimizer": {"lr": 0.001}, "steps": 10, "name": "on"}


@pytest.mark.parametrize("text", ["", "steps: many", "hooks: [ema]", "- name"])
def test_content_that_no_reader_can_use_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_experiment(text)
