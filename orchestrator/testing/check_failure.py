"""A failed check of a hook, and the error that tells its author."""


class HookCheckFailed(AssertionError):
    """A hook breaks a promise of hooks."""


class CheckFailure(BaseException):
    """A failed check. No part of the loop mistakes it for an error of the hook; ranks send it to
    each other."""

    def __init__(self, check: str, what: str, to_do: str) -> None:
        super().__init__(check, what, to_do)
        self.check = check
        self.what = what
        self.to_do = to_do

    def text(self, hook: str, fields: str = "", loop: str = "") -> str:
        """Format the failure for the author of the hook."""
        lines = {"fields": fields, "loop": loop, "seen": self.what, "to do": self.to_do}
        details = "\n".join(f"  {label + ':':8}{line}" for label, line in lines.items() if line)
        return f"{hook} fails the check '{self.check}'\n{details}"
