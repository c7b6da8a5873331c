"""What Tune's loop keeps of its trials, and a process that fails between two; all in Tune's own books, no process is
started."""

from __future__ import annotations

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

from orchestrator.private_api.ray_tune import Controller, forgetting_trials

DEATH = RayActorError()
MISTAKE = RayTaskError("reset", "Traceback ...", ValueError("wrong"))


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tune asks the cluster for its size otherwise."""
    monkeypatch.setenv("TUNE_MAX_PENDING_TRIALS_PG", "1")


class Warm:
    """Stands for a live actor: promises whatever it is asked for."""

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=lambda *_, **__: object())


def taking_the_next_trial(folder: Path, controller_class: Any, max_failures: int = 3) -> tuple[Any, Trial]:
    """A controller whose one process, warm from an earlier trial, has just been asked to take a new one."""
    controller = controller_class(reuse_actors=True, resource_manager_factory=MagicMock, storage=MagicMock())
    actors, place = controller._actor_manager, PlacementGroupFactory([{"CPU": 1}])
    warm = TrackedActor(
        0, on_start=controller._actor_started, on_stop=controller._actor_stopped, on_error=controller._actor_failed
    )
    actors._live_actors_to_ray_actors_resources[warm] = (Warm(), MagicMock())
    trial = Trial("nothing", stub=True, placement_group_factory=place, max_failures=max_failures)
    trial.storage, trial.get_trainable_cls = MagicMock(trial_driver_staging_path=str(folder)), lambda: Trainable
    controller._actor_cache.increase_max(place)
    controller._actor_cache.cache_object(place, warm)
    controller.add_trial(trial)
    controller._maybe_add_actors()
    assert trial in controller._resetting_trials
    return controller, trial


def answered(controller: Any, answer: Any) -> None:
    """The process answers what it was asked, or fails in it."""
    events = controller._actor_manager._actor_task_events
    ((on_result, on_error),) = events._tracked_futures.values()
    events._tracked_futures.clear()
    on_error(answer) if isinstance(answer, Exception) else on_result(answer)


def test_tunes_own_loses_the_trial(tmp_path: Path) -> None:
    """Why there is another; where this fails, Tune has mended it."""
    controller, trial = taking_the_next_trial(tmp_path, TuneController)
    answered(controller, DEATH)
    assert trial.status == Trial.ERROR
    assert trial.should_recover()


@pytest.mark.parametrize("error", [DEATH, MISTAKE])
def test_the_trial_waits_again_after_one_failure(tmp_path: Path, error: Exception) -> None:
    controller, trial = taking_the_next_trial(tmp_path, Controller)
    answered(controller, error)
    assert trial.status == Trial.PENDING
    assert trial.run_metadata.num_failures == 1
    assert not controller._resetting_trials
    controller._maybe_add_actors()
    assert controller._trial_to_actor[trial] in controller._actor_manager.pending_actors


@pytest.mark.parametrize("error", [DEATH, MISTAKE])
def test_a_trial_that_has_failed_often_enough_is_over(tmp_path: Path, error: Exception) -> None:
    controller, trial = taking_the_next_trial(tmp_path, Controller, max_failures=0)
    answered(controller, error)
    assert trial.status == Trial.ERROR


def test_a_trial_that_is_over_is_forgotten(tmp_path: Path) -> None:
    """Tune's own loop keeps every one of them, with its results."""
    controller, trial = taking_the_next_trial(tmp_path, Controller)
    answered(controller, True)
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


def test_tune_has_it_for_a_sweep_alone() -> None:
    with forgetting_trials():
        assert tune.TuneController is Controller
    assert tune.TuneController is TuneController
