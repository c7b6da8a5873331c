"""Publishing: parts of checkpoints as separate files."""

from collections.abc import Iterable, Sequence

from hooks.setup import Setup
from hooks.state import State


def publish_parts(parts: Sequence[str], checkpoints: Iterable[str], state: State) -> None:
    """Export parts of stored checkpoints into `published/` beside them."""
    store = state.checkpoints
    if store is None:
        return
    for name in checkpoints:
        keys = {"model": store.find_evaluated_weights(name), "raw_model": "model"}
        key_by_part = {part: keys.get(part, part) for part in map(_resolve_alias, parts)}
        store.publish(name, key_by_part, "published", state.config)


def explain_unknown_part(parts: Iterable[str], setup: Setup) -> str:
    """Return which parts to publish no checkpoint has; empty if none."""
    records = [name for name, hook in setup.hooks.items() if hook.keeps_record]
    known = ["model", "raw_model", "optimizer", "hooks", "meta", *records]
    unknown = [part for part in parts if _resolve_alias(part) not in known]
    if not unknown:
        return ""
    return f"publish: a checkpoint has no {', '.join(unknown)}; it has {', '.join(known)}"


def _resolve_alias(part: str) -> str:
    return "model" if part == "state_dict" else part
