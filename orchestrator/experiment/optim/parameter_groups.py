"""Parameter groups: optimizer arguments for parameters that are selected by name."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Gt, Le
from pydantic import ConfigDict, Discriminator, Field, Tag
from torch import nn

from hooks.parameter_names import Patterns, list_patterns, matched
from orchestrator.errors import ConfigError, Problem
from orchestrator.experiment.fields.parameters import check
from orchestrator.experiment.fields.section import Model
from orchestrator.experiment.yaml.document import join

Settings = dict[str, Any]


class Group(Model):
    """Parameters selected by name, and the optimizer's arguments for them, beside these keys."""

    model_config = ConfigDict(extra="allow")

    match: Patterns
    """Names, as in `model.named_parameters()`: a pattern with * and ?, or several."""
    lr_scale: Annotated[float, Gt(0)] = 1.0
    """Factor of the learning rate."""
    layer_decay: Annotated[float, Gt(0), Le(1)] = 1.0
    """Layer-wise decay: the last layer has the full rate, each earlier one this fraction of the
    next layer's. The layer is the first number in a name after the pattern's first wildcard."""

    @property
    def settings(self) -> Settings:
        """The optimizer's arguments for this group; a null means that of the optimizer."""
        return {key: value for key, value in (self.model_extra or {}).items() if value is not None}

    @property
    def has_scale(self) -> bool:
        """True if the group scales the optimizer's learning rate."""
        return bool(self.model_fields_set & {"lr_scale", "layer_decay"})

    def compute_scales(self, names: Sequence[str]) -> list[float]:
        """Return the factor of each parameter's rate.

        Raises ValueError for a name without a layer number.
        """
        if self.layer_decay == 1:
            return [self.lr_scale] * len(names)
        layers = [_find_layer(name, list_patterns(self.match)) for name in names]
        return [self.lr_scale * self.layer_decay ** (max(layers) - layer) for layer in layers]


_Entry = Annotated[
    Annotated[Literal["no_decay"], Tag("word")] | Annotated[Group, Tag("group")],
    Discriminator(lambda value: "word" if isinstance(value, str) else "group"),
]


class Groups(Model):
    """The key beside an optimizer's arguments."""

    groups: Annotated[list[_Entry], Field(min_length=1)]
    """Groups with other arguments, `lr_scale` or `layer_decay`; `no_decay`: norms and biases
    without weight decay."""


def read_groups(entries: Any, path: str) -> list[Group | None]:
    """Return the groups of the optimizer at `path`, None for `no_decay`; may raise ConfigError."""
    checked = check(Groups, {"groups": entries}, path)
    groups = [entry if isinstance(entry, Group) else None for entry in checked.groups]
    problems = []
    for index, group in enumerate(groups):
        group_path = join(path, f"groups.{index}")
        if group and not group.settings and not group.has_scale:
            problems.append(
                Problem(
                    group_path,
                    "has no effect: it sets nothing for these parameters",
                    suggestion="write lr_scale, or an argument of the optimizer such as weight_decay",
                )
            )
        if group and "lr" in group.settings and group.has_scale:
            problems.append(
                Problem(join(group_path, "lr"), "cannot be combined with lr_scale or layer_decay")
            )
    if problems:
        raise ConfigError(problems)
    return groups


def group_settings(group: Group | None) -> Settings:
    return {"weight_decay": 0.0} if group is None else group.settings


class _Membership(NamedTuple):
    """A parameter's place in an entry of `groups`."""

    entry: int
    scale: float
    """Factor of the parameter's learning rate."""


def make_parameter_groups(
    named: Mapping[str, nn.Parameter],
    groups: Sequence[Group | None],
    cls: Callable[..., Any],
    arguments: Mapping[str, Any],
    path: str,
) -> list[dict[str, Any]]:
    """Return torch's parameter groups: first without an entry, then by the same entries, in order.

    Later entries override earlier ones. Raises ConfigError with near names for a pattern that
    matches nothing.
    """
    # A parameter with two names gets the settings of both.
    settings: dict[nn.Parameter, Settings] = {parameter: {} for parameter in named.values()}
    # Parameters with equal entries, and an equal scale in each, form one of torch's groups.
    entries: dict[nn.Parameter, tuple[_Membership, ...]] = dict.fromkeys(settings, ())
    for index, group in enumerate(groups):
        try:
            scales = _select(group, named)
        except ValueError as error:
            raise ConfigError.at(join(path, f"groups.{index}.match"), str(error)) from None
        for parameter, scale in scales.items():
            settings[parameter].update(group_settings(group))
            if group and group.has_scale:
                settings[parameter]["lr"] = scale * _get_rate(cls, arguments, path)
            entries[parameter] += (_Membership(index, scale),)

    merged: dict[tuple[_Membership, ...], dict[str, Any]] = {}
    for parameter in sorted(settings, key=entries.__getitem__):
        together = merged.setdefault(entries[parameter], {"params": [], **settings[parameter]})
        together["params"].append(parameter)
    return list(merged.values())


def _select(group: Group | None, named: Mapping[str, nn.Parameter]) -> dict[nn.Parameter, float]:
    """Return the parameters of a group, each with the factor of its rate.

    Raises ValueError if there are none.
    """
    if group is None:
        return dict.fromkeys((named[name] for name in _find_norms_and_biases(named)), 1.0)
    names = matched(group.match, named)
    scales = group.compute_scales(names)
    return {named[name]: scale for name, scale in zip(names, scales, strict=True)}


def _find_norms_and_biases(named: Mapping[str, nn.Parameter]) -> list[str]:
    names = [
        name for name, parameter in named.items() if parameter.ndim < 2 or name.endswith("bias")
    ]
    if not names:
        raise ValueError("the model has neither norms nor biases")
    return names


def _find_layer(name: str, patterns: Sequence[str]) -> int:
    for pattern in patterns:
        fixed = "".join(takewhile(lambda letter: letter not in "*?[", pattern))
        number = next(
            (part for part in name.removeprefix(fixed).split(".") if part.isdigit()), None
        )
        if name.startswith(fixed) and number is not None:
            return int(number)
    raise ValueError(
        f"matches '{name}', which has no layer number, as in blocks.3.weight, for layer_decay"
    )


def _get_rate(cls: Callable[..., Any], arguments: Mapping[str, Any], path: str) -> float:
    argument = inspect.signature(cls).parameters.get("lr")
    rate = arguments.get("lr", argument.default if argument else None)
    if isinstance(rate, int | float):
        return float(rate)
    raise ConfigError.at(join(path, "lr"), "is missing, and groups scale it", "write lr")
