"""Reading a checkpoint on all ranks, whatever the contents, and restoring hooks. Runs in workers."""

from functools import partial

from hooks.errors import HookError
from hooks.hook import Hook
from orchestrator.disk.checkpoints.contents import fill_shards, list_shared_parts
from orchestrator.disk.checkpoints.files import name_rank_file
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.loop.saving.contents import CheckpointContents, LoadedCheckpoint
from orchestrator.loop.world import World


def load_checkpoint(
    store: CheckpointStore, name: str, contents: CheckpointContents, world: World
) -> LoadedCheckpoint:
    """Load the contents of a checkpoint that this rank needs; collective."""
    manifest = world.broadcast(partial(store.read_manifest, name))
    files = manifest["files"]
    stored_keys = list_shared_parts(files)
    stored = {
        key: store.load(name, f"{key}.pt")
        for key in dict.fromkeys([*contents.files, "hooks", *stored_keys])
        if key not in contents.unread
    }
    shared = fill_shards(store, name, stored, contents.mesh)

    load = partial(store.load, name)
    rank_file = name_rank_file(world.rank)
    rank_state = load(rank_file) if rank_file in files else {"hooks": {}}
    return LoadedCheckpoint(
        name,
        manifest,
        shared,
        rank_state,
        load_rank_state=lambda rank: load(name_rank_file(rank)),
    )


def restore_hook(hook: Hook, name: str, loaded: LoadedCheckpoint) -> None:
    """Restore the state of a hook. Raises HookError if it does not fit."""
    shared_states = loaded.shared["hooks"]
    rank_states = loaded.rank_state["hooks"]
    method = "load_state_dict"
    try:
        if name in shared_states:
            hook.load_state_dict(shared_states[name])
        if rank_states.get(name):
            method = "load_rank_state_dict"
            hook.load_rank_state_dict(rank_states[name])
    except Exception as error:
        raise HookError.from_error(name, method, error) from error
