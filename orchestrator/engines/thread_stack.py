"""The stack of a thread, as another thread sees it."""

import sys
import threading
import traceback
from types import FrameType

_MAX_FRAMES = 12


class ThreadStack:
    """The stack of the thread that creates this object. It is empty once the thread has ended."""

    def __init__(self) -> None:
        self._thread_id = threading.get_ident()

    def read_frames(self) -> list[FrameType]:
        """Return the frames, innermost first."""
        innermost_frame = self._find_innermost_frame()
        if innermost_frame is None:
            return []
        return [frame for frame, _ in traceback.walk_stack(innermost_frame)]

    def format(self) -> str:
        """Return the innermost frames as text."""
        innermost_frame = self._find_innermost_frame()
        if innermost_frame is None:  # traceback would format the stack of the calling thread
            return ""
        return "".join(traceback.format_stack(innermost_frame, limit=_MAX_FRAMES))

    def _find_innermost_frame(self) -> FrameType | None:
        return sys._current_frames().get(self._thread_id)
