"""Conditions on rows: a line of text becomes Arrow expressions. Nothing in it is evaluated as Python."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import and_, eq, ge, gt, le, lt, ne, or_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from orchestrator.errors import UsageError, did_you_mean, shortened

_SIGNS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: eq,
    ast.NotEq: ne,
    ast.Lt: lt,
    ast.LtE: le,
    ast.Gt: gt,
    ast.GtE: ge,
    ast.Is: eq,
    ast.IsNot: ne,
}


_LONGEST = 50_000
"""Characters of a condition."""
_MOST = 5_000
"""Comparisons of a condition, each value of a list one: Arrow goes down a chain of them, and twice as many overflow its
stack."""


@dataclass(frozen=True)
class Condition:
    """One part of a condition; rows meet the whole where they meet every part."""

    columns: frozenset[str]
    """The columns it looks at."""
    expression: Any
    """What it asks of them, as a pyarrow.compute.Expression."""


@dataclass(frozen=True)
class _Side:
    """One side of a comparison."""

    expression: Any
    kind: str
    """text, number, truth, or nothing: `None`, and a column that is empty everywhere."""
    name: str
    """How the text names it."""
    is_column: bool = False


def parse_where(text: str, schema: pa.Schema) -> list[Condition]:
    """The parts, joined by `and`, of a condition such as `rank == 0 and phase == 'train' and epoch >= 3`.

    It is made of columns, numbers, text, True, False, None, the comparisons `== != < <= > >= in, not in`, `and`, `or`,
    `not` and parentheses; columns may be compared with each other. An empty cell meets no comparison but `== None`.
    Of an empty schema, where nothing is recorded yet, any column is taken. Raises UsageError that quotes what is wrong.
    """
    if len(text) > _LONGEST:
        raise UsageError(
            f"where: has {len(text):,} characters, and may have {_LONGEST:,}; filter the rest in pandas (`load_stats`)"
        )
    try:
        with warnings.catch_warnings(action="ignore"):  # of Python's, on text such as 1is
            body = ast.parse(text.strip(), mode="eval").body
        count = sum(_comparisons_in(node) for node in ast.walk(body))
        if count > _MOST:
            raise UsageError(
                f"where: makes {count:,} comparisons, and may make {_MOST:,}; filter the rest in pandas (`load_stats`)"
            )
        parts = body.values if isinstance(body, ast.BoolOp) and isinstance(body.op, ast.And) else [body]
        return [Condition(_columns(part), _Parser(text, schema).condition(part)) for part in parts]
    except (SyntaxError, ValueError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UsageError(
            f"where: cannot read {shortened(text, 200)!r}: {reason}. Write, say, rank == 0 and phase == 'train'"
        ) from None
    except (RecursionError, MemoryError):
        raise UsageError(f"where: {text[:60]!r}... is nested too deeply") from None


def joint_condition(conditions: Sequence[Condition]) -> Any:
    """The expression that all conditions hold; None where there are none."""
    return _tree(and_, [condition.expression for condition in conditions]) if conditions else None


def mentions(text: str, column: str) -> bool:
    """Whether a condition asks for a column."""
    return any(column in condition.columns for condition in parse_where(text, pa.schema([])))


def check_columns(names: Sequence[str], known: Sequence[str]) -> None:
    """Raises UsageError for the first name that is no column, with the nearest that is one."""
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known) or f"there are {', '.join(sorted(known))}"
            raise UsageError(f"there is no column '{shortened(name, 200)}': {hint}")


def _columns(node: ast.AST) -> frozenset[str]:
    return frozenset(inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name))


def _comparisons_in(node: ast.AST) -> int:
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return len(node.elts)
    return len(node.ops) if isinstance(node, ast.Compare) else 0


def _tree(join: Callable[[Any, Any], Any], expressions: Sequence[Any]) -> Any:
    """Expressions joined in a balanced tree, so that a long list makes no deep one."""
    if len(expressions) == 1:
        return expressions[0]
    half = len(expressions) // 2
    return join(_tree(join, expressions[:half]), _tree(join, expressions[half:]))


@dataclass(frozen=True)
class _Parser:
    text: str
    schema: pa.Schema

    def condition(self, node: ast.expr) -> Any:
        if isinstance(node, ast.BoolOp):
            join = and_ if isinstance(node.op, ast.And) else or_
            return _tree(join, [self.condition(value) for value in node.values])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return ~self.condition(node.operand)
        if isinstance(node, ast.Compare):
            return self._comparisons(node)
        if isinstance(node, ast.Name):
            side = self._column(node.id)
            if side.kind in ("truth", "nothing"):
                return side.expression.cast(pa.bool_())
            raise self._wrong(node, f"it holds {_HOLDS[side.kind]}; compare it with something")
        raise self._wrong(node, "is no comparison")

    def _comparisons(self, node: ast.Compare) -> Any:
        sides = [node.left, *node.comparators]
        pairs = zip(sides, node.ops, sides[1:], strict=False)
        return _tree(and_, [self._comparison(node, left, sign, right) for left, sign, right in pairs])

    def _comparison(self, node: ast.expr, left: ast.expr, sign: ast.cmpop, right: ast.expr) -> Any:
        one = self._side(left)
        if not isinstance(sign, ast.In | ast.NotIn):
            return self._compare(node, one, sign, self._side(right))
        if not isinstance(right, ast.List | ast.Tuple | ast.Set) or not right.elts:
            raise self._wrong(node, f"what comes after 'in' is a list, such as {one.name} in [0, 1]")
        found = _tree(or_, [self._compare(node, one, ast.Eq(), self._side(value)) for value in right.elts])
        return ~found if isinstance(sign, ast.NotIn) else found

    def _compare(self, node: ast.expr, one: _Side, sign: ast.cmpop, other: _Side) -> Any:
        if not one.is_column and not other.is_column:
            raise self._wrong(node, "names no column")
        if "None" in (one.name, other.name):
            return self._emptiness(node, one if one.is_column else other, sign)
        if one.kind != other.kind and "nothing" not in (one.kind, other.kind):
            column, value = (one, other) if one.is_column else (other, one)
            raise self._wrong(node, f"column '{column.name}' holds {_HOLDS[column.kind]}, not {_HOLDS[value.kind]}")
        left, right = one.expression, other.expression
        if one.kind == other.kind == "nothing":  # Arrow compares no two columns that are empty everywhere
            left, right = left.cast(pa.string()), right.cast(pa.string())
        return _SIGNS[type(sign)](left, right)

    def _emptiness(self, node: ast.expr, column: _Side, sign: ast.cmpop) -> Any:
        if isinstance(sign, ast.Eq | ast.Is):
            return column.expression.is_null()
        if isinstance(sign, ast.NotEq | ast.IsNot):
            return column.expression.is_valid()
        raise self._wrong(node, "None is compared by == and != only")

    def _side(self, node: ast.expr) -> _Side:
        if isinstance(node, ast.Name):
            return self._column(node.id)
        negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
        constant = node.operand if isinstance(node, ast.UnaryOp) and negative else node
        if not isinstance(constant, ast.Constant):
            raise self._wrong(node, "is neither a column nor a value")
        value: Any = constant.value
        kind = _KINDS.get(type(value))
        if kind is None or (negative and kind != "number"):
            raise self._wrong(node, "is neither a number nor text")
        value = -value if negative else value
        if isinstance(value, int) and abs(value) > 2**53:  # beyond which Arrow compares no whole number with a float
            raise self._wrong(node, "is larger than any number here")
        return _Side(pc.scalar(value), kind, ast.unparse(node))

    def _column(self, name: str) -> _Side:
        if not self.schema.names:
            return _Side(pc.field(name), "nothing", name, is_column=True)
        check_columns([name], self.schema.names)
        return _Side(pc.field(name), _kind(self.schema.field(name).type), name, is_column=True)

    def _wrong(self, node: ast.AST, reason: str) -> UsageError:
        quoted = ast.get_source_segment(self.text.strip(), node) or self.text
        return UsageError(f"where: in {shortened(quoted, 200)!r}: {reason}")


_KINDS: dict[type, str] = {bool: "truth", int: "number", float: "number", str: "text", type(None): "nothing"}
_HOLDS = {"text": "text", "number": "numbers", "truth": "True and False"}


def _kind(kind: pa.DataType) -> str:
    if pa.types.is_null(kind):
        return "nothing"
    if pa.types.is_boolean(kind):
        return "truth"
    return "number" if pa.types.is_integer(kind) or pa.types.is_floating(kind) else "text"
