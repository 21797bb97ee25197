"""Signal handlers that raise, at a moment of the test's choice."""

from __future__ import annotations

import contextlib
import itertools
import linecache
import sys
import types
from collections.abc import Iterator


@contextlib.contextmanager
def interrupt(file: str, step: int) -> Iterator[None]:
    """Raises at so many steps of what runs in a file, as a handler may. A double of a signal.

    Not at a ``with``: on the way out of it the trace would come before the lock is released, where
    Python runs no handler.
    """
    steps = itertools.count()

    def trace(frame: types.FrameType, _event: str, _arg: object) -> object:
        if frame.f_code.co_filename != file:
            return None
        if linecache.getline(file, frame.f_lineno).lstrip().startswith("with "):
            return trace
        if next(steps) == step:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
