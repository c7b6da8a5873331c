"""Intervals: `1`, `2 epochs`, `100 steps`, `50 iterations`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler

    from hooks.state import State

Unit = Literal["iterations", "steps", "epochs"]
_EXAMPLES: dict[Unit, str] = {
    "iterations": "'50 iterations'",
    "steps": "'100 steps'",
    "epochs": "'2 epochs'",
}
_Handler = TypeVar("_Handler", bound=Callable[..., None])


@dataclass(frozen=True)
class Interval:
    """Every `count` epochs, optimizer steps or iterations; a count of 0 means never."""

    count: int
    unit: Unit = "epochs"

    @classmethod
    def parse(cls, value: Interval | int | str) -> Interval:
        """Parse an interval as a file has it.

        Args:
            value: A number of epochs, or text such as `"2 epochs"` and `"100 steps"`.

        Returns:
            The interval.

        Raises:
            ValueError: If it is anything else, also an interval in iterations.
        """
        return EPOCHS_OR_STEPS.parse(value)

    def due(self, state: State, begin: int = 0) -> bool:
        """Return whether this interval ends with the epoch, step or iteration that was just completed.

        Call it in `on_step` for steps and iterations, and in `on_phase_end` of `train` for epochs.

        Args:
            state: The state of the run.
            begin: When it is first due; 0 means after `count`. Begin 5 and count 2 give 5, 7, 9.

        Returns:
            Whether it is due.
        """
        if self.count == 0:
            return False
        done, has_advanced = self._get_progress(state)
        return has_advanced and done >= max(begin, 1) and (done - begin) % self.count == 0

    def reached(self, state: State) -> bool:
        """Return whether the run has completed this many epochs, steps or iterations.

        Args:
            state: The state of the run.

        Returns:
            Whether it has.
        """
        done, _ = self._get_progress(state)
        return done >= self.count

    def _get_progress(self, state: State) -> tuple[int, bool]:
        """Return how many epochs, steps or iterations are complete, and whether one was just
        completed."""
        match self.unit:
            case "epochs":
                return state.epoch, state.epoch_completed
            case "steps":
                return state.step, state.stepped
            case "iterations":
                # An evaluation completes no iteration of training.
                return state.iteration, state.phase in ("", "train")

    def __str__(self) -> str:
        unit = self.unit.removesuffix("s") if self.count == 1 else self.unit
        return f"{self.count} {unit}"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return EPOCHS_OR_STEPS.__get_pydantic_core_schema__(source, handler)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: Any, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return EPOCHS_OR_STEPS.__get_pydantic_json_schema__(schema, handler)


@dataclass(frozen=True)
class Units:
    """Allowed units of an interval, and the bounds of its count. A bare number has the first
    unit."""

    names: tuple[Unit, ...]
    ge: int = 0
    le: int | None = None

    def parse(self, value: Interval | int | str) -> Interval:
        """Parse `20` or `"20 steps"`; raise ValueError for anything else."""
        interval = value if isinstance(value, Interval) else self._read(value)
        if interval is None or (interval.count and interval.unit not in self.names):
            written = str(value) if isinstance(value, Interval) else value
            allowed = f"a number of {' or '.join(self.names)}, such as {self._examples()}"
            raise ValueError(f"must be {allowed}, got {written!r:.80}")
        if interval.count < self.ge:
            raise ValueError(f"must be at least {Interval(self.ge, self.names[0])}, got {interval}")
        if self.le is not None and interval.count > self.le:
            raise ValueError(f"must be at most {Interval(self.le, interval.unit)}, got {interval}")
        return interval

    def _read(self, value: Any) -> Interval | None:
        if isinstance(value, str):
            return self._read_text(value)
        # A count of more digits would not read back from text.
        is_count = type(value) is int and 0 <= value < 10**18
        return Interval(value, self.names[0]) if is_count else None

    def _read_text(self, text: str) -> Interval | None:
        match = re.match(self._pattern(), text)
        if match is None:
            return None
        count, written = match.groups()
        unit = self.names[0]
        for name in self.names:
            if written in (name, name.removesuffix("s")):
                unit = name
        return Interval(int(count), unit)

    def _examples(self) -> str:
        return " or ".join(_EXAMPLES[name] for name in self.names)

    def _pattern(self) -> str:
        units = "|".join(f"{name}?" for name in self.names)
        return rf"^\s*(\d{{1,18}})\s*({units})?\s*$"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(
            self.parse, serialization=core_schema.plain_serializer_function_ser_schema(str)
        )

    def __get_pydantic_json_schema__(
        self, schema: Any, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        maximum = {} if self.le is None else {"maximum": self.le}
        never = "" if self.ge else "; 0 means never"
        return {
            "anyOf": [
                {"type": "integer", "minimum": self.ge, **maximum},
                {"type": "string", "pattern": self._pattern()},
            ],
            "description": f"How often: a number of {self.names[0]}, or {self._examples()}{never}.",
        }


EPOCHS_OR_STEPS = Units(("epochs", "steps"))
Iterations = Annotated[Interval, Units(("iterations", "steps"), ge=1)]
"""An interval for `at_interval`; a bare number counts iterations."""
Steps = Annotated[Interval, Units(("steps",), ge=1)]
StepsOrNever = Annotated[Interval, Units(("steps",))]


def count_iterations(steps: int, accumulate: int, length: int, completed: int) -> int:
    """Return the iterations of the next optimizer steps, in an epoch of which some iterations are
    `completed`.

    `length` is that of an epoch, whose last step may have fewer than `accumulate`; 0 if it is
    unknown.
    """
    if not length:
        return steps * accumulate
    # After the last step of an epoch, the next one begins.
    completed %= length
    steps_per_epoch = math.ceil(length / accumulate)
    epochs, rest = divmod(completed // accumulate + steps, steps_per_epoch)
    return max(0, epochs * length + min(rest * accumulate, length) - completed)


def at_interval(field: str) -> Callable[[_Handler], _Handler]:
    """Call the decorated event only at the interval in a field of the hook; for events of an
    iteration.

    Iterations and steps are counted over the whole run, separately for train, val and test. All
    events of an iteration are due together: with 10, both `on_forward` and `on_step` are called in
    the 10th iteration, the 20th and so on.

    Args:
        field: Name of the field. It holds an Interval in iterations or steps, or a number of
            iterations.

    Returns:
        The decorator.

    Example:
        ```python
        @dataclass
        class Norm(Hook):
            every: Steps = Interval(100, "steps")

            @at_interval("every")
            def on_gradients(self, state):
                state.record(norm=state.gradient_norm())
        ```
    """

    def mark(handler: _Handler) -> _Handler:
        vars(handler)["interval_field"] = field
        return handler

    return mark
