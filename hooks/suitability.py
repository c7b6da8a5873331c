"""Why a hook cannot work in the setup of an experiment."""

from collections.abc import Sequence
from difflib import get_close_matches

from hooks.hook import EVENTS, WITHIN_ITERATION, Hook
from hooks.hook_state import list_fields
from hooks.setup import Setup


def find_reason_against(hook: Hook, setup: Setup) -> str:
    """Return why a hook cannot work in this setup; empty if it can."""
    acts_in = [event for event in WITHIN_ITERATION if _acts_in(hook, event)]
    missed = [event for event in acts_in if event != "on_step"]
    reason = ""
    if missed:
        reason = f"it acts in {', '.join(missed)}, which only the hooked loop fires"
    return (
        setup.explain(custom_loop=reason)
        or _explain_epochs(hook, acts_in)
        or _explain_missing_state(hook)
        or hook.unsuitable(setup)
        or _explain_no_event(hook)
    )


def _acts_in(hook: Hook, event: str) -> bool:
    """Return whether a hook handles an event, at an interval that is ever due."""
    interval = hook.get_interval(event)
    return hook.handles(event) and (interval is None or interval.count > 0)


def _explain_no_event(hook: Hook) -> str:
    """Return why the loop never calls a hook, whose class overrides no event; empty if it does."""
    cls = type(hook)
    if any(getattr(cls, event) is not getattr(Hook, event) for event in EVENTS):
        return ""
    return f"{cls.__name__} overrides no event, so it is never called; events: {', '.join(EVENTS)}"


def _explain_epochs(hook: Hook, events: Sequence[str]) -> str:
    """Return why an interval in epochs has no effect on a hook; empty if it has one."""
    if hook.handles("on_phase_end"):
        return ""
    for event in events:
        interval = hook.get_interval(event)
        if interval is not None and interval.unit == "epochs":
            return (
                f"{event} is never called at an interval of {interval};"
                " set one in steps or iterations"
            )
    return ""


def _explain_missing_state(hook: Hook) -> str:
    """Return which listed attribute a new hook does not have, so that no checkpoint could be saved;
    empty if none."""
    for kind in ("state_fields", "rank_state_fields"):
        for name in list_fields(hook, kind):
            if not hasattr(hook, name):
                near = get_close_matches(name, vars(hook), n=1)
                hint = f"did you mean '{near[0]}'?" if near else "set it in __post_init__"
                return f"{kind} names '{name}', which is no attribute of a new hook; {hint}"
    return ""
