"""Links: frames over a connected socket.

A link is plain over a unix socket whose peer has our uid, or TLS over TCP. Until the peer
has proved who it is, no byte of it is decoded.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import socket
import ssl
import struct
import threading
import weakref
from collections.abc import Callable
from typing import Any

from slurmmesh.errors import FrameError, IdentityError, LinkClosed
from slurmmesh.wire.frames import Frame, FrameDecoder
from slurmmesh.wire.identity import handshake_error
from slurmmesh.wire.reactor import READ, WRITE, Reactor, Timer

HANDSHAKE_TIMEOUT_S = 20.0
HIGH_WATER = 64 << 20
"""Bytes queued on a link from which on a sending thread waits for the peer to read."""

_CHUNK = 1 << 18
_READS_A_TURN = 64
_MAX_PARTS = 64


class Link:
    """One connection.

    Callbacks run in the reactor's thread: ``on_open(link)`` once the peer is known (``peer`` is
    set), ``on_frame(link, frame)`` for each frame in order, ``on_close(link, reason)`` once,
    after the last frame. Frames may be sent from any thread and keep the order of calls.

    A signal handler may raise in the middle of a send, or send itself: what is queued and how
    much of it is sent change in single steps that no handler can split.

    Args:
        authenticate: names the peer of the finished handshake, or raises IdentityError.
    """

    def __init__(
        self,
        reactor: Reactor,
        sock: socket.socket,
        *,
        authenticate: Callable[[socket.socket], str],
        on_frame: Callable[[Link, Frame], Any],
        on_open: Callable[[Link], Any] = lambda link: None,
        on_close: Callable[[Link, str], Any] = lambda link, reason: None,
    ) -> None:
        self.peer = ""
        self.closed = False
        self._reactor = reactor
        self._sock = sock
        self._tls = sock if isinstance(sock, ssl.SSLSocket) else None
        self._authenticate = authenticate
        self._on_frame, self._on_open, self._on_close = on_frame, on_open, on_close
        self._decoder = FrameDecoder()
        self._staging = bytearray()  # a stranger gets no memory
        # One lock for both directions: OpenSSL allows one call at a time on a connection.
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)
        # Parts to send, each with the position in the stream at which it ends.
        self._queue: collections.deque[tuple[int, memoryview]] = collections.deque()
        # Bytes sent: those up to some write, and those of each write since then.
        self._progress: tuple[int, list[int]] = (0, [])
        self._posting = 0
        self._finishing = False
        self._events = 0
        self._deadline: Timer | None = None
        sock.setblocking(False)
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _open_links.add(self)

    def start(self) -> None:
        """Begin: handshake if there is one, then frames. In the reactor's thread."""
        if self._tls is not None:
            self._deadline = self._reactor.call_later(
                HANDSHAKE_TIMEOUT_S, lambda: self._shut("no handshake in time")
            )
            self._handshake(0)
        else:
            self._opened()

    @property
    def peer_address(self) -> str:
        """The address the other side of a TCP link has; empty for a unix socket."""
        if self._sock.family not in (socket.AF_INET, socket.AF_INET6):
            return ""
        try:
            return str(self._sock.getpeername()[0])
        except OSError:
            return ""

    def send(self, frame: Frame) -> None:
        """Send a frame. Afterwards the caller may change what its buffers are views of.

        Waits until the buffers have left, and while much is queued; not in the reactor's thread.

        Raises:
            LinkClosed: the link is closed.
            FrameError: the frame is over the limits; nothing was sent.
        """
        self.wait_for_room(frame, self.post(frame))

    def post(self, frame: Frame) -> int:
        """Send what the socket takes now and queue the rest, without waiting.

        Returns the position in the stream at which the frame ends. Raises as ``send`` does.
        """
        if self._posting == threading.get_ident():
            # We are in a signal handler that interrupted a post: what that is at must not change.
            self._reactor.call_soon(self._post_late, frame)
            return 0
        parts = [memoryview(part).cast("B") for part in frame.parts()]
        with self._lock:
            try:
                self._posting = threading.get_ident()
                position = self._enqueue(parts)
            finally:
                self._posting = 0
            if self._queue:
                self._reactor.call_soon(self._update_interest)
        return position

    def _enqueue(self, parts: list[memoryview]) -> int:
        if self.closed:
            raise LinkClosed(f"the link to {self.peer or 'a peer'} is closed")
        direct = not self._queue and self._may_write_here
        ends = itertools.accumulate(map(len, parts), initial=self._end)
        entries = list(zip(itertools.islice(ends, 1, None), parts, strict=True))
        self._queue.extend(entries)
        if direct:
            with contextlib.suppress(OSError):  # a broken link is told by the reading side
                self._flush()
        return entries[-1][0]

    def _post_late(self, frame: Frame) -> None:
        with contextlib.suppress(LinkClosed):
            self.post(frame)

    def wait_for_room(self, frame: Frame, position: int) -> None:
        """Wait as ``send`` does, after ``post`` of this frame gave this position."""
        if not self._reactor.in_thread:
            self.wait_sent(position if frame.buffers else position - HIGH_WATER)

    def wait_sent(self, position: int | None = None, timeout: float | None = None) -> bool:
        """Wait until the stream has left this process up to a position; None: all of it.

        False if ``timeout`` seconds were not enough. Not in the reactor's thread.
        """
        with self._lock:
            goal = self._end if position is None else position
            return self._room.wait_for(lambda: self._sent >= goal or self.closed, timeout)

    def finish(self) -> None:
        """Send what is queued and then tell the peer that nothing more comes.

        The peer answers by closing. In the reactor's thread.
        """
        self._finishing = True
        if self.peer:
            self._writable()
        else:
            self._shut("closed here")

    def close(self, reason: str = "closed here") -> None:
        """Close it; what is queued is dropped. From any thread."""
        if self._reactor.in_thread:
            self._shut(reason)
        else:
            self._reactor.call_soon(self._shut, reason)

    def drain(self) -> None:
        """Read whatever has arrived already. In the reactor's thread."""
        while not self.closed and self.peer and self._receive():
            pass

    # -- in the reactor's thread ------------------------------------------------------------

    def _handshake(self, _events: int) -> None:
        assert self._tls is not None
        try:
            with self._lock:
                self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return self._watch(READ)
        except ssl.SSLWantWriteError:
            return self._watch(WRITE)
        except (OSError, ValueError) as error:
            return self._shut(str(handshake_error(error, self.peer_address or "a peer")))
        return self._opened()

    def _opened(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        try:
            peer = self._authenticate(self._sock)
        except Exception as error:  # whatever it is, this peer has not proved itself
            return self._shut(str(error))
        self._staging = bytearray(_CHUNK)
        with self._lock:
            self.peer = peer
        self._events = 0  # so that the watch below replaces the handshake's callback
        self._watch(READ)
        self._reactor.guard(self._on_open, self)
        if not self.closed:
            self._update_interest()
            self._readable()

    def _ready(self, events: int) -> None:
        if events & WRITE:
            self._writable()
        if events & READ and not self.closed:
            self._readable()

    def _readable(self) -> None:
        for _ in range(_READS_A_TURN):
            if self.closed or not self._receive():
                return
        # Others get their turn. The kernel tells what is still there, but for what OpenSSL holds.
        if self._tls is not None and self._tls.pending():
            self._reactor.call_soon(self._readable)

    def _receive(self) -> bool:
        """Read once. False when nothing more is there now."""
        space = self._decoder.space()
        try:
            with self._lock:
                count = self._sock.recv_into(self._staging if space is None else space)
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except ssl.SSLWantWriteError:
            self._watch(READ | WRITE)
            return False
        except OSError as error:
            self._shut(f"broken: {error}")
            return False
        if count == 0:
            self._shut(
                "closed by the peer" if self._decoder.idle else "cut in the middle of a frame"
            )
            return False
        try:
            frames = (
                self._decoder.feed(memoryview(self._staging)[:count])
                if space is None
                else self._decoder.filled(count)
            )
            for frame in frames:
                self._reactor.guard(self._on_frame, self, frame)
                if self.closed:
                    return False
        except (FrameError, MemoryError) as error:
            self._shut(str(error) or "no memory for a frame")
            return False
        return True

    def _writable(self) -> None:
        if self.closed:
            return
        try:
            with self._lock:
                self._flush()
                self._room.notify_all()
                if self._finishing and not self._queue:
                    # Not the method of an SSLSocket, which would forget about TLS.
                    socket.socket.shutdown(self._sock, socket.SHUT_WR)
        except OSError as error:
            return self._shut(f"broken: {error}")
        return self._update_interest()

    @property
    def _sent(self) -> int:
        base, writes = self._progress
        return base + sum(writes)

    @property
    def _end(self) -> int:
        """Position at which all that was ever queued ends. With the lock held."""
        return self._queue[-1][0] if self._queue else self._sent

    @property
    def _may_write_here(self) -> bool:
        """Whether the calling thread may write to the socket itself."""
        if not self.peer:
            return False
        # A handler that raises out of the many steps of an SSLSocket's write leaves us in the
        # dark about what it wrote, and handlers run on the main thread.
        return self._tls is None or threading.current_thread() is not threading.main_thread()

    def _flush(self) -> None:
        """Send as much of the queue as the socket takes. With the lock held."""
        with contextlib.suppress(BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            while self._drop_sent():
                # Write and note in one step of the interpreter.
                self._progress[1].extend(map(self._write, (self._next_parts(),)))

    def _drop_sent(self) -> bool:
        """Take what is sent out of the queue; false if nothing is left."""
        sent = self._sent
        while self._queue and self._queue[0][0] <= sent:
            self._queue.popleft()
        self._progress = (sent, [])
        return bool(self._queue)

    def _next_parts(self) -> list[memoryview]:
        end, first = self._queue[0]
        rest = itertools.islice(self._queue, 1, _MAX_PARTS)
        return [first[len(first) - (end - self._sent) :], *(part for _, part in rest)]

    @property
    def _write(self) -> Callable[[list[memoryview]], int]:
        tls = self._tls
        return self._sock.sendmsg if tls is None else lambda parts: tls.send(parts[0])

    def _update_interest(self) -> None:
        if not self.closed and self.peer:
            self._watch(READ | WRITE if self._queue else READ)

    def _watch(self, events: int) -> None:
        if events != self._events or not self.peer:
            self._events = events
            callback = self._ready if self.peer else self._handshake
            self._reactor.watch(self._sock.fileno(), events, callback)

    def _shut(self, reason: str) -> None:
        if self.closed:
            return
        with self._lock:
            self.closed = True
            self._queue.clear()
            self._room.notify_all()
        _open_links.discard(self)
        self._staging = bytearray()
        if self._deadline is not None:
            self._deadline.cancel()
        self._reactor.unwatch(self._sock.fileno())
        with contextlib.suppress(OSError):
            self._sock.close()
        self._on_close(self, reason)

    def _forget(self) -> None:
        """In a forked child: the connection is the parent's."""
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)
        self.closed = True
        self._queue.clear()
        with contextlib.suppress(OSError):
            self._sock.close()


_open_links: weakref.WeakSet[Link] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """A forked child has copies of its parent's connections. It must neither speak on them nor
    keep them open when the parent is gone."""
    for link in list(_open_links):
        link._forget()
    _open_links.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)


def same_user(sock: socket.socket) -> str:
    """Name the peer of a unix socket, which must run as our own user.

    Raises:
        IdentityError: it runs as another user.
    """
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", credentials)
    if uid != os.getuid():
        raise IdentityError(f"refused pid {pid}: it runs as uid {uid}")
    return f"pid-{pid}"
