"""Links: frames over a connected socket.

A link is plain over a unix socket whose peer has our uid, or TLS over TCP. Until the peer
has proved who it is, no byte of it is decoded.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import socket
import ssl
import threading
import weakref
from collections.abc import Callable
from typing import Any

from slurmmesh.errors import FrameError, LinkClosed
from slurmmesh.wire.driver import Driver
from slurmmesh.wire.frames import MAX_FDS, SHARED, Buffer, Frame, FrameDecoder, Received
from slurmmesh.wire.identity import Revoked, handshake_error
from slurmmesh.wire.outgoing import Outgoing, close_all
from slurmmesh.wire.reactor import READ, WRITE, Reactor, Timer, in_loop_thread
from slurmmesh.wire.sent import Sent
from slurmmesh.wire.sharing import Placed, Sharing

HANDSHAKE_TIMEOUT_S = 20.0
TORN = "a signal handler raised amid a TLS record"
HIGH_WATER = 64 << 20
"""Bytes queued on a link from which on a sending thread waits for the peer to read."""

_CHUNK = 1 << 16
_READS_A_TURN = 64
ONE_READ = ((_CHUNK,), (socket.CMSG_SPACE(4 * MAX_FDS),), (socket.MSG_CMSG_CLOEXEC,))
"""Arguments of ``recvmsg``, each for ``map``: bytes, room for descriptors, not inherited."""


class Link:
    """One connection.

    Callbacks run in the reactor's thread: ``on_open(link)`` once the peer is known (``peer`` is
    set), ``on_frame(link, frame)`` for each frame in order, ``on_close(link, reason)`` once,
    after the last frame. Frames may be sent from any thread and keep the order of calls.

    A signal handler may raise in the middle of a send or of a receive, or send itself: what is
    queued, how much of it is sent and what has come change in single steps that no handler can
    split. A frame at whose handling it raised is handed over again.

    Args:
        authenticate: names the peer of the finished handshake, or raises IdentityError.
        first: of links that have frames at one time, this is read before the others, to its end.
        driver: of the reactor, where the threads that wait for room run it themselves.
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
        first: bool = False,
        driver: Driver | None = None,
    ) -> None:
        self.peer = ""
        self.closed = False
        self._reactor = reactor
        self._sock = sock
        self._tls = sock if isinstance(sock, ssl.SSLSocket) else None
        self._is_unix = sock.family == socket.AF_UNIX
        self._authenticate = authenticate
        self._on_frame, self._on_open, self._on_close = on_frame, on_open, on_close
        self._first = first
        self._driver = driver
        self._decoder = FrameDecoder()
        self._sharing = Sharing(reactor, self._post_late) if self.passes_fds else None
        # One lock for both directions: OpenSSL allows one call at a time on a connection.
        self._lock = threading.RLock()
        self._wakers: list[Callable[[], Any]] = []
        self._out = Outgoing(sock)
        self._posting = 0
        self._finishing = False
        self._events = 0
        self._deadline: Timer | None = None
        sock.setblocking(False)
        if not self._is_unix:
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

    @property
    def passes_fds(self) -> bool:
        """Whether descriptors can go over it: both ends are on one machine."""
        return self._is_unix and self._tls is None

    def send(self, frame: Frame) -> None:
        """Send a frame. Afterwards the caller may change what its buffers are views of.

        Waits until the buffers have left, and while much is queued; not in a loop's thread, of
        whichever loop: it would stand still until the peer reads.

        Raises:
            LinkClosed: the link is closed.
            FrameError: the frame is over the limits; nothing was sent.
        """
        self.wait_for_room(frame, self.post(frame))

    def post(self, frame: Frame, fds: tuple[int, ...] = ()) -> int:
        """Send what the socket takes now and queue the rest, without waiting.

        Args:
            fds: descriptors for the peer, where ``passes_fds``. They are the link's from here on,
                which closes them.

        Returns the position in the stream at which the frame ends. Raises as ``send`` does.
        """
        return self.post_placed(frame, self.place(frame) if frame.buffers else None, fds)

    def place(self, frame: Frame) -> Placed | None:
        """Copy a large payload to where the peer finds it, for ``post_placed``; without a lock."""
        if frame.buffers and self._sharing is not None:
            frame.parts()
            return self._sharing.place(frame)
        return None

    def post_placed(self, frame: Frame, placed: Placed | None, fds: tuple[int, ...] = ()) -> int:
        """``post`` of a frame whose payload has its place. With whatever lock held."""
        if self._posting == (me := threading.get_ident()):
            # We are in a signal handler that interrupted a post: what that is at must not change.
            self._reactor.call_soon(self._post_late, frame, placed, *fds)
            return 0
        if placed is not None:
            frame, fds = placed.frame, placed.fds + fds
        parts = frame.parts(len(fds))
        with self._lock:
            try:
                self._posting = me
                position = self._enqueue(parts, fds)
            finally:
                self._posting = 0
                if self._out.queue:
                    self._reactor.call_soon(self._update_interest)
            if placed is not None:
                placed.sent()
        return position

    def _enqueue(self, parts: list[Buffer], fds: tuple[int, ...]) -> int:
        if self.closed:
            close_all(fds)
            raise LinkClosed(f"the link to {self.peer or 'a peer'} is closed")
        direct = not self._out.queue and self.peer
        end = self._out.put(parts, fds)
        if direct:
            with contextlib.suppress(OSError):  # a broken link is told by the reading side
                self._out.flush()
        return end

    def _post_late(self, frame: Frame, placed: Placed | None = None, *fds: int) -> None:
        with contextlib.suppress(LinkClosed):
            self.post_placed(frame, placed, fds)

    def wait_for_room(self, frame: Frame, position: int) -> None:
        """Wait as ``send`` does, after ``post`` of this frame gave this position."""
        if not in_loop_thread():
            self.wait_sent(position if frame.buffers else position - HIGH_WATER)

    def wait_sent(self, position: int | None = None, timeout: float | None = None) -> bool:
        """Wait until the stream has left this process up to a position; None: all of it.

        False if ``timeout`` seconds were not enough. Not in the reactor's thread.
        """
        with self._lock:
            goal = self._out.end if position is None else position
        sent = Sent(self, goal, self._wakers)
        if sent.done():
            return True
        return self._driver.wait(sent, timeout) if self._driver is not None else sent.wait(timeout)

    @property
    def sent_bytes(self) -> int:
        """Position in the stream up to which it has left this process."""
        return self._out.sent

    @property
    def has_unsent(self) -> bool:
        """Whether something waits for the socket to take it."""
        return bool(self._out.queue)

    def when_sent(self, callback: Callable[[], Any]) -> None:
        """Call back once all that is queued now has left, or never will. In the reactor's thread.

        ``callback`` must not wait.
        """
        sent = Sent(self, self._out.end, self._wakers)

        def wake() -> None:
            if sent.done():
                sent.remove_waker(wake)
                self._reactor.call_soon(callback)

        sent.add_waker(wake)

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

    @property
    def is_broken(self) -> bool:
        """Whether the peer says nothing more; what it has said may not have been read yet."""
        poll = select.poll()
        poll.register(self._sock.fileno(), select.POLLRDHUP)
        return bool(poll.poll(0))

    def drain(self) -> None:
        """Read whatever has arrived already. In the reactor's thread."""
        going_on = bool(self.peer) and self._decode()  # what came when a signal handler raised
        while going_on:
            going_on = self._receive()

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
        try:
            for _ in itertools.repeat(None) if self._first else range(_READS_A_TURN):
                if self.closed or not self._receive() or not self._more:
                    return
        except BaseException:  # a signal handler's: nobody tells of what has come once more
            self._reactor.call_soon(self._read_on)
            raise
        # Others get their turn. The kernel tells what is still there, but for what OpenSSL holds.
        if self._tls is not None and self._tls.pending():
            self._reactor.call_soon(self._readable)

    def _read_on(self) -> None:
        if self._decode():
            self._readable()

    def _receive(self) -> bool:
        """Read once. False when nothing more is there now."""
        decoder = self._decoder
        space = decoder.space()
        self._more = True
        try:
            # Read and note in one step of the interpreter.
            if self._tls is not None:
                came = self._receive_tls(space)
            elif space is not None:
                counts = decoder.counts
                counts.extend(map(self._sock.recv_into, (space,)))
                came = counts[-1] > 0
            else:
                incoming = decoder.incoming
                if self._is_unix:
                    incoming.extend(map(self._sock.recvmsg, *ONE_READ))
                else:
                    incoming.extend(
                        zip(map(self._sock.recv, (_CHUNK,)), *_NO_ANCILLARY, strict=False)
                    )
                came = len(incoming[-1][0]) > 0
                self._more = self._is_more(incoming[-1])
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except ssl.SSLWantWriteError:
            self._watch(READ | WRITE)
            return False
        except OSError as error:
            if self._decode():  # what came before, when a signal handler raised
                self._shut(f"broken: {error}")
            return False
        going_on = self._decode()
        if going_on and not came:
            self._shut("closed by the peer" if decoder.idle else "cut in the middle of a frame")
            return False
        return going_on

    def _decode(self) -> bool:
        """Handle the frames that have come. False if the link is closed, or was meanwhile."""
        try:
            for frame in () if self.closed else self._decoder.feed():
                if frame.flags & SHARED:
                    self._receive_shared(frame)
                else:
                    self._reactor.guard(self._on_frame, self, frame)
                if self.closed:
                    break
        except (FrameError, MemoryError) as error:
            self._shut(str(error) or "no memory for a frame")
        if self.closed:
            self._decoder.forsake()
        return not self.closed

    def _receive_shared(self, frame: Frame) -> None:
        if self._sharing is None:
            raise FrameError("a frame in shared memory, from another machine")
        self._sharing.receive(frame, lambda: self._reactor.guard(self._on_frame, self, frame))

    @staticmethod
    def _is_more(read: Received) -> bool:
        """Whether to look again at once; else the loop tells. Descriptors end a read."""
        return len(read[0]) == _CHUNK or len(read[1]) > 0

    def _receive_tls(self, space: memoryview | None) -> bool:
        # Below the socket's own methods, whose many steps a signal handler can split.
        tls: Any = self._tls._sslobj  # type: ignore[union-attr]
        decoder = self._decoder
        with self._lock:
            try:
                if space is not None:
                    decoder.counts.extend(map(tls.read, (len(space),), (space,)))
                    return decoder.counts[-1] > 0
                decoder.incoming.extend(zip(map(tls.read, (_CHUNK,)), *_NO_ANCILLARY, strict=False))
                size = len(decoder.incoming[-1][0])
                self._more = size == 1 << 14 or tls.pending() > 0  # or a full record of TLS
                return size > 0
            except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                return False
            except OSError:
                raise
            except BaseException:  # a signal handler's, which the ssl module runs amid a read
                self._shut(TORN)  # what was read then is lost
                raise

    def _writable(self) -> None:
        if self.closed:
            return
        try:
            with self._lock:
                self._out.flush()
                self._tell_room()
                if self._finishing and not self._out.queue:
                    # Not the method of an SSLSocket, which would forget about TLS.
                    socket.socket.shutdown(self._sock, socket.SHUT_WR)
        except OSError as error:
            self.drain()  # the peer may have said something before it went
            return self._shut(f"broken: {error}")
        return self._update_interest()

    def _update_interest(self) -> None:
        if self._out.is_torn:
            self._shut(TORN)
        elif not self.closed and self.peer:
            self._watch(READ | WRITE if self._out.queue else READ)

    def _watch(self, events: int) -> None:
        if events != self._events or not self.peer:
            self._events = 0  # not known, if a signal handler raises in here
            callback = self._ready if self.peer else self._handshake
            self._reactor.watch(self._sock.fileno(), events, callback, self._first)
            self._events = events

    def _shut(self, reason: str) -> None:
        if self.closed:
            return
        try:
            self._end(reason)
        except BaseException:
            if self.closed and self._reactor.raising:  # a signal handler's
                self._reactor.call_soon(self._end, reason)
            raise

    def _end(self, reason: str) -> None:
        with self._lock:
            self.closed = True
            self._out.drop()
            self._tell_room()
        _open_links.discard(self)
        self._decoder.forsake(but_handed=True)
        if self._sharing is not None:
            self._sharing.close()
        if self._deadline is not None:
            self._deadline.cancel()
        self._reactor.unwatch(self._sock.fileno())
        with contextlib.suppress(OSError):
            self._sock.close()
        self._on_close(self, reason)

    def _forget(self) -> None:
        """In a forked child: the connection is the parent's."""
        self._lock = threading.RLock()
        self.closed = True
        self._out.drop()
        if self._sharing is not None:
            self._sharing.forget()
        with contextlib.suppress(OSError):
            self._sock.close()

    def _tell_room(self) -> None:
        if self._driver is not None:
            self._driver.poke()
        for wake in list(self._wakers):
            wake()


_NO_ANCILLARY: tuple[Any, ...] = (([],), (0,), (None,))
"""What ``recvmsg`` would give besides the bytes."""


_open_links: weakref.WeakSet[Link] = weakref.WeakSet()


def cut_off(revoked: Revoked) -> None:
    """Close this process's TLS links to members that are revoked.

    Args:
        revoked: of the credentials that the links were made with; those of other jobs stay.
    """
    while True:
        with contextlib.suppress(RuntimeError):  # another thread made a link meanwhile
            links = list(_open_links)
            break
    for link in links:
        if (
            link.peer in revoked
            and link._tls is not None
            and getattr(link._tls.context, "revoked", None) is revoked
        ):
            link.close(f"the certificate of {link.peer} is revoked")


def _after_fork_in_child() -> None:
    """A forked child has copies of its parent's connections. It must neither speak on them nor
    keep them open when the parent is gone."""
    for link in list(_open_links):
        link._forget()
    _open_links.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
