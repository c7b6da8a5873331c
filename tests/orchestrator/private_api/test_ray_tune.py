"""Trials that Tune's loop forgets, and a process that fails between two trials; without any
process."""

import gc
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from ray.air.execution._internal.tracked_actor import TrackedActor
from ray.exceptions import RayActorError, RayTaskError
from ray.tune import PlacementGroupFactory, Trainable, tune
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial

from orchestrator.private_api.ray_tune import Controller, PermanentFailure, forgetting_trials

DEATH = RayActorError()
MISTAKE = RayTaskError("reset", "Traceback ...", ValueError("wrong"))


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep Tune from asking the cluster for its size."""
    monkeypatch.setenv("TUNE_MAX_PENDING_TRIALS_PG", "1")


class Warm:
    """Stands for a live actor, which has every method."""

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=lambda *_, **__: object())


def taking_the_next_trial(
    folder: Path, controller_class: Any, max_failures: int = 3
) -> tuple[Any, Trial]:
    """Return a controller that has just told its one process, warm from an earlier trial, to take a
    new trial."""
    controller = controller_class(
        reuse_actors=True, resource_manager_factory=MagicMock, storage=MagicMock()
    )
    actors, place = controller._actor_manager, PlacementGroupFactory([{"CPU": 1}])
    warm = TrackedActor(
        0,
        on_start=controller._actor_started,
        on_stop=controller._actor_stopped,
        on_error=controller._actor_failed,
    )
    actors._live_actors_to_ray_actors_resources[warm] = (Warm(), MagicMock())
    trial = Trial("nothing", stub=True, placement_group_factory=place, max_failures=max_failures)
    trial.storage, trial.get_trainable_cls = (
        MagicMock(trial_driver_staging_path=str(folder)),
        lambda: Trainable,
    )
    controller._actor_cache.increase_max(place)
    controller._actor_cache.cache_object(place, warm)
    controller.add_trial(trial)
    controller._maybe_add_actors()
    assert trial in controller._resetting_trials
    return controller, trial


def answer_task(controller: Any, answer: Any) -> None:
    """Let the process return an answer or fail."""
    events = controller._actor_manager._actor_task_events
    ((on_result, on_error),) = events._tracked_futures.values()
    events._tracked_futures.clear()
    on_error(answer) if isinstance(answer, Exception) else on_result(answer)


def test_tune_s_own_controller_loses_the_trial(tmp_path: Path) -> None:
    """If this fails, Tune has fixed the bug, and Hookyard needs no workaround."""
    controller, trial = taking_the_next_trial(tmp_path, TuneController)
    answer_task(controller, DEATH)
    assert trial.status == Trial.ERROR
    assert trial.should_recover()


@pytest.mark.parametrize("error", [DEATH, MISTAKE])
def test_a_trial_waits_again_after_a_failure_and_ends_after_too_many(
    tmp_path: Path, error: Exception
) -> None:
    controller, trial = taking_the_next_trial(tmp_path, Controller)
    answer_task(controller, error)
    assert (trial.status, trial.run_metadata.num_failures) == (Trial.PENDING, 1)
    assert not controller._resetting_trials
    controller._maybe_add_actors()
    assert controller._trial_to_actor[trial] in controller._actor_manager.pending_actors
    controller, trial = taking_the_next_trial(tmp_path, Controller, max_failures=0)
    answer_task(controller, error)
    assert trial.status == Trial.ERROR


def test_a_permanent_failure_is_not_retried(tmp_path: Path) -> None:
    controller, trial = taking_the_next_trial(tmp_path, Controller)
    answer_task(controller, True)
    failure = RayTaskError("step", "Traceback ...", PermanentFailure("wrong"))
    controller._trial_task_failure(trial, failure.as_instanceof_cause())
    assert trial.status == Trial.ERROR


def test_the_controller_forgets_a_trial_that_is_over(tmp_path: Path) -> None:
    """Tune's own loop keeps all trials and their results."""
    controller, trial = taking_the_next_trial(tmp_path, Controller)
    answer_task(controller, True)
    trial.update_last_result({"val/loss": 0.5, "training_iteration": 1})
    assert controller.get_trials() == [trial]
    controller.search_alg.set_finished()
    controller.stop_trial(trial)
    kept = weakref.ref(trial)
    del trial
    controller._maybe_add_actors()
    controller.on_step_end()
    gc.collect()
    assert kept() is None
    assert controller.get_trials() == []
    assert controller.is_finished()
    with forgetting_trials():
        assert tune.TuneController is Controller
    assert tune.TuneController is TuneController
