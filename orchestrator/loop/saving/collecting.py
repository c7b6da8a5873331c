"""Collection of what a checkpoint holds, on each rank. Runs in workers."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from hooks.event_plan import Plan
from hooks.position import Stage
from hooks.state import State
from orchestrator.disk.checkpoints import placeholders
from orchestrator.disk.checkpoints.files import name_rank_file
from orchestrator.loop.saving.contents import CheckpointContents
from orchestrator.loop.saving.cursor import RunCursor
from orchestrator.loop.saving.random_states import RandomStates
from orchestrator.loop.world import World


class CheckpointCollector:
    """Collects what a run's checkpoint holds on this rank: the contents of its loop, the states of
    the hooks, the random state and the position."""

    def __init__(
        self,
        *,
        state: State,
        plan: Plan,
        contents: CheckpointContents,
        cursor: RunCursor,
        world: World,
        random_states: RandomStates,
    ) -> None:
        self.state = state
        self.plan = plan
        self.cursor = cursor
        self.world = world
        self._contents = contents
        self._random_states = random_states

    def collect_shared(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the contents that all ranks share, by file, and the sharded tensors in them; fires
        `on_save`. Collective."""
        content = self._contents.collect_shared()
        content["hooks"] = {name: hook.state_dict() for name, hook in self.plan.hooks.items()}
        self.plan.fire("on_save", self.state, content)
        self._contents.trim(content)
        if self._contents.mesh is None:
            return placeholders.encode(content), {}
        shards: placeholders.Sharded = {}
        return placeholders.encode(content, shards), dict(shards.values())

    def make_files(self, shared: Mapping[str, Any]) -> dict[str, Any]:
        """Return the contents of this rank's files, except for sharded tensors."""
        rank_state = placeholders.encode(self._collect_rank_state())
        files = {name_rank_file(self.world.rank): rank_state}
        if self.world.is_master:
            files |= {f"{key}.pt": value for key, value in shared.items()}
        return files

    def make_details(self) -> dict[str, Any]:
        """Return the entries of the manifest."""
        state = self.state
        return {
            "run": state.name,
            "world_size": state.world_size,
            "stop_reasons": state.stop_reasons,
            "metrics": state.metrics,
            "main_metric": state.main_metric,
            "media": state.media.count if state.media else 0,
            "evaluations": {
                label: weights.provider for label, weights in state.evaluations.items()
            },
            **self._contents.make_details(),
        }

    def _collect_rank_state(self) -> dict[str, Any]:
        position = self.cursor.position()
        is_evaluated = position.stage > Stage.TRAINED
        return {
            **self._random_states.collect(is_evaluated=is_evaluated),
            "hooks": {name: hook.rank_state_dict() for name, hook in self.plan.hooks.items()},
            "position": {**asdict(position), "stage": int(position.stage)},
            # Until the ranks agree to stop, each has its own.
            "stop_reasons": self.state.stop_reasons,
            **self._contents.collect_per_rank(),
        }
