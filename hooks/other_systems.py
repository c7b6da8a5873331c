"""Names of events in other systems."""

from re import fullmatch

_NAMES = {
    "on_start": r"before_(run|train)|on_(fit|train|run)_(start|begin)",
    "on_end": r"after_(run|train)|on_(fit|train|run)_end",
    "on_phase_start": (
        r"before_((train|val|test)_epoch|val|test)"
        r"|on_((train|validation|test)_epoch_start|(validation|test)_start|epoch_(start|begin))"
    ),
    "on_batch": (
        r"before_(train|val|test)_iter|on_(train|validation|test)_batch_(start|begin)"
        r"|on_(batch|step)_(start|begin)"
    ),
    "on_step": (
        r"after_(train|val|test)_iter|on_(train|validation|test)_batch_end|on_(batch|step)_end"
    ),
    "on_phase_end": (
        r"after_((train|val|test)_epoch|val|test)"
        r"|on_((train|validation|test)_epoch_end|(validation|test)_end|epoch_end|evaluate)"
    ),
    "on_loss": r"on_loss_and_meter|on_before_backward",
    "on_backward": r"on_after_backward",
    "on_gradients": r"on_(before|pre)_optimizer_step",
    "on_update": r"on_before_zero_grad|on_optimizer_step",
    "on_load": r"after_load_checkpoint|on_load_checkpoint",
    "on_save": r"before_save_checkpoint|on_save_checkpoint",
    "on_report": r"on_log",
}
"""Names of events in MMEngine, ClassyVision, Lightning and Transformers, by the event here."""


def find_counterpart(name: str) -> str | None:
    """Return the event that another system calls by this name; None if there is none."""
    return next((event for event, names in _NAMES.items() if fullmatch(names, name)), None)
