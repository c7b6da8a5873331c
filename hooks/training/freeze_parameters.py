"""Keeps parameters as they are, for a while or for ever."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import translate
from typing import Annotated, ClassVar, Literal

from annotated_types import MinLen
from torch import nn

from hooks.hook import Hook, Priority
from hooks.rhythm import Rhythm
from hooks.state import State


@dataclass
class FreezeParameters(Hook):
    """Keeps the parameters of some names as they are, for a number of epochs or steps or for the whole run.

    At each optimizer step their gradients are taken away before any other hook sees them: they count in no norm, and
    the optimizer passes over them, with its momentum and weight decay. They are still differentiated, so that ranks
    that wait for each other's gradients need not know. Buffers, such as running statistics, go on. Every rank does
    the same; no communication. Hooks of this kind with different `until` live side by side under names of their own.
    Raises ValueError for a pattern that is none or, at start, that matches nothing. Source: VISSL
    FreezeParametersHook, whose frozen gradients count in the clipped norm.
    """

    patterns: Annotated[list[str], MinLen(1)]
    """Which names, as in `model.named_parameters()`; each must be matched as a whole, such as backbone.*"""
    until: Rhythm | None = None
    """How many epochs or optimizer steps to complete before they are trained; null freezes them for the whole run."""
    match: Literal["glob", "regex"] = "glob"
    """Whether patterns are shell-like, with * and ?, or regular expressions."""

    priority: ClassVar[Priority] = Priority.HIGHEST

    def __post_init__(self) -> None:
        self._expressions = [_compiled(pattern, self.match) for pattern in self.patterns]
        self._frozen: list[nn.Parameter] = []

    def on_start(self, state: State) -> None:
        named = dict(state.module.named_parameters(remove_duplicate=False))
        for pattern, expression in zip(self.patterns, self._expressions, strict=True):
            if not any(map(expression.fullmatch, named)):
                raise ValueError(f"pattern '{pattern}' matches no parameter; {_nearest(pattern, list(named))}")
        frozen = {name for name in named for expression in self._expressions if expression.fullmatch(name)}
        self._frozen = list({id(named[name]): named[name] for name in sorted(frozen)}.values())

    def on_gradients(self, state: State) -> None:
        if self.until is not None and self.until.reached(state):
            return
        for parameter in self._frozen:
            parameter.grad = None
        state.forget_gradients()


def _compiled(pattern: str, match: str) -> re.Pattern[str]:
    try:
        return re.compile(translate(pattern) if match == "glob" else pattern)
    except re.error as error:
        raise ValueError(f"pattern '{pattern}' is no regular expression: {error}; for * and ? write match: glob") from None


def _nearest(pattern: str, names: Sequence[str]) -> str:
    near = get_close_matches(pattern, names, cutoff=0.4)
    return f"did you mean {', '.join(near)}?" if near else f"there are: {', '.join(names[:10])}{' ...' if len(names) > 10 else ''}"
