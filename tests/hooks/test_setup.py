"""The reasons why a hook cannot work in the setup of an experiment."""

from dataclasses import dataclass

import pytest

from hooks import Hook, State
from hooks.setup import NEEDS_OUTPUT, NEEDS_WHOLE_BATCHES, Setup
from hooks.suitability import find_reason_against

REASONS = {
    "fsdp": "it needs full parameters",
    "custom_loop": "it needs the loaders",
    "several_optimizers": "it needs one loss",
    "splits_batches": "it counts batches",
    "closure": "it changes gradients",
}


@pytest.mark.parametrize(
    ("setup", "told"),
    [
        (Setup("fsdp"), "with workers.strategy: fsdp: it needs full parameters"),
        (Setup(custom_loop=True), "in a custom loop: it needs the loaders"),
        (Setup(several_optimizers=True), "with several optimizers: it needs one loss"),
        (Setup(splits_batches=True), "with accumulate: auto: it counts batches"),
        (Setup(closure=True), "with an optimizer that needs a closure: it changes gradients"),
    ],
)
def test_reason_names_the_setting_to_which_it_applies(setup: Setup, told: str) -> None:
    assert setup.explain(**REASONS) == f"does not work {told}"
    assert setup.explain() == ""


def test_no_reason_applies_to_the_default_setup() -> None:
    assert Setup().explain(**REASONS) == ""


def test_setting_without_a_reason_is_passed_over() -> None:
    setup = Setup("fsdp", closure=True)
    assert setup.explain(closure="it steps") == (
        "does not work with an optimizer that needs a closure: it steps"
    )


@pytest.mark.parametrize(
    ("setup", "reason"),
    [
        (Setup(several_optimizers=True), NEEDS_OUTPUT),
        (Setup(splits_batches=True), NEEDS_WHOLE_BATCHES),
        (Setup(closure=True), NEEDS_WHOLE_BATCHES),
        (Setup("fsdp"), "it copies parameters"),
    ],
)
def test_need_of_output_excludes_what_evaluates_a_batch_in_parts(setup: Setup, reason: str) -> None:
    told = setup.explain_need_of_output(fsdp="it copies parameters")
    assert told.startswith("does not work with ")
    assert told.endswith(f": {reason}")


def test_need_of_output_allows_whole_batches_and_shards_by_default() -> None:
    assert Setup().explain_need_of_output(fsdp="it copies parameters") == ""
    assert Setup("fsdp").explain_need_of_output() == ""


def test_events_of_a_hook_that_needs_the_output_exclude_a_custom_loop() -> None:
    @dataclass
    class Looks(Hook):
        def on_forward(self, state: State) -> None: ...

        def unsuitable(self, setup: Setup) -> str:
            return setup.explain_need_of_output()

    assert find_reason_against(Looks(), Setup(custom_loop=True)) == (
        "does not work in a custom loop: it acts in on_forward, which only the hooked loop fires"
    )
