"""Frozen parameters."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from hooks.errors import SettingError
from hooks.hook import Hook, Priority
from hooks.interval import Interval
from hooks.parameter_names import Match, Patterns, compile_pattern, list_patterns, match_names
from hooks.setup import CHANGES_GRADIENTS, Setup
from hooks.state import State


@dataclass
class FreezeParameters(Hook):
    """Freeze the parameters with matching names, for some epochs or steps or for the whole run.

        freeze_parameters: {patterns: backbone.*, until: 5 epochs}

    Before each optimizer step the hook removes their gradients. So they do not count in norms, and
    the optimizer skips them, including momentum and weight decay. Autograd still computes these
    gradients. Buffers, such as running statistics, still change. For different values of `until`,
    use several hooks of this type with different names.
    Source: VISSL FreezeParametersHook.
    """

    patterns: Patterns
    """One or more patterns of full parameter names, as in `model.named_parameters()`."""
    until: Interval | None = None
    """Epochs or optimizer steps after which the parameters are trained; null freezes them for the
    whole run."""
    match: Match = "glob"
    """Pattern language: `glob` for * and ?, `regex` for regular expressions."""

    priority: ClassVar[Priority] = Priority.HIGHEST

    def __post_init__(self) -> None:
        for pattern in list_patterns(self.patterns):
            compile_pattern(pattern, self.match)
        self._frozen: list[nn.Parameter] = []

    def unsuitable(self, setup: Setup) -> str:
        return setup.explain(closure=CHANGES_GRADIENTS)

    def on_start(self, state: State) -> None:
        named = dict(state.module.named_parameters(remove_duplicate=False))
        try:
            frozen = match_names(self.patterns, named, self.match)
        except ValueError as error:
            raise SettingError(f"patterns: {error}") from None
        self._frozen = list({id(named[name]): named[name] for name in sorted(frozen)}.values())

    def on_gradients(self, state: State) -> None:
        if self.until is not None and self.until.reached(state):
            return
        for parameter in self._frozen:
            parameter.grad = None
        state.forget_gradients()
