"""The reader: plain data, and the line of every key."""

import math
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.errors import ConfigError, Problem
from orchestrator.experiment.yaml.reader import load_yaml, parse_value, parse_yaml, read_yaml
from orchestrator.experiment.yaml.writer import dump_yaml
from orchestrator.terminal.printable import escape_controls


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("-.5", -0.5),
        ("1_000", 1000),
        ("0x10", 16),
        ("0o10", 8),
        ("010", 10),
        ("-.inf", -math.inf),
        ("true", True),
        ("~", None),
        ("", None),
        ("'1e-3'", "1e-3"),
        ("!!str 5", "5"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("'.nan'", ".nan"),
        ("[1, {a: b}]", [1, {"a": "b"}]),
        *[(word, word) for word in ("on", "off", "yes", "no", "Yes", "OFF", "y", "n", "=")],
    ],
)
def test_scalars_follow_yaml_1_2(text: str, value: Any) -> None:
    read, document = parse_value(text, "file")
    assert read == value
    assert type(read) is type(value)
    assert not document.problems
    assert repr(load_yaml(text, "")) == repr(value)


@pytest.mark.parametrize("text", [".nan", ".NaN", "[1, .NAN]", "{a: .nan}"])
def test_nan_is_refused_instead_of_becoming_text(text: str) -> None:
    problem, *more = parse_value(text, "file")[1].problems
    assert "cannot be NaN" in problem.message
    assert not more


def test_keys_are_text() -> None:
    assert parse_yaml("{1: a, on: b, null: c}", "file").data == {"1": "a", "on": "b", "null": "c"}


def test_every_path_has_its_line() -> None:
    document = parse_yaml("a: 1\nb:\n  c: [1,\n    2]\n  d:\n    e.f: 3\n", "x.yaml")
    lines = {
        path: document.locations[path].line
        for path in ("a", "b", "b.c", "b.c.0", "b.c.1", "b.d", "b.d.e.f")
    }
    assert lines == {"a": 1, "b": 2, "b.c": 3, "b.c.0": 3, "b.c.1": 4, "b.d": 5, "b.d.e.f": 6}


def test_missing_path_is_located_at_its_nearest_parent() -> None:
    document = parse_yaml("a: 1\nb:\n  c: 1\n", "x.yaml")
    assert document.locate(Problem("b.missing.deep", "is missing")).line == 2
    assert document.locate(Problem("zzz", "is missing")).line == 1
    assert document.locate(Problem("b.c", "told", "other.yaml", 9)).file == "other.yaml"


def test_every_duplicate_key_is_reported_with_its_line() -> None:
    document = parse_yaml("a: 1\nb: {c: 1, c: 2}\na: 3\na: 4\n", "x.yaml")
    assert [(p.path, p.line) for p in document.problems] == [("b.c", 2), ("a", 3), ("a", 4)]
    assert all("first defined on line" in p.message for p in document.problems)
    assert document.data == {"a": 1, "b": {"c": 1}}


def test_anchors_and_merges() -> None:
    text = "one: &one {x: 1, y: 1}\ntwo: &two {y: 2, z: 2}\nboth: {<<: [*one, *two], x: 0}\nsame: *one\n"
    document = parse_yaml(text, "x.yaml")
    assert document.data == yaml.safe_load(text)
    assert document.data["both"] == {"x": 0, "y": 1, "z": 2}


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a: 1\nb: [1,\nc: 2", 3, "while parsing a flow sequence that begins on line 2"),
        ("a: 1\n---\nb: 2", 2, "single document"),
        ("a: *nothing", 1, "undefined alias"),
        ("[" * 500, 1, "nested too deeply: at most 64 levels"),
        ("", 1, "got nothing"),
        ("just text", 1, "must be a mapping of keys to values"),
    ],
)
def test_invalid_yaml_is_reported_once(text: str, line: int | None, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "x.yaml")
    (problem,) = caught.value.problems
    assert (problem.file, problem.line) == ("x.yaml", line)
    assert message in problem.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: !!python/object/apply:os.system [echo]", "tag !!python/object/apply:os.system"),
        ("a: !!binary aGk=", "tag !!binary"),
        ("a: !!int x", "is not a valid int: 'x'"),
        ("!secret a: 1", "the key has the tag !secret, which is not allowed; use plain values"),
        ("!!binary aGk=: 1", "the key has the tag !!binary"),
        ("!!int a: 1", "the key is not a valid int: 'a'"),
        ("!!merge a: {b: 1}", "the key is not a valid merge: 'a'"),
        ("x: {!secret a: 1}", "the key has the tag !secret"),
        ("a: &a {b: *a}", "contains itself"),
        ("? [1]\n: 2", "keys must be strings"),
        ("a: {<<: 3}", "not a mapping"),
    ],
)
def test_values_that_are_not_plain_are_reported(text: str, message: str) -> None:
    (problem,) = parse_yaml(text, "x.yaml").problems
    assert message in problem.message
    assert problem.line == 1


def test_tags_of_plain_keys_are_allowed() -> None:
    document = parse_yaml("!!str a: 1\n!!int 2: 3\n4: 5", "x.yaml")
    assert (document.data, document.problems) == ({"a": 1, "2": 3, "4": 5}, [])


def test_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbfname: x\n")
    assert read_yaml(tmp_path / "bom.yaml").data == {"name": "x"}


_TEXT = st.one_of(
    st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=8),
    st.sampled_from(
        [
            "1e-3",
            "on",
            "No",
            "1:30",
            "2024-01-01",
            "0x1",
            "1_0",
            "~",
            "",
            "<<",
            "=",
            ".nan",
            "null",
            "0777",
            "-",
        ]
    ),
)
_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(_TEXT, _VALUES, max_size=3))
def test_dumped_yaml_reads_back_as_the_same_data(data: dict[str, Any]) -> None:
    document = parse_yaml(dump_yaml(data), "x.yaml")
    assert document.data == load_yaml(dump_yaml(data), "") == data
    assert not document.problems


_INVISIBLE = st.characters(
    categories=("Cc", "Cf", "Zl", "Zp", "Zs", "Co", "Cn"), exclude_characters="\0"
)


@settings(max_examples=100, deadline=None)
@given(st.text(_INVISIBLE | st.sampled_from("a é🦙:#-'\"\\\n\t"), max_size=20))
@example("line\u2028separator")
@example("next\x85line")
@example("\ufeffmark")
@example("\u202eright to left")
@example(f"{'long ' * 30}\u2029{'text ' * 30}")
def test_dumped_text_survives_a_terminal(text: str) -> None:
    key = "".join(character for character in text if unicodedata.category(character) != "Cc")
    data = {"text": text, "list": [text], f"key {key}": {f"{key} key": text}}
    shown = escape_controls(dump_yaml(data))
    assert shown == dump_yaml(data)
    document = parse_yaml(shown, "x.yaml")
    assert document.data == load_yaml(shown, "") == data
    assert not document.problems


@pytest.mark.parametrize("text", ["on", "no", "1:30", "2024-01-01", "1e-3", "0o7"])
def test_dumped_text_is_text_to_yaml_1_1_readers(text: str) -> None:
    assert yaml.safe_load(dump_yaml({"a": text})) == {"a": text}
