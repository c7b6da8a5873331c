"""Blocks: sums and extremes of neighbouring rows, so that all that is asked of these reads a long run once.

A block is some iterations of one rank, one after the other; of a run that is not long, a single row. For each
measurement X it has `X high`, `X total` and `X known`, and but for spans `X low`, of the values that are finite: the
functions below are what SQL makes of several blocks. Beside them stand `rank`, `phase`, `rows`, the `first` iteration
and the last, `iteration`, and by then the `step`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from orchestrator.stats.aggregate.spans import SPANS

ROWS = 2**21
"""Of a run that has no more, every row is a block of its own."""
NUMBERS = 2**23
"""So many numbers, about, are held of one that has more."""
OWN_WORK = "(own work)"
"""What a rank did by itself, in seconds: of this there is `high` alone. No hook names a column so, nor like the
next."""
STALL = '"(stall)"'
"""The longest span in which a rank waited for no other; it began in the iteration `stalled`."""
_WAIT = "all_reduce_wait_s"
_KEPT = (("max", "high"), ("sum", "total"), ("count", "known"), ("min", "low"))
"""How SQL makes what is kept of a measurement, and what that is called."""


def quoted(column: str) -> str:
    """A column's name in SQL."""
    return '"{}"'.format(column.replace('"', '""'))


def low(column: str) -> str:
    """The smallest value."""
    return f"min({quoted(f'{column} low')})"


def high(column: str) -> str:
    """The largest value."""
    return f"max({quoted(f'{column} high')})"


def total(column: str) -> str:
    """The sum; empty where there is no value."""
    return f"sum({quoted(f'{column} total')})"


def known(column: str) -> str:
    """How many values there are."""
    return f"sum({quoted(f'{column} known')})::bigint"


def own_work(columns: Collection[str]) -> str:
    """What a row's rank did by itself, in seconds and SQL: all spans but the one in which it waits for the others,
    which is the backward pass where no span is measured for waiting. The whole iteration where no span is recorded."""
    waiting = _WAIT if _WAIT in columns else "backward_s"
    spans = [f"coalesce({name}, 0)" for name in SPANS if name in columns and name != waiting]
    return f"({' + '.join(spans) or 'step_s'})"


def blocks_of(columns: Collection[str], numbers: Sequence[str], rows: int) -> str:
    """The statement that makes the blocks of so many `rows` with these columns, as a view where each is a row."""
    measured = {name: quoted(name) for name in numbers}
    if "step_s" in numbers:
        measured[OWN_WORK] = own_work(columns)
    spans = [name for name in SPANS if name in numbers and name not in ("backward_s", _WAIT)]
    stall = f"greatest({', '.join(spans)})" if spans else "null::double"
    place = {
        name: name if name in columns else default
        for name, default in (("rank", "0"), ("phase", "'train'"), ("iteration", "0"), ("step", "0"))
    }
    finite = [f"case when isfinite({value}) then {value} end as {quoted(name)}" for name, value in measured.items()]
    each = ", ".join([*(f"{value} as {name}" for name, value in place.items()), f"{stall} as {STALL}", *finite])
    together = 1 if rows <= ROWS else -(-4 * rows * len(measured) // NUMBERS)
    kind, group = ("view", "") if together == 1 else ("table", f" group by rank, phase, iteration // {together}")

    def of(how: str, value: str) -> str:
        if group:
            return f"{how}({value})"
        return f"({value} is not null)::int" if how == "count" else value

    shown = [
        "rank, phase",
        f"{of('min', 'iteration')} as first, {of('max', 'iteration')} as iteration, {of('max', 'step')} as step",
        f"{of('max', STALL)} as {STALL}, {f'arg_max(iteration, {STALL})' if group else 'iteration'} as stalled",
        f"{'count(*)' if group else '1'} as rows",
        *(
            f"{of(how, quoted(name))} as {quoted(f'{name} {what}')}"
            for name in measured
            for how, what in _kept_of(name)
        ),
    ]
    return f"create temporary {kind} blocks as select {', '.join(shown)} from (select {each} from rows){group}"


def _kept_of(name: str) -> Sequence[tuple[str, str]]:
    if name == OWN_WORK:
        return _KEPT[:1]
    return _KEPT[:3] if name in SPANS else _KEPT
