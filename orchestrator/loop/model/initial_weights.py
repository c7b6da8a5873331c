"""Initial weights of the model: matching them by name and shape, and loading them. Worker process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from hooks.parameter_names import listed
from orchestrator.config.sections.initial_weights import Init
from orchestrator.errors import ConfigError, Problem
from orchestrator.loop.model.strategy import sharded_model


@dataclass(frozen=True)
class Fit:
    """The match between source tensors and the model's, by the model's names."""

    taken: dict[str, Tensor]
    missing: list[str]
    """Tensors of the model that the source lacks."""
    left_over: list[str]
    """Tensors of the source that the model lacks."""
    misshapen: list[str]
    """Names with both shapes."""

    @classmethod
    def of(cls, init: Init, come: Mapping[str, Any], model: Mapping[str, Any]) -> Fit:
        """Raises ConfigError for patterns that match nothing."""
        called = init.renamed([name for name, value in come.items() if isinstance(value, Tensor)])
        own = {name: value for name, value in model.items() if isinstance(value, Tensor)}
        init.check_excluded(dict.fromkeys([*own, *come, *called]))
        wanted = init.select(own)
        if not wanted:
            raise ConfigError(
                [Problem("init.except", f"leaves nothing of what is looked at, got {', '.join(init.excluded)}")]
            )
        common = [name for name in wanted if name in called]
        fitting = [name for name in common if come[called[name]].shape == own[name].shape]
        return cls(
            {name: come[called[name]] for name in fitting},
            [name for name in wanted if name not in called],
            [name for name in called if name not in own],
            [
                f"{name} ({_shape(come[called[name]])}, here {_shape(own[name])})"
                for name in common
                if name not in fitting
            ],
        )

    def lines(self) -> list[str]:
        """Return lines for the log."""
        rest = (("missing", self.missing), ("left over", self.left_over), ("of another shape", self.misshapen))
        return [f"{len(names)} {what}: {listed(names)}" for what, names in rest if names]


def load(module: nn.Module, init: Init, come: Mapping[str, Any], origin: object) -> list[str]:
    """Load the tensors that match into the module, which may be sharded; returns lines for the log.

    Raises ConfigError if nothing matches, and with `strict` if anything does not.
    """
    present = module.state_dict()
    fit = Fit.of(init, come, present)
    told = fit.lines()
    if not fit.taken or (init.strict and told):
        path, why = (
            ("init.strict", "does not fit the model as a whole")
            if fit.taken
            else ("init.from", "fits the model in nothing")
        )
        raise ConfigError(
            [
                Problem(
                    path,
                    f"{origin} {why}: {'; '.join(told)}",
                    suggestion="init.rename says what tensors are called here",
                )
            ]
        )
    module.load_state_dict(sharded_model(fit.taken, module), strict=False)
    return [
        f"begins with {origin}: {len(fit.taken)} of the model's {len(present)} tensors taken",
        *(f"  {line}" for line in told),
    ]


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a number"
