"""Conditions in SQL and names of columns, as users write them, and errors about them."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from orchestrator.errors import UsageError, shorten
from orchestrator.nearest_names import did_you_mean
from orchestrator.tables.database import get_internal_database

MAX_CONDITION_LENGTH = 50_000
"""Maximum number of characters in a condition."""


def check_condition(where: str) -> None:
    """Raise UsageError unless `where` is a single SQL condition."""
    if not isinstance(where, str):
        raise UsageError(f"where: must be text with a condition in SQL, got {where!r}")
    if not where.strip():
        raise UsageError("where: must not be empty; write an SQL condition, such as rank = 0")
    if len(where) > MAX_CONDITION_LENGTH:
        raise UsageError(
            f"where: must have at most {MAX_CONDITION_LENGTH:,} characters, got {len(where):,}"
        )
    with explain_errors(where, is_checking=True):
        # Parse it bare and in parentheses, which rejects an unbalanced `)`.
        for text in (where, f"({where}\n)"):
            if len(get_internal_database().extract_statements(f"select 1 where {text}")) != 1:
                raise UsageError(
                    f"where: {shorten(where, 200)!r} contains a semicolon; write a single condition"
                )


@contextmanager
def explain_errors(
    where: str | None, columns: Sequence[str] = (), *, is_checking: bool = False
) -> Iterator[None]:
    """Turn DuckDB's errors about a condition into UsageErrors that quote it, and those of a lack of
    room too."""
    import duckdb

    try:
        yield
    except duckdb.InterruptException:
        raise
    except duckdb.Error as error:
        if isinstance(error, duckdb.OperationalError):
            raise make_lack_of_room_error(error, "rows") from None
        if where is None:
            raise
        reason = _get_reason(error)
        if not is_checking:
            raise UsageError(f"where: the condition failed: {shorten(reason, 300)}") from None
        unknown = re.match(r'Referenced column "(.*)" not found', reason)
        if unknown:
            advice = advise_quotes(unknown[1], where)
            if columns and not advice:
                check_columns([unknown[1]], columns)
            reason += advice
        raise UsageError(
            f"where: {shorten(reason.rstrip('!'), 300)}; write an SQL condition, such as"
            " rank = 0 and phase = 'train'"
        ) from None


def make_lack_of_room_error(error: Exception, table: str) -> UsageError:
    """Return the error of a query of a table for which memory or disk is used up."""
    return UsageError(f"the {table} cannot be queried here: {shorten(_get_reason(error), 300)}")


def _get_reason(error: Exception) -> str:
    """Return the first line of one of DuckDB's errors, without its kind."""
    return str(error).splitlines()[0].partition(": ")[2]


def advise_quotes(name: str, where: str) -> str:
    """Return what to do if an unknown column is meant as text; empty if it is not."""
    if f'"{name}"' in where:
        return " Put text in single quotes"
    if re.search(rf"=\s*{re.escape(name)}\b", where):
        return f" Quote text: '{name}'"
    return ""


def uses_column(where: str, column: str) -> bool:
    """Return whether a condition uses a column. Raises UsageError if the condition is invalid."""
    check_condition(where)
    without_text = re.sub("'[^']*'", "", where)
    match = re.search(rf"\b{re.escape(column)}\b", without_text, re.IGNORECASE)
    return match is not None


def restrict_to_training(where: str | None) -> str:
    """Restrict a condition that does not mention the phase to rows of `train`."""
    if where is None:
        return "phase = 'train'"
    return where if uses_column(where, "phase") else f"phase = 'train' and ({where}\n)"


def check_columns(names: Sequence[str], known: Sequence[str]) -> None:
    """Raise UsageError for the first unknown column, and suggest the nearest name."""
    if isinstance(names, str):
        raise UsageError(f"columns must be a list of names, such as ['{shorten(names, 200)}']")
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known) or f"available: {', '.join(sorted(known))}"
            raise UsageError(f"there is no column '{shorten(name, 200)}'; {hint}")
