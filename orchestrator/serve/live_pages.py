"""The pages that the live page made last, which its threads share."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock

_MAX_PAGES = 32
"""Maximum number of pages that are kept."""


@dataclass
class _LivePage:
    lock: Lock = field(default_factory=Lock)
    signature: str | None = None
    html: str = ""


class LivePages:
    """The pages that were made last, which are made again once their signature has changed."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._pages: OrderedDict[str, _LivePage] = OrderedDict()

    def get(self, address: str, signature: str, make: Callable[[], str]) -> str:
        """Return the page at an address. Several requests for it wait for the first."""
        with self._lock:
            page = self._pages.setdefault(address, _LivePage())
            self._pages.move_to_end(address)
            while len(self._pages) > _MAX_PAGES:
                self._pages.popitem(last=False)
        with page.lock:
            if page.signature != signature:
                page.html = make()
                page.signature = signature
            return page.html
