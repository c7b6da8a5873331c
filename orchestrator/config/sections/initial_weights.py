"""Initial weights: what of another run, or of a file, a model begins with. Checked in the driver, and in each worker
against the model."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Annotated, Any, Self

from pydantic import Field, create_model, model_validator

from hooks.parameter_names import compiled, matched
from orchestrator.config.sections.base import Model
from orchestrator.errors import ConfigError, Problem
from orchestrator.storage.location import secrets_in

Patterns = Annotated[list[str], Field(min_length=1)]

_FROM = "A run, `RUN@best`, `RUN@last` or `RUN@CHECKPOINT`; a file of torch.save or safetensors."
_EXCEPT = "Patterns of the model's names that stay as they are made, and are no part of what is looked at."
_Named: Any = create_model(
    # `from` and `except` are words of Python's own, which no class body can name a field.
    "_Named",
    __base__=Model,
    **{
        "from": (Annotated[str, Field(min_length=1)], Field(description=_FROM)),
        "except": (Patterns | None, Field(None, description=_EXCEPT)),
    },  # type: ignore[call-overload]  # mypy matches no overload to unpacked fields
)


class Init(_Named):  # type: ignore[misc]  # made by a call
    """Where a model's first weights come from, and which of them are taken. Patterns are of whole names, with * and
    ?."""

    weights: Annotated[str, Field(pattern=r"^[\w.-]+$")] | None = None
    """Of a run `model`, the weights in training, or `ema`, their averages; by default the evaluated
    weights. Of a file its entry of this name."""
    strict: bool = False
    """Whether a tensor that is missing, left over or of another shape is an error, and not just told."""
    rename: dict[str, str] = Field(default_factory=dict)
    """Patterns of names as they come, and what these are called here: `{"module.*": "*"}`. Each * stands for the same
    in both."""
    only: Patterns | None = None
    """Patterns of the model's names: no other is looked at."""

    @property
    def source(self) -> str:
        """What `from` says."""
        return str(getattr(self, "from"))

    @property
    def excluded(self) -> list[str]:
        """What `except` says."""
        return getattr(self, "except") or []

    @model_validator(mode="after")
    def _can_be_done(self) -> Self:
        if secrets_in(self.source):
            raise ValueError(
                "from holds a user or a key, which would be written down with the run; leave them to the environment"
            )
        for old, new in self.rename.items():
            if old.count("*") != new.count("*"):
                raise ValueError(
                    f"rename has {old.count('*')} * in '{old}' and {new.count('*')} in '{new}'; each stands for the"
                    " same in both"
                )
        return self

    def renamed(self, names: Iterable[str]) -> dict[str, str]:
        """What each of these names is called here, for those that are looked at, with the name as it comes.

        Raises ConfigError for a rename that matches nothing, two of one tensor, and two tensors that become one.
        """
        names, problems = list(names), list[Problem]()
        called = {name: name for name in names}
        used: dict[str, str] = {}
        for old, new in self.rename.items():
            pattern = re.compile("(.*)".join(map(re.escape, old.split("*"))))
            found = {name: match for name in names if (match := pattern.fullmatch(name))}
            if not found:
                problems.extend(_unmatched("init.rename", [old], names))
            for name, match in found.items():
                if name in used:
                    problems.append(Problem("init.rename", f"'{used[name]}' and '{old}' both match {name}"))
                    break
                used[name] = old
                parts = new.split("*")
                called[name] = "".join(part for pair in zip(parts, (*match.groups(), ""), strict=True) for part in pair)
        here: dict[str, str] = {}
        for name, new in called.items():
            if new in here:
                problems.append(Problem("init.rename", f"makes one tensor, {new}, of two: {here[new]} and {name}"))
                break
            here[new] = name
        if self.only:
            problems.extend(_unmatched("init.only", self.only, here))
        if problems:
            raise ConfigError(problems)
        return {new: here[new] for new in self.select(here)}

    def select(self, names: Collection[str]) -> list[str]:
        """Those of the model's names that `only` and `except` leave."""
        within = _matching(self.only, names) if self.only else set(names)
        return [name for name in names if name in within - _matching(self.excluded, names)]

    def check_excluded(self, names: Collection[str]) -> None:
        """Raises ConfigError for a pattern of `except` that matches none of the names that come or are the model's."""
        if problems := _unmatched("init.except", self.excluded, names):
            raise ConfigError(problems)


def _matching(patterns: Iterable[str], names: Collection[str]) -> set[str]:
    return {name for pattern in patterns for name in names if compiled(pattern).fullmatch(name)}


def _unmatched(path: str, patterns: Iterable[str], names: Collection[str]) -> list[Problem]:
    problems = []
    for pattern in patterns:
        try:
            matched([pattern], names)
        except ValueError as error:
            problems.append(Problem(path, str(error)))
    return problems
