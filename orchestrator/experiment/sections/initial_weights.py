"""Initial weights of a model, from another run or a file. Used in the driver and in workers."""

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator

from hooks.parameter_names import Patterns, compile_pattern, list_patterns, match_names
from orchestrator.errors import ConfigError
from orchestrator.experiment.fields.field_errors import make_value_error
from orchestrator.experiment.fields.section import Model
from orchestrator.storage.location import list_secrets


class Init(Model):
    """Source of a model's initial weights, and which of them to load. Patterns match whole names,
    with * and ?."""

    # `from` and `except` are Python keywords.
    model_config = ConfigDict(serialize_by_alias=True)

    source: Annotated[str, Field(alias="from", min_length=1)]
    """A run, `RUN@best`, `RUN@last` or `RUN@CHECKPOINT`; a file of torch.save or safetensors."""
    weights: Annotated[str, Field(pattern=r"^[\w.-]+$")] | None = None
    """Weights of a run (`model`, `ema` for averages, or a part of a custom loop; by default the
    evaluated ones), or the entry of a file."""
    strict: bool = False
    """Makes a missing, unused or reshaped tensor an error instead of a log line."""
    rename: dict[str, str] = Field(default_factory=dict)
    """Patterns of names in the file, and the names here: `{"module.*": "*"}`. A *, the only
    wildcard in them, stands for the same text in both."""
    only: Patterns | None = None
    """Patterns of the model's tensors to load; all others are skipped."""
    except_: Annotated[Patterns | None, Field(alias="except")] = None
    """Patterns of the model's tensors that keep the values of `model()` and are not checked."""

    @property
    def excluded(self) -> list[str]:
        """The patterns of `except`."""
        return list_patterns(self.except_ or ())

    @model_validator(mode="after")
    def _check_source_and_rename(self) -> Self:
        if list_secrets(self.source):
            raise make_value_error(
                "from",
                "contains credentials, which the run would save; set them in the environment",
            )
        for old, new in self.rename.items():
            if set("?[").intersection(old + new):
                raise make_value_error(
                    "rename", f"takes * as its only wildcard, got '{old}: {new}'"
                )
            if old.count("*") != new.count("*"):
                counts = f"{old.count('*')} in '{old}' and {new.count('*')} in '{new}'"
                raise make_value_error("rename", f"needs as many * on both sides, got {counts}")
        return self

    def map_names(self, names: Iterable[str]) -> dict[str, str]:
        """Return the new name of each tensor to load, mapped to its name in the file.

        The first rename that matches applies. Raises ConfigError for a pattern without match, and
        for equal new names.
        """
        names = list(names)
        new_names = self._apply_renames(names)
        old_names: dict[str, str] = {}
        for name in names:
            new = new_names.get(name, name)
            if new in old_names:
                raise ConfigError.at(
                    "init.rename", f"gives {old_names[new]} and {name} the same name, {new}"
                )
            old_names[new] = name
        _require_matches("init.only", self.only or (), old_names)
        return {new: old_names[new] for new in self.select(old_names)}

    def _apply_renames(self, names: Sequence[str]) -> dict[str, str]:
        """Return the new name of each name that a rename matches."""
        new_names: dict[str, str] = {}
        for old, new in self.rename.items():
            _require_matches("init.rename", old, names)
            pattern = re.compile("(.*)".join(map(re.escape, old.split("*"))))
            for name in names:
                match = pattern.fullmatch(name)
                if match:
                    new_names.setdefault(name, _fill(new, match.groups()))
        return new_names

    def select(self, names: Collection[str]) -> list[str]:
        """Return the model's names that `only` and `except` select."""
        selected = _find_matches(list_patterns(self.only or "*"), names)
        selected -= _find_matches(self.excluded, names)
        return [name for name in names if name in selected]

    def check_excluded(self, names: Collection[str]) -> None:
        """Raise ConfigError for a pattern of `except` that matches none of these names."""
        _require_matches("init.except", self.excluded, names)


def _fill(pattern: str, parts: Iterable[str]) -> str:
    """Return a name with the parts in place of each *."""
    name, *others = pattern.split("*")
    for part, literal in zip(parts, others, strict=True):
        name += part + literal
    return name


def _find_matches(patterns: Iterable[str], names: Collection[str]) -> set[str]:
    found: set[str] = set()
    for pattern in patterns:
        found.update(filter(compile_pattern(pattern).fullmatch, names))
    return found


def _require_matches(path: str, patterns: Patterns | tuple[()], names: Collection[str]) -> None:
    try:
        match_names(patterns, names)
    except ValueError as error:
        raise ConfigError.at(path, str(error)) from None
