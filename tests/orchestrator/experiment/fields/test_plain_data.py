"""Hooks as the entries of a file, and back."""

from contextlib import suppress

from hooks import HOOKS
from orchestrator.experiment.fields.construction import construct
from orchestrator.experiment.fields.plain_data import convert_fields


def test_default_hook_objects_convert_to_entries_and_back() -> None:
    made = []
    for hook in HOOKS.values():
        with suppress(TypeError, ValueError):  # one that needs to be told more
            made.append(hook())
    assert len(made) > 35
    for one in made:
        written = convert_fields(one, "")
        assert written == construct(type(one), {}, "")[1]
        assert convert_fields(construct(type(one), written, "")[0], "") == written
