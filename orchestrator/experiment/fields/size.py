"""Sizes of memory: `1073741824`, `8 GiB`, `500 MB`."""

import re

from pydantic import ByteSize


class Size(ByteSize):
    """A number of bytes, as a number or with a unit.

    Pydantic's own reads the beginning of a text alone: `8,5 GiB` as 8 bytes, `1e-3 GiB` as 1 EB.
    """

    byte_string_pattern = r"^\s*(\d*\.?\d+)\s*([a-zA-Z]+)?\s*$"
    byte_string_re = re.compile(byte_string_pattern)
