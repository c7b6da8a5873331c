"""Parameter groups: optimizer arguments for parameters that are selected by name."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Gt, Le
from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag
from pydantic_core import PydanticKnownError
from torch import nn

from hooks.parameter_names import Patterns, compile_pattern, list_patterns, match_names
from orchestrator.errors import ConfigError, Problem, raise_problems
from orchestrator.experiment.fields.section import Model
from orchestrator.experiment.fields.validation import validate
from orchestrator.experiment.yaml.dotted_paths import join

Settings = Mapping[str, Any]


class Group(Model):
    """Parameters selected by name, and the optimizer's arguments for them, beside these keys."""

    model_config = ConfigDict(extra="allow")

    match: Patterns
    """Names, as in `model.named_parameters()`: a pattern with * and ?, or several."""
    lr_scale: Annotated[float, Gt(0)] = 1.0
    """Factor of the learning rate."""
    layer_decay: Annotated[float, Gt(0), Le(1)] = 1.0
    """Layer-wise decay: the last layer has the full rate, each earlier one this fraction of the
    next layer's. The layer is the number at the pattern's first wildcard, or the next one after
    it."""

    @property
    def settings(self) -> Settings:
        """The optimizer's arguments for this group; a null means that of the optimizer."""
        return {key: value for key, value in (self.model_extra or {}).items() if value is not None}

    @property
    def has_scale(self) -> bool:
        """True if the group scales the optimizer's learning rate."""
        return bool(self.model_fields_set & {"lr_scale", "layer_decay"})

    def select(self, named: Mapping[str, nn.Parameter]) -> dict[nn.Parameter, float]:
        """Return the parameters of the group, each with the factor of its learning rate.

        Raises ValueError with near names if there are none, and for a name without a layer number.
        """
        names = match_names(self.match, named)
        scales = self._compute_scales(names)
        return {named[name]: scale for name, scale in zip(names, scales, strict=True)}

    def _compute_scales(self, names: Sequence[str]) -> list[float]:
        if self.layer_decay == 1:
            return [self.lr_scale] * len(names)
        patterns = list_patterns(self.match)
        layers = [_find_layer(name, patterns) for name in names]
        names_one_layer = any(_get_prefix(pattern)[-1:].isdigit() for pattern in patterns)
        if names_one_layer and len(set(layers)) == 1 < len(layers):
            raise ValueError(
                f"matches only layer {layers[0]}, so layer_decay has no effect; write the numbers of"
                f" its parts as a wildcard, such as {layers[0]}.*"
            )
        return [self.lr_scale * self.layer_decay ** (max(layers) - layer) for layer in layers]


class NoDecay:
    """The entry `no_decay`: norms and biases, without weight decay."""

    settings: Settings = MappingProxyType({"weight_decay": 0.0})
    has_scale = False

    def select(self, named: Mapping[str, nn.Parameter]) -> dict[nn.Parameter, float]:
        """Return norms and biases, each with factor 1; raises ValueError if there are none."""
        selected = {
            parameter: 1.0
            for name, parameter in named.items()
            if parameter.ndim < 2 or name.endswith("bias")
        }
        if not selected:
            raise ValueError("the model has neither norms nor biases")
        return selected


GroupEntry = Group | NoDecay


def _check_word(word: str) -> str:
    if word != "no_decay":
        raise PydanticKnownError("literal_error", {"expected": "'no_decay' or a mapping"})
    return word


_Word = Annotated[Literal["no_decay"], BeforeValidator(_check_word)]
_Entry = Annotated[
    Annotated[_Word, Tag("word")] | Annotated[Group, Tag("group")],
    Discriminator(lambda value: "word" if isinstance(value, str) else "group"),
]


class Groups(Model):
    """The key beside an optimizer's arguments."""

    groups: Annotated[list[_Entry], Field(min_length=1)]
    """Groups with other arguments, `lr_scale` or `layer_decay`; `no_decay`: norms and biases
    without weight decay."""


