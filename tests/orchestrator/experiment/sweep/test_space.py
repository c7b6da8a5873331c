"""The space of a sweep: paths inside paths."""

from orchestrator.experiment.sweep.space import choose_context, is_sampled
from tests.orchestrator.experiment.sweep.spaces import ON, of


def test_path_inside_a_choice_is_sampled_where_the_choice_does_not_set_it() -> None:
    space = of({"hooks.ema": ON, "hooks.ema.decay": {"uniform": [0, 0.9]}}).space
    sampled = [
        is_sampled("hooks.ema.decay", space, {"hooks.ema": value})
        for value in (None, False, True, {}, {"decay": 0})
    ]
    assert sampled == [False, False, True, True, False]
    assert is_sampled("hooks.ema", space, {})


def test_context_has_the_first_values_that_a_path_depends_on() -> None:
    space = of(
        {
            "hooks.ema": ON,
            "hooks.ema.decay": {"uniform": [0, 0.9]},
            "optimizer.type": {"choice": ["Adam", "SGD"]},
            "optimizer.lr": {"uniform": [0.1, 0.9]},
            "task": {"choice": ["a:A", "b:B"]},
        }
    ).space
    assert choose_context("hooks.ema.decay", space) == {"task": "a:A", "hooks.ema": {}}
    assert choose_context("optimizer.lr", space) == {"task": "a:A", "optimizer.type": "Adam"}
    assert choose_context("task", space) == {}
