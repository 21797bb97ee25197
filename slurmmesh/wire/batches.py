"""Links whose small messages travel many in one frame."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

from slurmmesh.wire.frames import Frame, Kind, answer_bytes, batch_bytes
from slurmmesh.wire.links import HIGH_WATER
from slurmmesh.wire.quick import QuickLink
from slurmmesh.wire.reactor import in_loop_thread
from slurmmesh.wire.sharing import Placed

PLAIN = frozenset({type(None), bool, int, float, str, bytes})
"""Types of values that may go into a batch: nobody can change them before it is sent."""
PLAIN_SIZE = 1024
"""A text or bytes longer than this goes in a frame of its own."""

_MAX_ITEMS = 64
_APART_S = 0.0005
"""A message that comes so long after the last batch, of any link, goes at once, alone."""


class BatchLink(QuickLink):
    """A link that gathers items of one kind and sends them as one pickled list.

    What is gathered is sent before anything else is, when there are many items, and at the latest
    before a thread waits for news or when the background looks (``wire/driver.py``).

    Args:
        on_batch: called with the link, the kind and the body of a batch that came alone. Of one
            that came with other frames ``on_frame`` is told, as of any frame.
    """

    _kind = Kind.CALLS

    def __init__(
        self, *args: Any, on_batch: Callable[[Any, Kind, bytes], Any], **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._on_batch = on_batch
        self._batch: list[Any] = []

    def add(self, kind: Kind, item: Any) -> None:
        """Send an item of plain values, soon; ``kind`` names the frame of a list of such.

        A signal handler that raises in the middle may have it sent twice.

        Raises:
            LinkClosed: the link is closed.
        """
        with self._lock:
            if kind is not self._kind:
                self.flush()
                self._kind = kind
            batch = self._batch
            try:
                batch.append(item)
                if len(batch) >= _MAX_ITEMS or time.monotonic() - self._reactor.sent_at > _APART_S:
                    self.flush()
                elif len(batch) == 1:
                    self._reactor.before_wait(self._flush_quietly)
            except BaseException:  # a signal handler's, perhaps: others' messages are among these
                self._reactor.before_wait(self._flush_quietly)
                raise

    def flush(self) -> None:
        """Send what is gathered. Raises LinkClosed as ``post`` does."""
        if not self._batch:
            return
        if self._posting == threading.get_ident():
            # We are in a signal handler that interrupted a post, see Link.post.
            self._reactor.call_soon(self._flush_quietly)
            return
        with self._lock:
            batch = self._batch[:]
            if batch:
                # Not dropped if a signal handler raises in here.
                self.post_encoded(batch_bytes(self._kind, pickle.dumps(batch, 5)))
                del self._batch[: len(batch)]
                self._reactor.sent_at = time.monotonic()
                if self._batch:  # a signal handler came in between
                    self._reactor.before_wait(self._flush_quietly)

    def post_placed(self, frame: Frame, placed: Placed | None, fds: tuple[int, ...] = ()) -> int:
        """See ``Link.post_placed``."""
        with self._lock:
            self.flush()
            return super().post_placed(frame, placed, fds)

    def answer(self, request: Frame, body: bytes) -> None:
        """Send a small RESULT to a request that came in a frame of its own.

        Raises:
            LinkClosed: the link is closed.
        """
        if self._batch:
            self.flush()
        self.post_encoded(answer_bytes(request, body))

    @property
    def is_full(self) -> bool:
        """Whether the socket has not taken all of a batch that was just sent."""
        return not self._batch and bool(self._out.queue)

    def make_room(self) -> None:
        """Wait while so much is queued that the peer must read first, or close.

        For who has just found that it ``is_full``. Not in a loop's thread, nor in a
        signal handler that came in the middle of a send: they return at once.
        """
        if in_loop_thread() or self._lock._is_owned():  # type: ignore[attr-defined]
            return
        with self._lock:
            position = self._out.end - HIGH_WATER
        self.wait_sent(position)

    def _take_whole(self) -> bool:
        batch = self._decoder.only()
        if batch is None:
            return super()._take_whole()
        try:
            self._on_batch(self, *batch)
        except BaseException:
            if self._reactor.raising:
                raise
            self._reactor.report()
        return True

    def _flush_quietly(self) -> None:
        if self._batch and not self.closed:
            self.flush()


def is_plain(values: tuple[Any, ...]) -> bool:
    """Whether all these may go into a batch."""
    for value in values:
        kind = type(value)
        if kind not in PLAIN or ((kind is str or kind is bytes) and len(value) > PLAIN_SIZE):
            return False
    return True