def read_groups(entries: Any, path: str) -> list[GroupEntry]:
    """Return the groups of the optimizer at `path`, none for null.

    Raises ConfigError.
    """
    if entries is None:
        return []
    checked = validate(Groups, {"groups": entries}, path)
    groups = [entry if isinstance(entry, Group) else NoDecay() for entry in checked.groups]
    problems: list[Problem] = []
    for index, group in enumerate(groups):
        problems += _check_effect(group, join(path, f"groups.{index}"))
    raise_problems(problems)
    return groups


def _check_effect(group: GroupEntry, path: str) -> Iterator[Problem]:
    """Yield a problem if a group sets nothing, or sets the learning rate twice."""
    if not group.settings and not group.has_scale:
        yield Problem(
            path,
            "has no effect: it sets nothing for these parameters",
            suggestion="write lr_scale, or an argument of the optimizer such as weight_decay",
        )
    if "lr" in group.settings and group.has_scale:
        yield Problem(join(path, "lr"), "cannot be combined with lr_scale or layer_decay")


class _Membership(NamedTuple):
    """A parameter's place in an entry of `groups`."""

    entry: int
    scale: float
    """Factor of the parameter's learning rate."""


def make_parameter_groups(
    named: Mapping[str, nn.Parameter],
    groups: Sequence[GroupEntry],
    rate: float | None,
    path: str,
) -> list[dict[str, Any]]:
    """Return torch's parameter groups: first without an entry, then by the same entries, in order.

    Later entries override earlier ones. Raises ConfigError with near names for a pattern that
    matches nothing.

    Args:
        named: Parameters by name; one with two names gets the settings of both.
        groups: The entries of `groups`.
        rate: The optimizer's learning rate, which entries may scale; None if it has none.
        path: Dotted path of the optimizer.
    """
    if rate is None and any(group.has_scale for group in groups):
        raise ConfigError.at(join(path, "lr"), "is missing, and groups scale it", "write lr")

    # Parameters with equal entries, and an equal scale in each, form one of torch's groups.
    memberships: dict[nn.Parameter, tuple[_Membership, ...]] = dict.fromkeys(named.values(), ())
    for index, group in enumerate(groups):
        try:
            scales = group.select(named)
        except ValueError as error:
            raise ConfigError.at(join(path, f"groups.{index}.match"), str(error)) from None
        for parameter, scale in scales.items():
            memberships[parameter] += (_Membership(index, scale),)

    together: defaultdict[tuple[_Membership, ...], list[nn.Parameter]] = defaultdict(list)
    for parameter in sorted(memberships, key=memberships.__getitem__):
        together[memberships[parameter]].append(parameter)
    return [
        {"params": parameters, **_merge_settings(entries, groups, rate)}
        for entries, parameters in together.items()
    ]


def _merge_settings(
    entries: Iterable[_Membership], groups: Sequence[GroupEntry], rate: float | None
) -> dict[str, Any]:
    """Return the settings of the parameters that are in these entries."""
    settings: dict[str, Any] = {}
    for entry, scale in entries:
        settings |= groups[entry].settings
        if groups[entry].has_scale:
            assert rate is not None
            settings["lr"] = scale * rate
    return settings


def _get_prefix(pattern: str) -> str:
    """Return the part of a pattern before its first wildcard."""
    return "".join(takewhile(lambda letter: letter not in "*?[", pattern))


def _find_layer(name: str, patterns: Sequence[str]) -> int:
    """Return the number at the first wildcard of the pattern that matches a name, or the next
    number after it."""
    pattern = next(pattern for pattern in patterns if compile_pattern(pattern).fullmatch(name))
    prefix = _get_prefix(pattern)
    for number in re.finditer(r"\d+(?![^.])", name):
        # The wildcard in layer* is inside a part of the name.
        is_in_place = number.start() <= len(prefix) or name[number.start() - 1] == "."
        if is_in_place and number.end() >= len(prefix):
            return int(number[0])
    raise ValueError(
        f"matches '{name}', which has no layer number, as in blocks.3.weight, for layer_decay"
    )
