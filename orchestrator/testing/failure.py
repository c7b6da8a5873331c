"""What a check of a hook says where it fails."""

from __future__ import annotations

from dataclasses import dataclass


class HookCheckFailed(AssertionError):
    """A hook does not keep what hooks promise: which check, with which fields, in which loop, what differed and what to
    do."""


@dataclass(frozen=True)
class Failure:
    """One check that failed; travels between processes."""

    check: str
    what: str
    """What was seen, with its place and values."""
    to_do: str

    def text(self, hook: str, fields: str, loop: str) -> str:
        """As it is told to whoever wrote the hook."""
        lines = {"fields": fields, "loop": loop, "seen": self.what, "to do": self.to_do}
        told = "\n".join(f"  {label + ':':8}{line}" for label, line in lines.items() if line)
        return f"{hook} fails the check '{self.check}'\n{told}"


class CheckStopped(BaseException):
    """Ends a loop in which a check failed; no part of the loop takes it for an error of the hook's."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.what)
        self.failure = failure
