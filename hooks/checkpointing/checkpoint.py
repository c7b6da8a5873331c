"""The hook `checkpoint`: when to save checkpoints, and which of them to keep."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, MinLen

from hooks.checkpointing.shared.kept_checkpoints import KeptCheckpoints
from hooks.checkpointing.shared.publishing import explain_unknown_part, publish_parts
from hooks.checkpointing.shared.requests import CheckpointRequests, Request
from hooks.hook import Hook, Priority, Ranks
from hooks.interval import Interval
from hooks.loop_services import get_checkpoint_name
from hooks.metrics.best_checkpoints import BestCheckpoints
from hooks.metrics.direction import Mode
from hooks.needs import Needs
from hooks.setup import Setup
from hooks.state import State


@dataclass
class Checkpoint(Hook):
    """Save checkpoints at an interval, at the end, and whenever a metric reaches a new best.

        checkpoint: {every: 500 steps, keep: 3, best: val/accuracy}

    All ranks make the same decisions, from counters and reduced metrics. The hook saves after
    training, before validation, and labels the checkpoint `best` afterwards if its validation is
    the best so far. It deletes an old checkpoint only after a newer one is stored. Source: MMEngine
    CheckpointHook, VISSL LogLossMetricsCheckpointHook, ClassyVision CheckpointHook, iMIX
    CheckPointHook.
    """

    every: Interval = Interval(1)
    """Interval between two checkpoints."""
    keep: Annotated[Annotated[int, Ge(1)] | None, Needs("every")] = 3
    """Number of recent checkpoints of the interval to keep in addition to the best; null keeps
    all. Each metric has one best, so to choose the N best of a run, keep all."""
    save_last: bool = True
    """Final checkpoint at the end of training, whatever the interval, also if a hook stops the run
    early."""
    best: str | list[str] | None = None
    """Metrics for which to save and keep the best checkpoint, such as `val/accuracy`; `auto` is the
    first validation metric without the word `loss` in its name, or else the loss. By default no
    extra checkpoint is saved. The best of the existing ones is kept, by the main metric or the
    first validation metric whose direction is known."""
    mode: Annotated[Mode | list[Mode] | None, Needs("best")] = None
    """`max` if higher is better, `min` if lower: one value, or one per metric. By default the
    meter's `higher_is_better`, or inferred from the name."""
    begin: Annotated[int, Ge(0), Needs("every")] = 0
    """First epoch or step (in the unit of `every`) at which to save."""
    weights: Literal["all", "trainable"] = "all"
    """Weights in a checkpoint. `trainable` leaves out the parameters that `model()` returns frozen
    (`requires_grad` is False), while they have their initial values. A restore takes them from
    `model()` and `init`, and refuses others by their digests. Buffers stay in, because BatchNorm
    changes those of frozen layers too."""
    background: bool = False
    """Background writes: training waits only until the state is copied to host memory."""
    out_dir: str | None = None
    """Folder in which the checkpoints get a folder with the run's name, and those of a trial a folder
    `SWEEP/TRIAL`. By default they are in `checkpoints/` of the run's folder."""
    publish: Annotated[list[str], MinLen(1)] | None = None
    """Parts of the last and best checkpoints to export at the end as separate files, in
    `published/` beside the checkpoints. `model` (or `state_dict`) is the evaluated weights,
    `raw_model` the weights in training, `meta` the manifest with the experiment as `config`. Others
    are `optimizer`, `hooks`, and the name of a hook, for its saved state."""

    monitors: ClassVar[str] = "best"
    observes: ClassVar[bool] = True
    priority: ClassVar[Priority | int] = Priority.VERY_LOW
    ranks: ClassVar[Ranks] = Ranks.ALL
    evaluates: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._requests = CheckpointRequests()
        self._kept = KeptCheckpoints(self.keep)
        self._bests = BestCheckpoints(self.best, self.mode)

    # Events

    def on_load(self, state: State, checkpoint: Mapping[str, Any]) -> None:
        is_same_run = checkpoint["copied_from"] is None
        restored = self._requests.resume(state.position, checkpoint["name"])
        if not is_same_run:
            # The other run's folder has the earlier checkpoints.
            self._kept.names.clear()
        if restored.request.is_regular or not is_same_run:
            self._kept.add(restored.name)

        stored = set(state.checkpoints.list_names()) if state.checkpoints else set()
        self._kept.drop_deleted(stored)
        self._bests.resume(
            state, restored.name, restored.request.metrics, stored, is_same_run=is_same_run
        )

    def on_step(self, state: State) -> None:
        if self.every.due(state, self.begin):
            self._requests.request_regular(state, "interval")

    def handles(self, event: str) -> bool:
        """Return whether the hook acts at an event; on steps only if `every` is in steps."""
        return (event != "on_step" or self.every.unit == "steps") and super().handles(event)

    def on_phase_end(self, state: State) -> None:
        if state.phase == "train":
            self._request_after_training(state)
        self._update_best(state)

    def on_save(self, state: State, checkpoint: dict[str, Any]) -> None:
        self._requests.begin_save(state.position)

    def on_saved(self, state: State, path: str) -> None:
        saved = self._requests.finish_save(get_checkpoint_name(path))
        if saved.request.is_regular:
            self._kept.add(saved.name)
        self._bests.mark(state, saved.name, saved.request.metrics)
        self._retain(state)

    def on_end(self, state: State) -> None:
        if self.publish is None:
            return
        newest = self._requests.newest_name
        last = [newest] if newest else []
        publish_parts(self.publish, self._add_bests(last), state)

    # Settings

    def unsuitable(self, setup: Setup) -> str:
        return (
            self._explain_setting_of_all_checkpoints(setup)
            or self._explain_need_of_frozen_weights(setup)
            or explain_unknown_part(self.publish or (), setup)
        )

    def _explain_setting_of_all_checkpoints(self, setup: Setup) -> str:
        """Return which setting applies to all checkpoints of a run, so that only the hook named
        `checkpoint` may have it; empty if this hook has none or is that one."""
        if setup.hooks.get("checkpoint") is self:
            return ""
        are_set = {
            "out_dir": self.out_dir is not None,
            "background": self.background,
            "weights": self.weights != "all",
        }
        for key, is_set in are_set.items():
            if is_set:
                return (
                    f"`{key}` applies to all checkpoints of a run;"
                    " set it in the hook named `checkpoint`"
                )
        return ""

    def _explain_need_of_frozen_weights(self, setup: Setup) -> str:
        """Return why checkpoints cannot leave out the frozen weights, if they should."""
        if self.weights == "all":
            return ""
        reason = setup.explain(
            fsdp="a rank has only its shards of the frozen weights, and cannot compare them",
            custom_loop="it saves what the task names; leave the frozen weights out there",
        )
        return f"weights: trainable {reason}" if reason else ""

    # State

    def state_dict(self) -> dict[str, Any]:
        """Return what is known once this checkpoint is stored, but for its name. It is called before
        `on_save`, so the next request is the one for this checkpoint."""
        request = self._requests.next
        return {
            "names": self._kept.select_newest(count_next=request.is_regular),
            "bests": self._bests.state_dict(),
            "request": asdict(request),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._kept.names = list(state["names"])
        self._bests.load_state_dict(state["bests"])
        self._requests.restored = Request(**state["request"])

    # Requests

    def _request_after_training(self, state: State) -> None:
        if self.every.unit == "epochs" and self.every.due(state, self.begin):
            self._requests.request_regular(state, "interval")
            return
        is_saved = self._requests.find_at(state.position) is not None
        if self.save_last and state.finished and not is_saved:
            self._requests.request_regular(state, "last")

    def _update_best(self, state: State) -> None:
        """Find metrics with a new best value, and make sure that this position has a checkpoint for
        them."""
        self._bests.choose_metric(state)
        self._bests.check_metrics(state)
        if not self.best and not self._requests.has_weights_of(state.position):
            return
        metrics = self._bests.update_scores(state)
        if not metrics:
            return

        checkpoint = self._requests.find_at(state.position)
        if checkpoint is None:
            self._requests.request_best(state, metrics)
        elif not checkpoint.name:
            # It is labeled once it is written.
            checkpoint.request.metrics += metrics
        else:
            self._bests.mark(state, checkpoint.name, metrics)
            self._retain(state)

    # Retention

    def _retain(self, state: State) -> None:
        self._kept.drop_oldest()
        if state.checkpoints is not None:
            state.checkpoints.retain(self.name, self._add_bests(self._kept.names))

    def _add_bests(self, names: Iterable[str]) -> list[str]:
        """Return names and those of the best checkpoints, without duplicates."""
        return list(dict.fromkeys([*names, *self._bests.list_checkpoints()]))
