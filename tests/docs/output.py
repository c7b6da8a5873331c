"""Comparing what a page shows with what was printed, where numbers vary from run to run."""

import re

LEFT_OUT = "..."
"""A line of three dots stands for any lines, and three dots within a line for any text."""

_UNIT = r"(?:[kKMGT]i?B|B|bytes?|[nµm]?s|seconds?|min|minutes?|h|hours?|d|days?)\b"
_MASKS = {
    # Rules of tables: box-drawing characters, and those drawn with - and =.
    r"[\u2500-\u257f]+|-{3,}|={3,}": " ",
    # Bars and sparklines.
    r"[\u2580-\u259f\u28c0-\u28ff]+": "█",
    # Commits and other digests.
    r"\b(?=[a-f]*\d)[0-9a-f]{7,40}\b": "0",
    r"[-+]?\d[\d,._:]*(?:e[-+]?\d+)?": "0",
    # Sizes and durations, as 1 min 20 s. Columns of a table are further apart.
    rf"0 ?{_UNIT}(?: 0 ?{_UNIT})*": "0",
    r"0 ?[kMG](?=/s\b)": "0",
    r"\s+": " ",
}


def mask(line: str) -> str:
    """Return a line without what varies: numbers with their units, rules and runs of blanks."""
    for pattern, replacement in _MASKS.items():
        line = re.sub(pattern, replacement, line)
    return line.strip()


def find_difference(expected: str, printed: str) -> str | None:
    """Say what of the expected output was not printed, or what was printed beyond it. Return None
    if they are the same."""
    lines = [line for line in expected.splitlines() if mask(line)]
    printed_lines = [line for line in printed.splitlines() if mask(line)]
    text = "".join(f"{mask(line)}\n" for line in printed_lines)
    patterns = [_make_pattern(line) for line in lines]
    if re.fullmatch("".join(patterns), text):
        return None

    for count, line in enumerate(lines, start=1):
        if not re.match("".join(patterns[:count]), text):
            return f"shown, but not printed there: {line}"
    return "more was printed than is shown"


def _make_pattern(line: str) -> str:
    if line.strip() == LEFT_OUT:
        return r"(?:.*\n)*"

    parts = [re.escape(mask(part)) for part in line.split(LEFT_OUT)]
    return r" ?.* ?".join(parts) + r"\n"
