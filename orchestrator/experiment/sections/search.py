"""The searches of a sweep, which choose the values of its trials, and the checks of their keys."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import ConfigDict, Field

from orchestrator.errors import Problem, find_problems
from orchestrator.experiment.fields.class_models import make_signature_model
from orchestrator.experiment.fields.section import Model
from orchestrator.experiment.fields.validation import validate
from orchestrator.nearest_names import did_you_mean

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

EXTRA = "pip install 'hookyard[optuna]'"
_SAMPLER = "sweep.search.sampler"
_OF_GRIDS = ("GridSampler", "BruteForceSampler")
_PACKAGES = {"CmaEsSampler": "cmaes", "GPSampler": "scipy"}
"""Packages that a sampler of Optuna imports only when it needs them."""


class GridSearch(Model):
    """Every combination of the values. Take it for few values, and for tables that need them all."""

    type: Literal["grid"] = "grid"


class RandomSearch(Model):
    """Values at random. Take it for a first look at a space, and for many trials at a time, since
    no trial waits for what another one has reached."""

    type: Literal["random"] = "random"


class OptunaSearch(Model):
    """Values that a sampler of Optuna suggests, which learns from earlier trials. Take it for
    trials that are long, so that each of them should count. Needs the extra `optuna`.

        search: {type: optuna, sampler: GPSampler, n_startup_trials: 5}

    The keys beside `sampler` are the sampler's own parameters; its seed is `sweep.seed`.
    """

    # `from` is a Python keyword.
    model_config = ConfigDict(extra="allow", serialize_by_alias=True)

    type: Literal["optuna"] = "optuna"
    sampler: str = "TPESampler"
    """Name of a sampler of `optuna.samplers`. The default, TPE, suits most spaces. `GPSampler` is
    better for few trials over numbers, `CmaEsSampler` for many, and `NSGAIISampler` for several
    metrics."""

    earlier: Annotated[str | None, Field(alias="from", min_length=1)] = None
    """Another sweep, by its folder or URL, from whose trials the sampler learns before the first
    one: those that ended with the same metrics, and with values inside this space."""

    @property
    def parameters(self) -> dict[str, Any]:
        """The sampler's own parameters."""
        return dict(self.model_extra or {})

    def make_sampler(self, seed: int) -> BaseSampler:
        """Build the sampler. Its keys must have been checked, and Optuna be installed."""
        return list_samplers()[self.sampler](**self.parameters, seed=seed)

    def check(self, n_metrics: int) -> Iterator[Problem]:
        """Yield the problems of the sampler's name and parameters, and of the number of metrics."""
        if not self.model_fields_set - {"type"}:
            return
        if find_spec("optuna") is None:
            yield Problem(_SAMPLER, f"needs the package optuna: {EXTRA}")
            return
        if self.sampler in _OF_GRIDS:
            yield Problem("sweep.search", f"{self.sampler} is search: grid; write that")
            return
        samplers = list_samplers()
        if self.sampler not in samplers:
            message = f"'{self.sampler}' is not one of {', '.join(samplers)}"
            hint = did_you_mean(self.sampler, samplers)
            yield Problem(_SAMPLER, message, suggestion=hint)
            return
        yield from self._check_sampler(samplers[self.sampler], n_metrics)

    def _check_sampler(self, cls: Callable[..., BaseSampler], n_metrics: int) -> Iterator[Problem]:
        package = _PACKAGES.get(self.sampler)
        if package and find_spec(package) is None:
            yield Problem(_SAMPLER, f"{self.sampler} needs the package {package}: {EXTRA}")
        if n_metrics > 1 and self.sampler == "CmaEsSampler":
            yield Problem(
                _SAMPLER,
                "CmaEsSampler takes a single metric; use TPESampler or NSGAIISampler for several",
            )
        if "seed" in self.parameters:
            yield Problem("sweep.search.seed", "is sweep.seed; remove it here")
            return
        model = make_signature_model(cls, skip=0)
        yield from find_problems(validate, model, self.parameters, "sweep.search")


def list_samplers() -> dict[str, Callable[..., BaseSampler]]:
    """Return Optuna's samplers by name.

    Leaves out those that need another object, which YAML cannot describe, and those of a grid.
    """
    from optuna import samplers

    classes: dict[str, Callable[..., BaseSampler]] = {}
    for name in samplers.__all__:
        cls = getattr(samplers, name)
        if not name.endswith("Sampler") or inspect.isabstract(cls) or name in _OF_GRIDS:
            continue
        parameters = inspect.signature(cls).parameters.values()
        if all(parameter.default is not parameter.empty for parameter in parameters):
            classes[name] = cls
    return classes


SearchName = Literal["grid", "random", "optuna"]
TrialSearch = Annotated[GridSearch | RandomSearch | OptunaSearch, Field(discriminator="type")]
