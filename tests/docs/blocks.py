"""What of a page is run: its fenced blocks and the comments that prepare them, in their order."""

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

_PARTS = re.compile(
    r"""
    ^ (?P<indent>[ >]*) ``` (?P<language>\w*) [^\n]* \n (?P<code>.*?) ^ (?P=indent) ```
    | <!-- \s* (?P<comment>continues|prepare): (?P<words>.*?) -->
    """,
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
_FILE = re.compile(r"# (\S+\.\w+)\n")
_FILES_OF = ("python", "yaml")


@dataclass(frozen=True)
class Block:
    """A fenced block, or a comment `continues` or `prepare`, whose kind takes the language's
    place."""

    language: str
    text: str
    page: Path
    line: int
    """The line of the page on which the text begins, from 1."""

    follows: bool
    """Whether nothing but blank lines is between the block before and this one."""

    indent: str = ""
    """What stands before each line of the text, in a list or a quoted admonition."""

    @property
    def file(self) -> str | None:
        """The file that the block is, which its first line names."""
        name = _FILE.match(self.text)
        return name[1] if name and self.language in _FILES_OF else None

    @property
    def place(self) -> str:
        """The page and the line, as editors open them."""
        return f"{self.page}:{self.line}"

    def write(self, folder: Path) -> None:
        """Write the file that the block is, without the line that names it."""
        assert self.file is not None
        file = folder / self.file
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(self.text.partition("\n")[2])


def read_blocks(page: Path) -> list[Block]:
    """Return the blocks of a page, also those in lists and in quoted admonitions."""
    text = page.read_text()
    blocks: list[Block] = []
    end = 0
    for part in _PARTS.finditer(text):
        if part["comment"]:
            language, code, start = part["comment"], part["words"].strip(), part.start("words")
        else:
            language, start = part["language"], part.start("code")
            code = _without_indent(part["code"], part["indent"])
        blocks.append(
            Block(
                language,
                code,
                page,
                line=text.count("\n", 0, start) + 1,
                follows=not text[end : part.start()].strip(),
                indent=part["indent"] or "",
            )
        )
        end = part.end()
    return blocks


def replace_text(block: Block, text: str) -> None:
    """Replace the text of a block, which must be in the page where it was read."""
    lines = block.page.read_text().split("\n")
    old = block.text.count("\n")
    start = block.line - 1
    lines[start : start + old] = [(block.indent + line).rstrip() for line in text.splitlines()]
    block.page.write_text("\n".join(lines))


def write_files(page: Path, folder: Path) -> None:
    """Write the files of a page, and before them those of the pages that it continues."""
    for block in read_blocks(page):
        if block.language == "continues":
            write_files(page.parent / block.text, folder)
        elif block.file is not None:
            block.write(folder)


def _without_indent(code: str, indent: str) -> str:
    if ">" not in indent:
        return textwrap.dedent(code)

    mark = re.compile(rf"^{re.escape(indent.rstrip())} ?", re.MULTILINE)
    return mark.sub("", code)
