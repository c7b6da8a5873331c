"""Each line of the table of requests to other tools links to its threads, and a test shows the
answer."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/migrating/README.md"
SHOWN_BY = {
    "30,000 runs in a table without waiting 15 minutes": (
        "orchestrator/tables/test_run_index.py",
        "test_only_what_has_changed_is_read",
    ),
    "cross-validation in a sweep": (
        "orchestrator/sweeps/test_repeats.py",
        "test_each_trial_is_the_run_of_its_fold",
    ),
    "parameters that exist only with a choice": (
        "orchestrator/sweeps/search/test_drawing.py",
        "test_path_is_drawn_only_inside_its_choice",
    ),
    "all predictions of several ranks, in the order of the data": (
        "orchestrator/runs/test_prediction.py",
        "test_two_ranks_predict_each_sample_once",
    ),
    "checkpoints of the trainable weights alone": (
        "orchestrator/loop/model/test_frozen_weights.py",
        "test_frozen_parameters_are_left_out_and_buffers_stay",
    ),
    "tokens averaged over ranks and micro-batches": (
        "orchestrator/loop/step/test_weights.py",
        "test_ranks_train_like_one_batch",
    ),
    "other samplers of Optuna than TPE": (
        "orchestrator/sweeps/search/test_optuna_trials.py",
        "test_each_sampler_suggests_what_optuna_itself_does",
    ),
    "limits on a second metric while searching": (
        "orchestrator/sweeps/search/test_optuna_trials.py",
        "test_samplers_learn_constraints_as_optuna_itself_does",
    ),
    "a search that learns from the mean over seeds": (
        "orchestrator/sweeps/search/test_optuna_trials.py",
        "test_optuna_learns_from_the_aggregate_of_repeats_without_failed_ones",
    ),
    "a message when training ends or fails": (
        "orchestrator/runs/test_alerts.py",
        "test_failed_run_tells_its_error",
    ),
    "all trials on a page while they run": (
        "orchestrator/serve/test_browser.py",
        "test_pages_follow_a_run",
    ),
    "Ray in a job of Slurm": (
        "slurm/test_slurm.py",
        "test_jobs_on_one_node_do_not_meet_and_each_keeps_its_exit_code",
    ),
    "a job that is requeued and continues": (
        "slurm/test_slurm.py",
        "test_run_on_two_nodes_saves_before_its_time_is_over_and_continues_after_the_requeue",
    ),
}


def read_lines() -> list[list[str]]:
    section = PAGE.read_text().partition("## Asked of other tools\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_each_line_is_shown_by_a_test() -> None:
    assert [asked for asked, _, _ in read_lines()] == [*SHOWN_BY]


@pytest.mark.parametrize(("file", "test"), SHOWN_BY.values(), ids=SHOWN_BY)
def test_that_test_exists(file: str, test: str) -> None:
    functions = ast.parse((ROOT / "tests" / file).read_text()).body
    assert test in [node.name for node in functions if isinstance(node, ast.FunctionDef)]


def test_each_line_links_to_its_threads() -> None:
    for _, threads, page in read_lines():
        numbers = re.findall(
            r"\[(?:[\w ]+ )?(\d+)\]\(https://github\.com/[\w./-]+/issues/(\d+)\)", threads
        )
        assert all(shown == linked for shown, linked in numbers), threads
        assert len(numbers) == threads.count("](") > 0
        assert re.fullmatch(r"\[[^]]+\]\(\.\./[\w./#-]+\)", page)
