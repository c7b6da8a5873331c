"""Blocks: sums and extremes of neighbouring rows, so that a report or a diagnosis reads a long run only once.

A block is a few consecutive iterations of one rank; in a short run, a single row. For each measurement X it has the
columns `X high`, `X total`, `X known` (the number of finite values) and, except for spans, `X low`. It also has `rank`,
`phase`, `rows`, its `first` iteration, its last `iteration`, and the `step` by then.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from orchestrator.stats.aggregate.spans import SPANS

ROWS = 2**21
"""Maximum number of rows of a run in which each row is a block."""
NUMBERS = 2**23
"""Numbers, about, that the blocks of a longer run hold."""
OWN_WORK = "(own work)"
"""Seconds of a rank's own work, of which blocks only have `high`. No hook's column has such a name."""
_WAIT = "all_reduce_wait_s"
_KEPT = (("max", "high"), ("sum", "total"), ("count", "known"), ("min", "low"))
"""SQL aggregates of a measurement, and the names of the columns."""


def quote(column: str) -> str:
    """Quote a column's name for SQL."""
    return '"{}"'.format(column.replace('"', '""'))


def low(column: str) -> str:
    return f"min({quote(f'{column} low')})"


def high(column: str) -> str:
    return f"max({quote(f'{column} high')})"


def total(column: str) -> str:
    return f"sum({quote(f'{column} total')})"


def known(column: str) -> str:
    return f"sum({quote(f'{column} known')})::bigint"


def own_work(columns: Collection[str]) -> str:
    """Return the SQL expression of a rank's own work: all spans but the wait, or but `backward_s` if that has the wait.

    Without recorded spans it is the whole iteration.
    """
    waiting = _WAIT if _WAIT in columns else "backward_s"
    spans = [f"coalesce({name}, 0)" for name in SPANS if name in columns and name != waiting]
    return f"({' + '.join(spans) or 'step_s'})"


def make_blocks_statement(columns: Collection[str], numbers: Sequence[str], rows: int) -> str:
    """Return the SQL statement that creates the table `blocks` from `rows` rows, as a view if each row is a block."""
    measured = {name: quote(name) for name in numbers}
    if "step_s" in numbers:
        measured[OWN_WORK] = own_work(columns)
    place = {
        name: name if name in columns else default
        for name, default in (("rank", "0"), ("phase", "'train'"), ("iteration", "0"), ("step", "0"))
    }
    finite = [f"case when isfinite({value}) then {value} end as {quote(name)}" for name, value in measured.items()]
    each = ", ".join([*(f"{value} as {name}" for name, value in place.items()), *finite])
    together = 1 if rows <= ROWS else -(-4 * rows * len(measured) // NUMBERS)
    kind, group = ("view", "") if together == 1 else ("table", f" group by rank, phase, iteration // {together}")

    def of(how: str, value: str) -> str:
        if group:
            return f"{how}({value})"
        return f"({value} is not null)::int" if how == "count" else value

    shown = [
        "rank, phase",
        f"{of('min', 'iteration')} as first, {of('max', 'iteration')} as iteration, {of('max', 'step')} as step",
        f"{'count(*)' if group else '1'} as rows",
        *(
            f"{of(how, quote(name))} as {quote(f'{name} {what}')}"
            for name in measured
            for how, what in _stored_blocks(name)
        ),
    ]
    return f"create temporary {kind} blocks as select {', '.join(shown)} from (select {each} from rows){group}"


def _stored_blocks(name: str) -> Sequence[tuple[str, str]]:
    if name == OWN_WORK:
        return _KEPT[:1]
    return _KEPT[:3] if name in SPANS else _KEPT
