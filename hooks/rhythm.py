"""How often: `1`, `2 epochs`, `100 steps`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler

    from hooks.state import State

Unit = Literal["epochs", "steps"]
_WRITTEN = r"^\s*(\d{1,18})\s*(epochs?|steps?)?\s*$"
_PATTERN = re.compile(_WRITTEN)
_Handler = TypeVar("_Handler", bound=Callable[..., None])


@dataclass(frozen=True)
class Rhythm:
    """Every `count` epochs or optimizer steps, counted from `begin`; a count of 0 means never."""

    count: int
    unit: Unit = "epochs"

    @classmethod
    def parse(cls, value: Rhythm | int | str) -> Rhythm:
        """Reads `1`, `"2 epochs"` or `"100 steps"`; raises ValueError for anything else, iterations among it: with
        gradient accumulation they are not steps."""
        if isinstance(value, Rhythm):
            return value
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return cls(value)
        match = _PATTERN.match(value) if isinstance(value, str) else None
        if match is None:
            raise ValueError(
                f"{value!r:.80} is no rhythm; write a number of epochs such as 1, or '2 epochs', or '100 steps'"
            )
        return cls(int(match[1]), "epochs" if (match[2] or "e").startswith("e") else "steps")

    def due(self, state: State, begin: int = 0) -> bool:
        """Whether the epoch or step just completed is one of this rhythm's.

        Ask in `on_step` for steps and in `on_phase_end` of `train` for epochs; both may ask in either event, as an
        epoch is only due where one was completed, and a step only in the iteration that made it. With `begin` = b the
        first hit is at b (or at `count` when b is 0), then every `count`: begin 5, count 2 gives 5, 7, 9.
        """
        if self.count == 0:
            return False
        done = state.epoch if self.unit == "epochs" else state.step
        fresh = state.epoch_completed if self.unit == "epochs" else state.stepped
        return fresh and done > 0 and done >= begin and (done - begin) % self.count == 0

    def reached(self, state: State) -> bool:
        """Whether as many epochs or steps are completed."""
        return (state.step if self.unit == "steps" else state.epoch) >= self.count

    def require_steps(self, field: str) -> None:
        """Raises ValueError, with the hook's field, where this counts epochs: for what looks at single steps."""
        if self.unit == "epochs" and self.count:
            raise ValueError(f"it looks at single steps, and {field} is '{self}'; write steps, such as '100 steps'")

    def __str__(self) -> str:
        return f"{self.count} {self.unit if self.count != 1 else self.unit[:-1]}"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(
            cls.parse, serialization=core_schema.plain_serializer_function_ser_schema(str)
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {
            "anyOf": [
                {"type": "integer", "minimum": 0},
                {"type": "string", "pattern": _WRITTEN},
            ],
            "description": "How often: a number of epochs, '2 epochs' or '100 steps'; 0 is never.",
        }


def paced_by(field: str) -> Callable[[_Handler], _Handler]:
    """Makes an event within an iteration reach its hook only at the pace in one of the hook's fields.

    The field holds a number of iterations, or a Rhythm in steps (one in epochs is never due within an iteration). Both
    count over the whole run, iterations of train, val and test each apart. An idle hook is not called, and so costs
    nothing. The iteration or step that is asked about is the one under way, whether the counters have counted it yet or
    not: with 10, the handlers of `on_forward` and of `on_step` are called in the same iterations, the 10th, the 20th
    ...
    """

    def mark(handler: _Handler) -> _Handler:
        vars(handler)["paced_by"] = field
        return handler

    return mark


def under_way(pace: Rhythm | int, state: State, *, counted: bool) -> bool:
    """Whether the present iteration is one of a pace; `counted` says if the counters include it already."""
    if isinstance(pace, int):
        return (state.iterations_before + state.phase_iteration + (not counted)) % pace == 0
    if pace.unit == "epochs" or pace.count == 0 or state.phase != "train":
        return False
    if counted:
        return state.stepped and state.step % pace.count == 0
    return (state.step + 1) % pace.count == 0
