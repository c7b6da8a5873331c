"""Intervals: `1`, `2 epochs`, `100 steps`, `50 iterations`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler

    from hooks.state import State

Unit = Literal["iterations", "steps", "epochs"]
_EXAMPLES: dict[Unit, str] = {"iterations": "'50 iterations'", "steps": "'100 steps'", "epochs": "'2 epochs'"}
_Handler = TypeVar("_Handler", bound=Callable[..., None])


@dataclass(frozen=True)
class Interval:
    """Every `count` epochs, optimizer steps or iterations, counted from `begin`; a count of 0 means never."""

    count: int
    unit: Unit = "epochs"

    @classmethod
    def parse(cls, value: Interval | int | str) -> Interval:
        """Read `1`, `"2 epochs"` or `"100 steps"`; raise ValueError for anything else, iterations among it: with
        gradient accumulation they are not steps."""
        return EPOCHS_OR_STEPS.parse(value)

    def due(self, state: State, begin: int = 0) -> bool:
        """Return whether the epoch, step or iteration just completed is one of this interval's.

        Ask in `on_step` for steps and iterations and in `on_phase_end` of `train` for epochs; all may ask in either
        event, as an epoch is only due where one was completed, and a step only in the iteration that made it. With
        `begin` = b the first hit is at b (or at `count` when b is 0), then every `count`: begin 5, count 2 gives 5, 7,
        9.
        """
        if self.count == 0:
            return False
        done = self._done(state)
        fresh = {"epochs": state.epoch_completed, "steps": state.stepped}.get(self.unit, True)
        return fresh and done > 0 and done >= begin and (done - begin) % self.count == 0

    def reached(self, state: State) -> bool:
        """Return whether as many are completed."""
        return self._done(state) >= self.count

    def _done(self, state: State) -> int:
        return {"epochs": state.epoch, "steps": state.step, "iterations": state.iteration}[self.unit]

    def __str__(self) -> str:
        return f"{self.count} {self.unit if self.count != 1 else self.unit[:-1]}"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return EPOCHS_OR_STEPS.__get_pydantic_core_schema__(source, handler)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return EPOCHS_OR_STEPS.__get_pydantic_json_schema__(schema, handler)


@dataclass(frozen=True)
class Units:
    """The units that an interval may have, of which a bare number has the first, and the bounds of its count."""

    names: tuple[Unit, ...]
    ge: int = 0
    le: int | None = None

    def parse(self, value: Interval | int | str) -> Interval:
        """Read `20` or `"20 steps"`; raise ValueError for anything else."""
        interval = value if isinstance(value, Interval) else self._read(value)
        if interval is None or (interval.count and interval.unit not in self.names):
            bare = f"a number of {self.names[0]} such as 1"
            written = str(value) if isinstance(value, Interval) else value
            raise ValueError(f"{written!r:.80} is no interval; write {bare}, or {self._examples()}")
        if interval.count < self.ge:
            raise ValueError(f"must be at least {Interval(self.ge, self.names[0])}, got {interval}")
        if self.le is not None and interval.count > self.le:
            raise ValueError(f"must be at most {Interval(self.le, interval.unit)}, got {interval}")
        return interval

    def _read(self, value: Any) -> Interval | None:
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return Interval(value, self.names[0])
        match = re.match(self._pattern(), value) if isinstance(value, str) else None
        unit = next((name for name in self.names if match and (match[2] or "").startswith(name[:-1])), self.names[0])
        return Interval(int(match[1]), unit) if match else None

    def _examples(self) -> str:
        return ", or ".join(_EXAMPLES[name] for name in self.names)

    def _pattern(self) -> str:
        return rf"^\s*(\d{{1,18}})\s*({'|'.join(f'{name}?' for name in self.names)})?\s*$"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(
            self.parse, serialization=core_schema.plain_serializer_function_ser_schema(str)
        )

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        most = {} if self.le is None else {"maximum": self.le}
        never = "" if self.ge else "; 0 is never"
        return {
            "anyOf": [{"type": "integer", "minimum": self.ge, **most}, {"type": "string", "pattern": self._pattern()}],
            "description": f"How often: a number of {self.names[0]}, or {self._examples()}{never}.",
        }


EPOCHS_OR_STEPS = Units(("epochs", "steps"))
Iterations = Annotated[Interval, Units(("iterations", "steps"), ge=1)]
"""An interval that `paced_by` takes: a bare number is of iterations."""
Steps = Annotated[Interval, Units(("steps",), ge=1)]
"""An interval in optimizer steps."""
STEPS_OR_NEVER = Units(("steps",))
StepsOrNever = Annotated[Interval, STEPS_OR_NEVER]
"""An interval in optimizer steps; 0 is never."""


def paced_by(field: str) -> Callable[[_Handler], _Handler]:
    """Make an event within an iteration reach its hook only at the interval in one of the hook's fields.

    The field holds an Interval in iterations or steps, or a number of iterations; one in epochs is never due within an
    iteration. All count over the whole run, iterations of train, val and test each apart. An idle hook is not called,
    and so costs nothing. The iteration or step that is asked about is the one under way, whether the counters have
    counted it yet or not: with 10, the handlers of `on_forward` and of `on_step` are called in the same iterations, the
    10th, the 20th ...
    """

    def mark(handler: _Handler) -> _Handler:
        vars(handler)["paced_by"] = field
        return handler

    return mark


def under_way(pace: Interval | int, state: State, *, counted: bool) -> bool:
    """Return whether the present iteration is one of an interval; `counted` says if the counters include it already."""
    count, unit = (pace, "iterations") if isinstance(pace, int) else (pace.count, pace.unit)
    if unit == "epochs" or count == 0:
        return False
    if unit == "iterations":
        return (state.iterations_before + state.phase_iteration + (not counted)) % count == 0
    if state.phase != "train":
        return False
    if counted:
        return state.stepped and state.step % count == 0
    return (state.step + 1) % count == 0
