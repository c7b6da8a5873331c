"""Optimizers whose step needs a closure that computes the loss again, as LBFGS and SAM do."""

import ast
import inspect
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from textwrap import dedent
from typing import Any

from torch.optim import Optimizer

from orchestrator.errors import ConfigError
from orchestrator.experiment.optim.optimizer import OPTIMIZERS, find_optimizer_class


def needs_closure(cls: type[Optimizer]) -> bool:
    """Return whether a step calls a closure that computes the loss again, as in LBFGS and SAM."""
    closure = inspect.signature(cls.step).parameters.get("closure")
    return closure is not None and (
        closure.default is inspect.Parameter.empty or needs_gradients_before(cls)
    )


def needs_gradients_before(cls: type[Optimizer]) -> bool:
    """Return whether a step needs gradients before it calls the closure at other weights.

    By the common recipe of SAM, the closure is optional, but a step fails without it.
    """
    closure = inspect.signature(cls.step).parameters.get("closure")
    is_optional = closure is not None and closure.default is None
    return is_optional and cls not in OPTIMIZERS.values() and _fails_without_closure(cls.step)


def find_closure_class(kind: str) -> type[Optimizer] | None:
    """Return the class of an optimizer's `type` if it is known and needs a closure."""
    with suppress(ConfigError):  # check_optimizer reports it
        cls = find_optimizer_class(kind, "optimizer")
        return cls if needs_closure(cls) else None
    return None


@cache
def _fails_without_closure(step: Callable[..., Any]) -> bool:
    """Return whether the code of a step refuses a missing closure, or calls it unasked.

    Only the code tells. The signature has a default, as that of every optimizer of torch, and a
    call without a closure would need an instance, whose weights it may change.
    """
    try:
        code = ast.parse(dedent(inspect.getsource(step)))
    except (OSError, TypeError, SyntaxError):
        return False

    asks = False
    refuses = False
    calls = False
    for node in ast.walk(code):
        match node:
            case ast.Assert(test=test):
                refuses |= _holds(test, missing=False)
            case ast.If(test=test, body=[*_, ast.Raise()]):
                refuses |= _holds(test, missing=True)
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
                asks |= _names_closure(test)
            case ast.Compare() | ast.BoolOp() | ast.Match():
                asks |= _names_closure(node)
            case ast.Try(body=body) | ast.With(body=body):
                asks |= any(map(_calls_closure, body)) and _catches(node)
            case ast.Call(func=ast.Name(id="closure")):
                calls = True

    return refuses or (calls and not asks)


def _names_closure(node: ast.AST) -> bool:
    return any(isinstance(part, ast.Name) and part.id == "closure" for part in ast.walk(node))


def _calls_closure(node: ast.AST) -> bool:
    calls = [part for part in ast.walk(node) if isinstance(part, ast.Call)]
    return any(isinstance(call.func, ast.Name) and call.func.id == "closure" for call in calls)


def _catches(node: ast.Try | ast.With) -> bool:
    """Return whether a block continues after an error in it, such as that of calling None."""
    if isinstance(node, ast.Try):
        return bool(node.handlers)
    return any("suppress(" in ast.unparse(item) for item in node.items)


def _holds(test: ast.expr, *, missing: bool) -> bool:
    """Return whether a condition holds where the closure is missing, or where there is one."""
    match test:
        case ast.Name(id="closure"):
            return not missing
        case ast.UnaryOp(op=ast.Not(), operand=ast.Name(id="closure")):
            return missing
        case ast.Compare(left=ast.Name(id="closure"), ops=[ast.Is() | ast.IsNot() as operator]):
            return isinstance(operator, ast.Is) == missing
    return False
