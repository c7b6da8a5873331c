"""Parameter groups: which parameters an optimizer treats otherwise, by patterns of their names. Checked in the driver,
made in each worker."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Annotated, Any, Literal

from annotated_types import Gt, Le
from pydantic import ConfigDict, Discriminator, Field, Tag
from torch import nn

from hooks.parameter_names import matched
from orchestrator.config.python.parameters import check
from orchestrator.config.sections.base import Model
from orchestrator.config.text.reader import join
from orchestrator.errors import ConfigError, Problem

NO_DECAY = "no_decay"

Patterns = str | Annotated[list[str], Field(min_length=1)]
"""A pattern of whole names of parameters, with * and ?, or several."""

Settings = dict[str, Any]


class Group(Model):
    """Parameters of some names, and what the optimizer is told otherwise for them: any of its arguments beside
    these."""

    model_config = ConfigDict(extra="allow")

    match: Patterns
    """Which names, as in `model.named_parameters()`: a pattern with * and ?, or several."""
    lr_scale: Annotated[float, Gt(0)] = 1.0
    """What the learning rate is multiplied by."""
    layer_decay: Annotated[float, Gt(0), Le(1)] = 1.0
    """Layer-wise rates: the last layer has the whole rate, each before it this part of the next one's. A layer is the
    first number in a name after the pattern's first wildcard."""

    @property
    def patterns(self) -> list[str]:
        return [self.match] if isinstance(self.match, str) else self.match

    @property
    def settings(self) -> Settings:
        """The optimizer's arguments that it says."""
        return dict(self.model_extra or {})

    @property
    def scales(self) -> bool:
        """Whether it has something to say of the optimizer's own rate."""
        return bool(self.model_fields_set & {"lr_scale", "layer_decay"})

    def scale(self, names: Sequence[str]) -> list[float]:
        """What the rate of each of its parameters is multiplied by; raises ValueError where one is of no layer."""
        if self.layer_decay == 1:
            return [self.lr_scale] * len(names)
        layers = [_layer(name, self.patterns) for name in names]
        return [self.lr_scale * self.layer_decay ** (max(layers) - layer) for layer in layers]


_Entry = Annotated[
    Annotated[Literal["no_decay"], Tag("word")] | Annotated[Group, Tag("group")],
    Discriminator(lambda value: "word" if isinstance(value, str) else "group"),
]


class Groups(Model):
    """What stands beside an optimizer's arguments."""

    groups: Annotated[list[_Entry], Field(min_length=1)]
    """What is otherwise for parameters of some names: the optimizer's arguments, `lr_scale`, `layer_decay`; or
    `no_decay`, norms and biases without weight decay."""


def read_groups(written: Any, path: str) -> list[Group | None]:
    """The groups as they are written for an optimizer at `path`, None for `no_decay`; raises ConfigError."""
    groups = [None if one == NO_DECAY else one for one in check(Groups, {"groups": written}, path).groups]
    problems = []
    for index, group in enumerate(groups):
        if not isinstance(group, Group):
            continue
        place = join(path, f"groups.{index}")
        if not group.settings and not group.scales:
            problems.append(
                Problem(
                    place,
                    "says nothing of what it matches",
                    suggestion="write lr_scale, or an argument of the optimizer such as weight_decay",
                )
            )
        if "lr" in group.settings and group.scales:
            problems.append(Problem(join(place, "lr"), "is said beside lr_scale or layer_decay; say one of them"))
    if problems:
        raise ConfigError(problems)
    return [group if isinstance(group, Group) else None for group in groups]


def settings_of(group: Group | None) -> Settings:
    """The optimizer's arguments that an entry says."""
    return {"weight_decay": 0.0} if group is None else group.settings


def scaled_rates(optimizer: Mapping[str, Any]) -> list[str]:
    """Where in an optimizer, as it is written, groups say something of its rate."""
    groups = optimizer.get("groups")
    entries = enumerate(groups) if isinstance(groups, list) else ()
    return [
        f"groups.{index}.{key}"
        for index, one in entries
        if isinstance(one, dict)
        for key in ("lr", "lr_scale", "layer_decay")
        if key in one
    ]


def parameter_groups(
    named: Mapping[str, nn.Parameter],
    groups: Sequence[Group | None],
    cls: Callable[..., Any],
    arguments: Mapping[str, Any],
    path: str,
) -> list[dict[str, Any]]:
    """What an optimizer is given: the parameters that no entry matches, then those that the same entries do, in their
    order.

    An entry goes over those before it. Raises ConfigError with near names for a pattern that matches nothing.
    """
    # Of a parameter with two names, what is said of either holds.
    settings: dict[nn.Parameter, Settings] = {parameter: {} for parameter in named.values()}
    kinds: dict[nn.Parameter, tuple[tuple[int, float], ...]] = dict.fromkeys(settings, ())
    problems = []
    for index, group in enumerate(groups):
        try:
            names = _matched(named, group)
            scales = group.scale(names) if group else [1.0] * len(names)
        except ValueError as error:
            problems.append(Problem(join(path, f"groups.{index}.match"), str(error)))
            continue
        for parameter, scale in {named[name]: scale for name, scale in zip(names, scales, strict=True)}.items():
            settings[parameter] |= settings_of(group) | (
                {"lr": scale * _rate(cls, arguments, path)} if group and group.scales else {}
            )
            kinds[parameter] += ((index, scale),)
    if problems:
        raise ConfigError(problems)
    made: dict[tuple[tuple[int, float], ...], dict[str, Any]] = {}
    for parameter in sorted(settings, key=lambda one: kinds[one]):
        made.setdefault(kinds[parameter], {"params": [], **settings[parameter]})["params"].append(parameter)
    return list(made.values())


def _matched(named: Mapping[str, nn.Parameter], group: Group | None) -> list[str]:
    if group is not None:
        return matched(group.patterns, named)
    found = [name for name, parameter in named.items() if parameter.ndim < 2 or name.endswith("bias")]
    if not found:
        raise ValueError("the model has neither norms nor biases")
    return found


def _layer(name: str, patterns: Sequence[str]) -> int:
    """The layer that a parameter is of."""
    for pattern in patterns:
        fixed = "".join(takewhile(lambda letter: letter not in "*?[", pattern))
        number = next((part for part in name.removeprefix(fixed).split(".") if part.isdigit()), None)
        if name.startswith(fixed) and number is not None:
            return int(number)
    raise ValueError(f"matches '{name}', which has no number of a layer, as in blocks.3.weight, for layer_decay")


def _rate(cls: Callable[..., Any], arguments: Mapping[str, Any], path: str) -> float:
    """The optimizer's own rate, said or its default; raises ConfigError."""
    argument = inspect.signature(cls).parameters.get("lr")
    rate = arguments.get("lr", argument.default if argument else None)
    if isinstance(rate, int | float):
        return float(rate)
    raise ConfigError([Problem(join(path, "lr"), "is not said, and groups scale it", suggestion="write lr")])
