"""The commands of `hookyard`: their forms, arguments and options, from their functions."""

import inspect
import re
from collections.abc import Callable, Iterator
from types import NoneType
from typing import Any, get_args, get_type_hints

from typer.models import ArgumentInfo, OptionInfo

from docs.site.fields import format_default
from orchestrator.cli import PANELS
from orchestrator.experiment.fields.type_names import format_type

_EXAMPLE = re.compile(r"^ *Example: (.+)$", re.MULTILINE)


def make_command_entries() -> str:
    """Return the entries of all subcommands, grouped as `hookyard --help` groups them."""
    return "\n".join(_make_entries())


def _make_entries() -> Iterator[str]:
    for title, verbs in PANELS.items():
        yield f"## {title}\n"
        for verb in verbs:
            yield make_command_entry(verb)


def make_command_entry(verb: Callable[..., None]) -> str:
    """Return the entry of a subcommand: its form, what it does, its arguments and options."""
    parameters = list(list_parameters(verb))
    arguments = [parameter for parameter in parameters if parameter.is_argument]
    options = [parameter for parameter in parameters if not parameter.is_argument]
    form = ["hookyard", verb.__name__, *(argument.form for argument in arguments)]
    if options:
        form.append("[OPTIONS]")
    parts = [
        f"### `{verb.__name__}` {{ #{verb.__name__} }}",
        f"```text\n{' '.join(form)}\n```",
        _EXAMPLE.sub(r"```console\n$ \1\n```", inspect.cleandoc(verb.__doc__ or "")),
        "\n".join(parameter.to_markdown() for parameter in [*arguments, *options]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


class Parameter:
    """An argument or an option of a subcommand."""

    def __init__(self, name: str, hint: Any, default: Any) -> None:
        plain_hint, *notes = get_args(hint)
        (info,) = (note for note in notes if isinstance(note, ArgumentInfo | OptionInfo))
        self.is_argument = isinstance(info, ArgumentInfo)
        # Typer takes the first name of an annotation for a default, and corrects that later.
        declared = [info.default, *(info.param_decls or ())]
        self._names = [entry for entry in declared if isinstance(entry, str)]
        if not self._names:
            self._names = [f"--{name.replace('_', '-')}"]
        self._metavar = info.metavar or name.upper()
        self._hint = plain_hint
        self._default = default
        self._help = info.help or ""

    @property
    def form(self) -> str:
        """An argument as the form of its command has it: in brackets if it may be left out."""
        form = self._metavar
        if any("list" in format_type(kind) for kind in (self._hint, *get_args(self._hint))):
            form += " ..."
        return form if self._default is inspect.Parameter.empty else f"[{form}]"

    def to_markdown(self) -> str:
        """Return a list item: the names, the kind of value, what it is for, and the default."""
        default = ""
        if self._default not in (inspect.Parameter.empty, None, False, ""):
            default = f" Default: `{format_default(self._default)}`."
        if self.is_argument:
            return f"* `{self._metavar}`: {self._help}{default}"

        names = ", ".join(f"`{name}`" for name in self._names if name.startswith("-"))
        return f"* {names}{self._describe_value()}: {self._help}{default}"

    def _describe_value(self) -> str:
        kinds = [kind for kind in get_args(self._hint) or (self._hint,) if kind is not NoneType]
        if kinds == [bool]:
            return ""
        return f" `{self._metavar}`"


def find_example(verb: Callable[..., None]) -> str:
    """Return the example in a subcommand's docstring, which its help shows too."""
    example = _EXAMPLE.search(verb.__doc__ or "")
    return example[1] if example else ""


def list_parameters(verb: Callable[..., None]) -> Iterator[Parameter]:
    """Yield the arguments and options of a subcommand, in the order of its signature."""
    hints = get_type_hints(verb, include_extras=True)
    for name, parameter in inspect.signature(verb).parameters.items():
        yield Parameter(name, hints[name], parameter.default)
