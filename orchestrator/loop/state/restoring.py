"""Restoring of checkpoints by all ranks, whatever the contents. Runs in workers."""

from collections.abc import Mapping
from functools import partial

from hooks.errors import HookError
from hooks.hook import Hook
from hooks.plan import Plan
from hooks.state import State
from orchestrator.disk.checkpoints.files import name_rank_file
from orchestrator.disk.checkpoints.manifest import parse_position
from orchestrator.disk.checkpoints.reader import shared_files
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.errors import CheckpointError
from orchestrator.loop.state.contents import CheckpointContents, LoadedCheckpoint
from orchestrator.loop.state.cursor import RunCursor
from orchestrator.loop.state.random_states import RandomStates
from orchestrator.loop.world import World


class CheckpointRestorer:
    """Reader of checkpoints, in which every rank takes part."""

    def __init__(
        self,
        store: CheckpointStore | None,
        state: State,
        plan: Plan,
        contents: CheckpointContents,
        cursor: RunCursor,
        world: World,
        random_states: RandomStates,
    ) -> None:
        self._store = store
        self._state = state
        self._plan = plan
        self._contents = contents
        self._cursor = cursor
        self._world = world
        self._random_states = random_states
        self.hooks: Mapping[str, Hook] = plan.hooks
        """Hooks whose state is restored."""
        self.restores_training = True
        """False if another run has restored the same training already."""

    def restore(self, name: str) -> None:
        """Restore checkpoint `name` on this rank and fire `on_load`.

        Raises UsageError if it does not fit.
        """
        if self._store is None:
            raise CheckpointError("this loop has no store to restore from")
        state = self._state
        loaded = self._load(name)
        manifest = loaded.manifest
        rank_state = loaded.rank_state

        position = parse_position(rank_state.get("position") or manifest["position"])
        self._cursor.restore(position)
        if self.restores_training:
            self._contents.restore(loaded)
        random_states = self._random_states
        random_states.restored = rank_state.get("random")
        random_states.after_training = rank_state.get("after_training") or random_states.restored
        state.metrics = dict(manifest["metrics"])
        # Another run that continues from this checkpoint does not stop.
        if manifest.get("run") == state.name:
            state.stop_reasons += manifest["stop_reasons"]

        for hook_name, hook in self.hooks.items():
            _restore_hook(hook, hook_name, loaded)
        self._plan.fire("on_load", state, {**loaded.shared, "name": name})

    def _load(self, name: str) -> LoadedCheckpoint:
        """Load the contents of a checkpoint that this rank needs; collective."""
        assert self._store is not None
        contents = self._contents
        manifest = self._world.broadcast(partial(self._store.read_manifest, name))
        files = manifest["files"]
        keys = [*contents.files, "hooks"]
        keys += [file.removesuffix(".pt") for file in shared_files(files)]
        stored = {
            key: self._store.load(name, f"{key}.pt")
            for key in dict.fromkeys(keys)
            if key not in contents.unread
        }
        shared = self._store.with_shards(name, stored, contents.mesh)

        load = partial(self._store.load, name)
        rank_file = name_rank_file(self._world.rank)
        rank_state = load(rank_file) if rank_file in files else {"hooks": {}}
        return LoadedCheckpoint(
            name,
            manifest,
            shared,
            rank_state,
            load_rank_state=lambda rank: load(name_rank_file(rank)),
        )


def _restore_hook(hook: Hook, name: str, loaded: LoadedCheckpoint) -> None:
    shared_states = loaded.shared["hooks"]
    rank_states = loaded.rank_state["hooks"]
    try:
        if name in shared_states:
            hook.load_state_dict(shared_states[name])
        if rank_states.get(name):
            hook.load_rank_state_dict(rank_states[name])
    except Exception as error:
        raise HookError.from_error(name, "load_state_dict", error) from error
