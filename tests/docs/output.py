"""Comparing what a page shows with what was printed, where measurements vary from run to run."""

import re

LEFT_OUT = "..."
"""A line of three dots stands for any lines, and three dots within a line for any text."""

_NUMBER = r"[-+]?\d+(?:[,._:]\d+)*(?:e[-+]?\d+)?"
_UNIT = r"(?:(?:[kKMGT]i?B|B|bytes?|[nµm]?s|seconds?|min|minutes?|h|hours?|d|days?)\b|(?:[kMG]?/s|[kMG])\b|%)"
_MEASURED = "#"
"""What a number becomes that is no plain integer."""

_MASKS = {
    # Rules of tables: box-drawing characters, and those drawn with - and =.
    r"[\u2500-\u257f]+|-{3,}|={3,}": " ",
    # Bars and sparklines.
    r"[\u2580-\u259f\u28c0-\u28ff]+": "█",
    # Commits and other digests.
    r"(?<!\.)\b(?=\d*[a-f])(?=[a-f]*\d)[0-9a-f]{7,40}\b": _MEASURED,
    # Sizes and durations, as 1 min 20 s. Columns of a table are further apart.
    rf"{_NUMBER} ?{_UNIT}(?: {_NUMBER} ?{_UNIT})*": _MEASURED,
    r"\d{4}-\d{2}-\d{2}": _MEASURED,
    # The last column of the costs of hooks, an interval that was computed from times.
    r"(?<=  )\d+ steps$": f"{_MEASURED} steps",
    # Fractions, times of the day, and versions, with the build of PyTorch.
    r"[-+]?\d+(?:(?:[,._:]\d+)+(?:e[-+]?\d+)?|e[-+]?\d+)(?:\+c(?:pu|u\d+)\b)?": _MEASURED,
}
# Which rank is the slowest depends on what was measured.
_RANK = r"(^|\s\s)\d(?=\s\s|$)"
_RULE = "─"
"""The masked line of a table's rule."""

_PROGRESS = r"(?:train|val|test) epoch \d+ \d+/\d+ .*"
"""A line that a phase prints if it takes long."""

_SKIPPED_LINES = rf"(?:(?:{_RULE}|{_PROGRESS})?\n)*"
_ANY_LINE = _SKIPPED_LINES + r"(.+\n)"


def find_difference(expected: str, printed: str, *, counts_vary: bool = False) -> str | None:
    """Say what of the expected output was not printed, or what was printed beyond it. Return None
    if they are the same. With `counts_vary`, plain integers may differ too."""
    lines = expected.split("\n")
    make_pattern = _make_countless_pattern if counts_vary else _make_pattern
    patterns = [make_pattern(line) for line in lines]
    text = _mask_lines(printed)
    if _match(patterns, text):
        return None

    count = _count_printed(patterns, text)
    if count == len(lines):
        return "more was printed than is shown"
    return f"shown, but not printed there: {lines[count]}"


def refresh(expected: str, printed: str) -> str | None:
    """Return the expected output with the lines that were printed in place of those that it shows.

    What it leaves out stays out. A line is replaced if only its counts have changed, or if a line
    beside it was printed. Return None if there is no such line, and some are left out."""
    lines = expected.split("\n")
    patterns = [_make_pattern(line) for line in lines]
    looser = [_make_looser_patterns(lines, number) for number in range(len(lines))]
    text = _mask_lines(printed)
    while (match := _match(patterns, text)) is None:
        count = _count_printed(patterns, text)
        if count == len(lines) or not looser[count]:
            leaves_out = any(map(_is_left_out, lines))
            return None if leaves_out else printed.rstrip("\n")
        patterns[count] = looser[count].pop(0)

    printed_lines = printed.splitlines()
    for group, line in enumerate(lines, start=1):
        if match[group] and not _is_left_out(line):
            number = text.count("\n", 0, match.start(group))
            lines[group - 1] = _refresh_line(line, printed_lines[number])
    return "\n".join(lines)


def _mask(line: str) -> str:
    """Return a line without what varies: measurements with their units, and runs of blanks."""
    for pattern, replacement in _MASKS.items():
        line = re.sub(pattern, replacement, line)
    if _MEASURED in line:
        line = re.sub(_RANK, rf"\1{_MEASURED}", line)
    return " ".join(line.split())


def _mask_lines(printed: str) -> str:
    lines = printed.splitlines()
    return "".join(f"{_mask(line) or (_RULE if line.strip() else '')}\n" for line in lines)


def _match(patterns: list[str], text: str) -> re.Match[str] | None:
    return re.fullmatch("".join(patterns) + _SKIPPED_LINES, text)


def _count_printed(patterns: list[str], text: str) -> int:
    """Return how many of the patterns, from the first one, the text matches."""
    counts = range(len(patterns), 0, -1)
    return next((count for count in counts if re.match("".join(patterns[:count]), text)), 0)


def _is_left_out(line: str) -> bool:
    return line.strip() == LEFT_OUT


def _make_looser_patterns(lines: list[str], number: int) -> list[str]:
    """Return patterns to try for a line that was not printed: with other counts, or any line."""
    neighbors = [*lines[max(number - 1, 0) : number], *lines[number + 1 : number + 2]]
    has_anchor = not all(map(_is_left_out, neighbors))
    return [_make_countless_pattern(lines[number]), *[_ANY_LINE] * has_anchor]


def _make_countless_pattern(line: str) -> str:
    """Return the pattern of a line with any numbers."""
    return _make_pattern(re.sub(r"\d+", "0.0", _mask(line)))


def _make_pattern(line: str) -> str:
    """Return the pattern of a masked line, with the line as its group."""
    if _is_left_out(line):
        return r"((?:.*\n)*?)"
    if not line.strip():
        return r"(\n?)"
    if not _mask(line):
        return rf"((?:{_RULE}\n)?)"

    parts = [_make_part(part) for part in line.split(LEFT_OUT)]
    return rf"{_SKIPPED_LINES}({' ?.* ?'.join(parts)}\n)"


def _make_part(part: str) -> str:
    """Return the pattern of masked text. An integer is itself, or may have become a fraction."""
    pieces = re.split(rf"([-+]?(?:\d+|{_MEASURED}))", _mask(part))
    return "".join(_make_piece(piece) for piece in pieces)


def _make_piece(piece: str) -> str:
    if piece.endswith(_MEASURED):
        return rf"[-+]?(?:{_MEASURED}|\d+)"
    if piece[-1:].isdigit():
        return rf"(?:{re.escape(piece)}|{_MEASURED})"
    return re.escape(piece)


def _refresh_line(line: str, printed: str) -> str:
    """Return a printed line with the same text left out as in the line that is shown."""
    parts = line.split(LEFT_OUT)
    patterns = [_make_raw_pattern(part) for part in parts]
    match = re.fullmatch(r"\s*.*?\s*".join(patterns), printed.strip())
    if len(parts) == 1 or match is None:
        return printed.rstrip()

    fresh = zip(parts, match.groups(), strict=True)
    return LEFT_OUT.join(part.replace(part.strip(), new) for part, new in fresh)


def _make_raw_pattern(part: str) -> str:
    """Return the pattern, as a group, of the same text with other numbers and blanks."""
    number = rf"{_NUMBER}(?: ?{_UNIT})?"

    def replace(piece: re.Match[str]) -> str:
        if piece["number"]:
            return number
        return r"\s+" if piece[0].isspace() else re.escape(piece[0])

    return "(" + re.sub(rf"(?P<number>{number})|\s+|[^\w\s]", replace, part.strip()) + ")"
