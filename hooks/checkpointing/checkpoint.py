"""The hook `checkpoint`: when to save checkpoints, and which of them to keep."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from annotated_types import Ge, MinLen

from hooks.hook import Hook, Priority, Ranks
from hooks.interval import Interval
from hooks.loop_services import Checkpoints, get_checkpoint_name
from hooks.metrics.best_checkpoints import BestCheckpoints
from hooks.metrics.direction import Mode
from hooks.needs import Needs
from hooks.position import Position
from hooks.setup import Setup
from hooks.state import State


@dataclass
class _Purpose:
    """What a hook wants a checkpoint for; nothing if another one has requested it."""

    is_regular: bool = False
    """True for the interval or for the end: it counts towards `keep`."""
    metrics: list[str] = field(default_factory=list)
    """Metrics for which it is the best."""


@dataclass
class _InProgress:
    """A checkpoint that is being written."""

    position: Position
    purpose: _Purpose


class _Stored(NamedTuple):
    """A stored checkpoint, and the position that it holds."""

    position: Position
    name: str


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
        self._bests = BestCheckpoints(self.best, self.mode)
        self._names: list[str] = []
        """Regular checkpoints that this hook has not dropped, oldest first."""
        self._next = _Purpose()
        """Purpose of the next checkpoint."""
        self._restored = _Purpose()
        """Purpose of the checkpoint from which this attempt continues."""
        self._in_progress: _InProgress | None = None
        self._saved: _Stored | None = None
        """The newest checkpoint of this attempt."""
        self._run: str | None = None
        """Name of the run that the names and the best values describe; None before its start."""

    # Events

    def on_load(self, state: State, checkpoint: Mapping[str, Any]) -> None:
        self._reset_if_from_another_run(state)
        self._reconcile(state, checkpoint["name"])

    def on_start(self, state: State) -> None:
        self._run = state.name

    def on_step(self, state: State) -> None:
        if self.every.due(state, self.begin):
            self._request(state, "interval")

    def handles(self, event: str) -> bool:
        """Return whether the hook acts at an event; on steps only if `every` is in steps."""
        return (event != "on_step" or self.every.unit == "steps") and super().handles(event)

    def on_phase_end(self, state: State) -> None:
        if state.phase == "train":
            self._after_training(state)
        self._update_best(state)

    def on_save(self, state: State, checkpoint: dict[str, Any]) -> None:
        self._in_progress = _InProgress(state.position, self._next)
        self._next = _Purpose()

    def on_saved(self, state: State, path: str) -> None:
        """Record the stored checkpoint. Training may have requested another one in the meantime."""
        assert self._in_progress is not None
        written = self._in_progress
        self._in_progress = None
        name = get_checkpoint_name(path)
        self._saved = _Stored(written.position, name)
        if written.purpose.is_regular:
            self._names = [known for known in self._names if known != name]
            self._names.append(name)
        self._bests.mark(state, name, written.purpose.metrics)
        self._retain(state)

    def on_end(self, state: State) -> None:
        if self.publish is None or state.checkpoints is None:
            return
        last = self._names[-1:]
        if self._saved is not None:
            last = [self._saved.name]
        for name in self._add_bests(last):
            parts = _locate_parts(self.publish, name, state.checkpoints)
            state.checkpoints.publish(name, parts, "published", state.config)

    # Settings

    def unsuitable(self, setup: Setup) -> str:
        return (
            self._explain_key_of_the_run(setup)
            or self._explain_need_of_frozen_weights(setup)
            or self._explain_unknown_part(setup)
        )

    def _explain_key_of_the_run(self, setup: Setup) -> str:
        """Return which key is set that only the hook named checkpoint may set; empty if none."""
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
                    " set it in the hook named checkpoint"
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

    def _explain_unknown_part(self, setup: Setup) -> str:
        """Return which parts to publish no checkpoint has; empty if none."""
        records = [name for name, hook in setup.hooks.items() if hook.keeps_record]
        known = ["model", "raw_model", "optimizer", "hooks", "meta", *records]
        unknown = [key for key in self.publish or () if _resolve_alias(key) not in known]
        if not unknown:
            return ""
        return f"publish: a checkpoint has no {', '.join(unknown)}; it has {', '.join(known)}"

    # State

    def state_dict(self) -> dict[str, Any]:
        """Return the names of saved checkpoints that stay once this one is stored, and its purpose.

        Its own name is not known yet.
        """
        names = self._names
        if self.keep is not None:
            kept = self.keep - 1 if self._next.is_regular else self.keep
            names = names[max(0, len(names) - kept) :]
        return {
            "names": list(names),
            "bests": self._bests.state_dict(),
            "next": asdict(self._next),
            "run": self._run,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._names = list(state["names"])
        self._bests.load_state_dict(state["bests"])
        saved = _Purpose(**state["next"])
        self._restored = _Purpose(saved.is_regular, self._bests.select_known(saved.metrics))
        self._run = state["run"]

    # Requests

    def _request(self, state: State, reason: str) -> None:
        self._next.is_regular = True
        state.request_checkpoint(reason)

    def _after_training(self, state: State) -> None:
        if self.every.unit == "epochs" and self.every.due(state, self.begin):
            self._request(state, "interval")
            return
        is_saved = self._find_in_progress(state) or self._saved_at(state)
        if self.save_last and state.finished and not is_saved:
            self._request(state, "last")

    def _update_best(self, state: State) -> None:
        """Find metrics with a new best value, and make sure that this position has a checkpoint for
        them."""
        self._bests.choose_metric(state)
        metrics = self._bests.find_improved(state)
        if not metrics or not (self.best or self._has_checkpoint_of_these_weights(state)):
            return
        self._bests.update(metrics, state)

        in_progress = self._find_in_progress(state)
        saved = self._saved_at(state)
        if in_progress:
            in_progress.purpose.metrics += metrics
        elif saved:
            self._bests.mark(state, saved, metrics)
            self._retain(state)
        else:
            self._next.metrics += metrics
            state.request_checkpoint("best")

    def _find_in_progress(self, state: State) -> _InProgress | None:
        """Return the checkpoint of this position that is still being written."""
        current = self._in_progress
        return current if current and current.position == state.position else None

    def _saved_at(self, state: State) -> str | None:
        """Return the checkpoint that this attempt made at this position."""
        if self._saved is None:
            return None
        return self._saved.name if self._saved.position == state.position else None

    def _has_checkpoint_of_these_weights(self, state: State) -> bool:
        """Return whether no step was made since the newest checkpoint, whose buffers may be of an
        earlier iteration."""
        newest = self._in_progress or self._saved
        return newest is not None and newest.position.has_same_weights(state.position)

    # Retention

    def _retain(self, state: State) -> None:
        if state.checkpoints is None:
            return
        if self.keep is not None:
            self._names = self._names[-self.keep :]
        state.checkpoints.retain(self.name, self._add_bests(self._names))

    def _add_bests(self, names: Iterable[str]) -> list[str]:
        """Return names and those of the best checkpoints, without duplicates."""
        return _deduplicate([*names, *self._bests.list_names()])

    # Resuming

    def _reset_if_from_another_run(self, state: State) -> None:
        """Discard names and scores if the restored checkpoint comes from another run."""
        if self._run in (None, state.name):
            return
        self._names = []
        self._restored.is_regular = True
        self._bests.forget_scores(kept=self._restored.metrics)

    def _reconcile(self, state: State, restored: str) -> None:
        """Drop names of deleted checkpoints; add the restored one, which lacks its own name, if it
        is one to keep."""
        stored = set(state.checkpoints.list_names()) if state.checkpoints else set()
        names = [*self._names, restored] if self._restored.is_regular else self._names
        self._names = [name for name in _deduplicate(names) if name in stored]
        self._bests.reconcile(state, stored, dict.fromkeys(self._restored.metrics, restored))
        self._saved = _Stored(state.position, restored)


def _locate_parts(
    parts: Iterable[str], checkpoint: str, checkpoints: Checkpoints
) -> dict[str, str]:
    """Return where in a checkpoint each part is, by the part's name in the published file."""
    places = {"model": checkpoints.find_evaluated_weights(checkpoint), "raw_model": "model"}
    return {part: places.get(part, part) for part in map(_resolve_alias, parts)}


def _resolve_alias(key: str) -> str:
    return "model" if key == "state_dict" else key


def _deduplicate(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
