"""Blocks: sums and extremes of neighboring rows, so that a report or a diagnosis reads a long run
only once.

A block is a few consecutive iterations of one rank; in a short run, a single row. For each
measurement X it has the columns `X high`, `X total`, `X known` (the number of finite values) and,
except for spans, `X low`. It also has `rank`, `phase`, `rows`, its `first` iteration, its last
`iteration`, and the `step` by then.
"""

from collections.abc import Collection, Sequence

from orchestrator.units import SPANS

MAX_ROWS_AS_BLOCKS = 2**21
"""Largest number of rows of a run whose blocks are single rows."""
MAX_STORED_NUMBERS = 2**23
"""Approximate number of values in the blocks of a longer run."""
OWN_WORK = "(own work)"
"""Seconds of a rank's own work, of which blocks only have the maximum. No hook's column has such a
name.

It is the sum of all spans except the one that has the wait for others; without spans, the whole
iteration.
"""
_WAIT = "all_reduce_wait_s"
_AGGREGATES = (("max", "high"), ("sum", "total"), ("count", "known"), ("min", "low"))
"""SQL aggregates of a measurement, and the names of the columns: the first for own work, three for
spans."""


def quote(column: str) -> str:
    """Quote a column's name for SQL."""
    return '"{}"'.format(column.replace('"', '""'))


def merge_blocks(column: str, part: str) -> str:
    """Return the SQL aggregate that merges a measurement's `low`, `high`, `total` or `known` of
    several blocks."""
    function = {"low": "min", "high": "max"}.get(part, "sum")
    return f"{function}({quote(f'{column} {part}')})"


def make_blocks_statement(columns: Collection[str], numbers: Sequence[str], rows: int) -> str:
    """Return the SQL statement that creates the table `blocks` from `rows` rows, as a view if each
    row is a block."""
    measured = {name: quote(name) for name in numbers}
    if "step_s" in numbers:
        wait = _WAIT if _WAIT in columns else "backward_s"
        spans = [f"coalesce({name}, 0)" for name in SPANS if name in columns and name != wait]
        measured[OWN_WORK] = f"({' + '.join(spans) or 'step_s'})"
    keys = {
        name: name if name in columns else default
        for name, default in (
            ("rank", "0"),
            ("phase", "'train'"),
            ("iteration", "0"),
            ("step", "0"),
        )
    }
    finite = [
        f"case when isfinite({value}) then {value} end as {quote(name)}"
        for name, value in measured.items()
    ]
    inputs = ", ".join([*(f"{value} as {name}" for name, value in keys.items()), *finite])
    rows_per_block = (
        1 if rows <= MAX_ROWS_AS_BLOCKS else -(-4 * rows * len(measured) // MAX_STORED_NUMBERS)
    )
    kind, group = (
        ("view", "")
        if rows_per_block == 1
        else ("table", f" group by rank, phase, iteration // {rows_per_block}")
    )

    def aggregate(function: str, value: str) -> str:
        if group:
            return f"{function}({value})"
        return f"({value} is not null)::int" if function == "count" else value

    outputs = [
        "rank, phase",
        f"{aggregate('min', 'iteration')} as first, {aggregate('max', 'iteration')} as iteration",
        f"{aggregate('max', 'step')} as step",
        f"{'count(*)' if group else '1'} as rows",
        *(
            f"{aggregate(function, quote(name))} as {quote(f'{name} {suffix}')}"
            for name in measured
            for function, suffix in _AGGREGATES[
                : 1 if name == OWN_WORK else 3 if name in SPANS else 4
            ]
        ),
    ]
    return f"create temporary {kind} blocks as select {', '.join(outputs)} from (select {inputs} from rows){group}"
