"""Links for small frames: sent and received with as few steps as it takes.

Over a unix socket most frames are small and come alone; where a host's procs are many, the cost
of a call to all of them is the number of steps that each of its frames takes.
"""

from __future__ import annotations

import contextlib
import threading

from slurmmesh.errors import LinkClosed
from slurmmesh.wire.frames import Buffer, Frame, Received
from slurmmesh.wire.links import ONE_READ, Link
from slurmmesh.wire.reactor import READ
from slurmmesh.wire.sharing import Placed


class QuickLink(Link):
    """A link with short ways for small frames, which do what ``Link`` does for any."""

    def post_placed(self, frame: Frame, placed: Placed | None, fds: tuple[int, ...] = ()) -> int:
        """See ``Link.post_placed``."""
        if not fds and not frame.buffers:
            parts = frame.parts()
            if len(parts) == 1:
                return self.post_encoded(parts[0])
        return super().post_placed(frame, placed, fds)

    def post_encoded(self, data: Buffer) -> int:
        """Send a whole frame that is encoded already and has no buffers; see ``Link.post``.

        Frames that go to many are encoded once.
        """
        me = threading.get_ident()
        if self._posting == me:
            self._reactor.call_soon(self._post_encoded_late, data)
            return 0
        with self._lock:
            self._posting = me
            try:
                if self._out.queue or not self.peer or self.closed or self._tls is not None:
                    end = self._enqueue([data], ())
                else:
                    end = self._out.send_alone(data)
            finally:
                self._posting = 0
                if self._out.queue:
                    self._reactor.call_soon(self._update_interest)
            return end

    def _post_encoded_late(self, data: Buffer) -> None:
        with contextlib.suppress(LinkClosed):
            self.post_encoded(data)

    def _ready(self, events: int) -> None:
        if events == READ and self._sharing is not None:  # a plain unix socket
            incoming = self._decoder.at_rest
            if incoming is not None:
                self._receive_whole(incoming)
                return
        super()._ready(events)

    def _receive_whole(self, incoming: list[Received]) -> None:
        try:
            incoming.extend(map(self._sock.recvmsg, *ONE_READ))  # in one step, see Link
            read_on = self._first and self._is_more(incoming[-1])
            if not incoming[-1][0]:
                self._shut("closed by the peer")
            elif not self._take_whole():
                self._decode()
            elif incoming is self._decoder.incoming:  # else a signal handler waited, and went on
                self._decoder.drop()
            if read_on and not self.closed:
                self._readable()
        except BlockingIOError:
            return
        except OSError as error:
            self._shut(f"broken: {error}")
        except BaseException:  # a signal handler's: nobody tells of what has come once more
            self._reactor.call_soon(self._decode)
            raise

    def _take_whole(self) -> bool:
        """Handle what has come, if that is one small frame."""
        frame = self._decoder.whole()
        if frame is None:
            return False
        try:
            self._on_frame(self, frame)
        except BaseException:
            if self._reactor.raising:
                raise
            self._reactor.report()
        return True
