"""Read YAML into plain data with the location of every key."""

import re
from pathlib import Path
from stat import S_ISREG
from typing import Any

import yaml

from orchestrator.errors import ConfigError, Problem, shorten_value
from orchestrator.experiment.yaml.dialect import TOO_DEEP, FastYamlLoader, YamlLoader
from orchestrator.experiment.yaml.document import Document, Location
from orchestrator.experiment.yaml.nodes import NodeReader
from orchestrator.nearest_names import did_you_mean
from orchestrator.storage import without_credentials

MAX_BYTES = 512 * 1024
"""Size limit of an experiment file; also the limit in characters once its aliases are expanded."""
_HINTS = {
    "'\\t'": "use spaces instead of tabs",
    "mapping values": "check the indentation of this line, or put text that contains `: ` in quotes",
    "expected <block end>": "check the indentation of this line",
}
"""What to do about a syntax error, by words of PyYAML."""


def read_yaml(path: Path) -> Document:
    """Read a YAML file whose top level is a mapping, or raise ConfigError."""
    try:
        text = _read_text(path)
    except UnicodeDecodeError as error:
        reason = f"is not UTF-8: {error.reason} at byte {error.start}; save it as UTF-8"
    except FileNotFoundError:
        raise ConfigError([_explain_missing_file(path)]) from None
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
    except ValueError as error:
        reason = str(error)
    else:
        return parse_yaml(text, name_file(path))
    raise ConfigError([Problem("", reason, name_file(path))])


def name_file(path: Path) -> str:
    """Return the path of a file for messages, without the credentials of a URL.

    A URL is no file, but somebody may give one, and `Path` leaves it a single slash.
    """
    url = re.sub(r"(?<=\w:)/(?!/)", "//", str(path))
    shown = without_credentials(url)
    return str(path) if shown == url else shown


def _explain_missing_file(path: Path) -> Problem:
    if path.is_symlink():
        return Problem("", "is a link to a file that does not exist", name_file(path))
    files = path.parent.glob("*") if path.parent.is_dir() else ()
    names = [file.name for file in files if file.suffix in (".yaml", ".yml")]
    nearest = did_you_mean(path.name, names)
    return Problem("", "does not exist", name_file(path), suggestion=nearest)


def _read_text(path: Path) -> str:
    stat = path.stat()
    if path.suffix == ".py":
        raise ValueError("must be an experiment file (YAML), got Python code")
    if not S_ISREG(stat.st_mode):  # a device or a pipe might never end
        kind = "folder" if path.is_dir() else "device or a pipe"
        raise ValueError(f"must be an experiment file (YAML), got a {kind}")
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        size = f"{max(stat.st_size, len(content)):,} bytes, at most {MAX_BYTES:,} are allowed"
        raise ValueError(f"has {size}; pass large data to the task as a file")
    return content.decode("utf-8-sig")


def parse_yaml(text: str, file: str) -> Document:
    """Parse YAML text whose top level is a mapping.

    Raises ConfigError. `file` names it in errors.
    """
    value, document = parse_value(text, file)
    if not isinstance(value, dict):
        shown = "nothing" if value is None else shorten_value(value)
        raise ConfigError(
            [Problem("", f"must be a mapping of keys to values, got {shown}", file, 1)]
        )
    document.data = value
    return document


def parse_value(text: str, file: str, *, fast: bool = False) -> tuple[Any, Document]:
    """Return any YAML value, and a document with its locations and problems.

    Raises ConfigError for a syntax error.
    """
    document = Document({}, {"": Location(file, 1)})
    try:
        loader = FastYamlLoader if fast else YamlLoader
        node = loader(text).get_single_node()
        if node is None:
            return None, document
        reader = NodeReader(document, file, max(MAX_BYTES, len(text)))
        return reader.read(node, ""), document
    except RecursionError:
        raise ConfigError([Problem("", TOO_DEEP, file, 1)]) from None
    # PyYAML makes numbers of \U and %YAML without looking.
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise ConfigError([_explain_syntax(error, file)]) from None


def _explain_syntax(error: Exception, file: str) -> Problem:
    """Return what PyYAML says of a syntax error, in one line."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or ""
    context = getattr(error, "context", None) or ""
    is_continued = problem.startswith("but ")
    reason = f"{context}, {problem}" if is_continued else f"{problem} {context}".strip()
    reason = reason or " ".join(str(error).split())

    start = getattr(error, "context_mark", None)
    if mark and start and start.line < mark.line and not is_continued:
        reason += f" that begins on line {start.line + 1}"
    hint = next((hint for words, hint in _HINTS.items() if words in reason), None)
    line = mark.line + 1 if mark else None
    return Problem("", f"invalid YAML: {reason}", file, line, hint)


def load_yaml(text: str, file: str) -> Any:
    """Return the data of text that `dump_yaml` wrote and somebody may have edited.

    Raises ConfigError.
    """
    data, document = parse_value(text, file, fast=True)
    if document.problems:
        raise ConfigError(document.problems)
    return data
