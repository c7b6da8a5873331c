"""The YAML that experiments are written in: which scalars are numbers, and what needs quotes."""

import re
from typing import Any

import yaml

INTEGERS = range(-(2**63), 2**64)
"""The integers that a file may have: those of 64 bits, with and without a sign."""
MAX_DEPTH = 64
"""Limit of nested mappings and lists, and of the keys of a dotted path."""
TOO_DEEP = f"is nested too deeply: at most {MAX_DEPTH} levels are allowed"

# YAML 1.2's core schema rather than PyYAML's 1.1, so that `1e-3` is a number, and `on`, `1:30` and
# `2024-01-01` are text.
SCALARS = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?[0-9][0-9_]*|0o[0-7]+|0x[0-9a-fA-F]+",
    "float": (
        r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
    ),
    "merge": r"<<",
}
TAG = "tag:yaml.org,2002:"
NO_CHARACTER = re.compile("[\0\ud800-\udfff]")
"""Characters that file names cannot have or that UTF-8 cannot encode."""
CONTROL = re.compile("[\0-\x1f\x7f-\x9f\ud800-\udfff]")


class YamlLoader(yaml.SafeLoader):
    """PyYAML's safe loader with other rules for scalars."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012


class FastYamlLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The same rules by the parser in C, five times as fast and with worse error messages."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012


# PyYAML's dumper in C is four times as fast.
class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """A dumper that quotes text which a reader would take for something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.Node:
        """Quote text with invisible characters twice, so that they can be escaped."""
        style = '"' if has_invisible(text) else None
        node: yaml.Node = self.represent_scalar(TAG + "str", text, style=style)
        return node


Dumper.add_representer(str, Dumper.represent_text)

for _name, _pattern in SCALARS.items():
    for _side in (YamlLoader, FastYamlLoader, Dumper):
        _side.add_implicit_resolver(TAG + _name, re.compile(f"^(?:{_pattern})$"), None)


def has_invisible(text: str) -> bool:
    """Return whether a text has characters that do not show, besides line breaks and tabs."""
    return not text.replace("\n", "").replace("\t", "").isprintable()


def parse_number(text: str) -> int | float:
    """Return the number that a scalar of the pattern `int` or `float` means."""
    text = text.replace("_", "").lower()
    if text[:2] in ("0o", "0x"):
        return int(text, 0)
    return int(text) if re.fullmatch(r"[-+]?[0-9]+", text) else float(text.replace(".inf", "inf"))
