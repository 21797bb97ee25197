"""Links: frames over a connected socket, and the listener that makes them.

A link is plain over a unix socket whose peer has our uid, or TLS over TCP. Until the peer
has proved who it is, no byte of it is decoded.
"""

from __future__ import annotations

import collections
import contextlib
import os
import socket
import ssl
import struct
import sys
import threading
from collections.abc import Callable
from typing import Any

from slurmmesh.errors import FrameError, IdentityError, LinkClosed
from slurmmesh.wire.frames import Frame, FrameDecoder
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
    after the last frame. :meth:`send` may be called from any thread and keeps the order of calls.

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
        self._authenticate = authenticate
        self._on_frame, self._on_open, self._on_close = on_frame, on_open, on_close
        self._decoder = FrameDecoder()
        self._staging = bytearray(_CHUNK)
        # One lock for both directions: OpenSSL allows one call at a time on a connection.
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._queue: collections.deque[memoryview] = collections.deque()
        self._queued = 0
        self._events = 0
        self._deadline: Timer | None = None
        sock.setblocking(False)
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def start(self) -> None:
        """Begin: handshake if there is one, then frames. In the reactor's thread."""
        if isinstance(self._sock, ssl.SSLSocket):
            self._deadline = self._reactor.call_later(
                HANDSHAKE_TIMEOUT_S, lambda: self._shut("no handshake in time")
            )
            self._handshake(0)
        else:
            self._opened()

    @property
    def local_address(self) -> str:
        """The address this side of a TCP link has; empty for a unix socket."""
        return self._address(self._sock.getsockname)

    @property
    def peer_address(self) -> str:
        """The address the other side of a TCP link has; empty for a unix socket."""
        return self._address(self._sock.getpeername)

    def send(self, frame: Frame, wait: bool = True) -> None:
        """Send a frame, or queue what the socket does not take now.

        Waits while much is queued, except with ``wait=False`` and in the reactor's thread.

        Raises:
            LinkClosed: the link is closed.
            FrameError: the frame is over the limits; nothing was sent.
        """
        parts = frame.parts()
        with self._lock:
            if wait and self._queued > HIGH_WATER and not self._reactor.in_thread:
                self._room.wait_for(lambda: self._queued <= HIGH_WATER or self.closed)
            if self.closed:
                raise LinkClosed(f"the link to {self.peer or 'a peer'} is closed")
            for part in parts:
                self._queue.append(memoryview(part).cast("B"))
                self._queued += len(part)
            if len(self._queue) == len(parts) and self.peer:
                with contextlib.suppress(OSError):  # a broken link is told by the reading side
                    self._flush()
            if self._queue:
                self._reactor.call_soon(self._update_interest)

    def wait_sent(self, timeout: float) -> bool:
        """Wait until all that was sent has left this process. Not in the reactor's thread."""
        with self._lock:
            return self._room.wait_for(lambda: not self._queue or self.closed, timeout)

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
        assert isinstance(self._sock, ssl.SSLSocket)
        try:
            with self._lock:
                self._sock.do_handshake()
        except ssl.SSLWantReadError:
            return self._watch(READ)
        except ssl.SSLWantWriteError:
            return self._watch(WRITE)
        except OSError as error:
            return self._shut(f"handshake failed: {error}")
        return self._opened()

    def _opened(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        try:
            peer = self._authenticate(self._sock)
        except IdentityError as error:
            return self._shut(str(error))
        with self._lock:
            self.peer = peer
        self._events = 0  # so that the watch below replaces the handshake's callback
        self._watch(READ)
        self._on_open(self)
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
        self._reactor.call_soon(self._readable)  # others get their turn; TLS may hold bytes back

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
                self._on_frame(self, frame)
                if self.closed:
                    return False
        except FrameError as error:
            self._shut(str(error))
            return False
        return True

    def _writable(self) -> None:
        try:
            with self._lock:
                self._flush()
                if self._queued <= HIGH_WATER:
                    self._room.notify_all()
        except OSError as error:
            return self._shut(f"broken: {error}")
        return self._update_interest()

    def _flush(self) -> None:
        """Send as much of the queue as the socket takes. With the lock held."""
        while self._queue:
            try:
                if isinstance(self._sock, ssl.SSLSocket):
                    sent = self._sock.send(self._queue[0])
                else:
                    sent = self._sock.sendmsg(
                        [self._queue[i] for i in range(min(len(self._queue), _MAX_PARTS))]
                    )
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return
            self._queued -= sent
            while sent:
                if sent < len(self._queue[0]):
                    self._queue[0] = self._queue[0][sent:]
                    break
                sent -= len(self._queue.popleft())

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
            self._queued = 0
            self._room.notify_all()
        if self._deadline is not None:
            self._deadline.cancel()
        self._reactor.unwatch(self._sock.fileno())
        with contextlib.suppress(OSError):
            self._sock.close()
        self._on_close(self, reason)

    def _address(self, ask: Callable[[], Any]) -> str:
        if self._sock.family not in (socket.AF_INET, socket.AF_INET6):
            return ""
        try:
            return str(ask()[0])
        except OSError:
            return ""


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


class Listener:
    """Accepts TLS connections on an ephemeral port and makes a link of each.

    Args:
        make_link: called with the accepted, wrapped socket; starts the link.
    """

    def __init__(
        self,
        reactor: Reactor,
        context: ssl.SSLContext,
        make_link: Callable[[socket.socket], Any],
        address: str = "",
    ) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._sock = socket.create_server((address, 0), family=family, backlog=1024)
        self._sock.setblocking(False)
        self._reactor = reactor
        self._context = context
        self._make_link = make_link
        self.port: int = self._sock.getsockname()[1]

    def start(self) -> None:
        """Begin to accept. In the reactor's thread."""
        self._reactor.watch(self._sock.fileno(), READ, self._accept)

    def close(self) -> None:
        """Stop accepting. In the reactor's thread, or when it does not run."""
        self._reactor.unwatch(self._sock.fileno())
        self._sock.close()

    def _accept(self, _events: int) -> None:
        try:
            raw, peer = self._sock.accept()
        except BlockingIOError:
            return
        except OSError as error:  # out of descriptors: say so, the next turn tries again
            print(f"slurmmesh: cannot accept a connection: {error}", file=sys.stderr)
            return
        try:
            sock = wrap(raw, self._context, server_side=True)
        except OSError as error:
            raw.close()
            print(f"slurmmesh: connection from {peer[0]} failed: {error}", file=sys.stderr)
            return
        self._make_link(sock)


def wrap(raw: socket.socket, context: ssl.SSLContext, server_side: bool) -> ssl.SSLSocket:
    """Put TLS on a connected socket; the handshake is left to the link."""
    return context.wrap_socket(
        raw, server_side=server_side, do_handshake_on_connect=False, suppress_ragged_eofs=True
    )
