"""Which TCP connections a piece of native code opened, and how to cut them from any thread.

Gloo gives no way to interrupt a collective: it ends when data comes, when a peer's socket
closes, or at its timeout, and Python may not free what a blocked thread still uses. Cutting
the connections underneath is safe from anywhere: both ends see them close and fail at once.

The connections are found by difference: Gloo's sockets are those that appeared while it was
being set up and lack the close-on-exec flag, which Python, Rust and c10d always set; the store
client used to set it up is known by its port. Each is duplicated, so that the handle stays valid
(and never names another file) whatever the native code does with its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import threading
import time

_SOCKET = re.compile(r"socket:\[(\d+)\]")
_SWEEP_PAUSE_S = 0.005


def _sockets() -> dict[int, int]:
    """fd → inode of this process's sockets."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            match = _SOCKET.fullmatch(os.readlink(f"/proc/self/fd/{name}"))
            if match:
                found[int(name)] = int(match.group(1))
    return found


def _duplicate(fd: int, inode: int, peer_port: int) -> socket.socket | None:
    """A second handle on a socket of native code; None if it is gone or something else."""
    try:
        closes_on_exec = fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
        copy = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 0)
    except OSError:
        return None
    if os.fstat(copy).st_ino != inode:
        os.close(copy)
        return None
    handle = socket.socket(fileno=copy)
    if _is_ours(handle, bool(closes_on_exec), peer_port):
        return handle
    handle.close()
    return None


def _is_ours(handle: socket.socket, closes_on_exec: bool, peer_port: int) -> bool:
    is_tcp = handle.family in (socket.AF_INET, socket.AF_INET6)
    if not is_tcp or handle.type != socket.SOCK_STREAM:
        return False
    if handle.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return False
    if not closes_on_exec:
        return True
    try:
        return int(handle.getpeername()[1]) == peer_port
    except OSError:
        return False


def _cut(handle: socket.socket) -> None:
    with contextlib.suppress(OSError):  # not connected any more
        handle.shutdown(socket.SHUT_RDWR)


class ConnectionGuard:
    """Holds the connections of one process group after the other.

    ``begin`` before the group is set up, ``complete`` after it, ``release`` before the next;
    ``cut`` at any time from any thread. While the group is being set up, ``cut`` keeps cutting
    what it opens until ``complete`` or ``release`` is called.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._before: frozenset[int] | None = None
        self._store_port = 0
        self._handles: list[socket.socket] = []
        self._generation = 0

    def begin(self, store_port: int) -> None:
        """Remember what is open now; what appears from here on belongs to the group.

        Connections to ``store_port`` made from here on belong to it too.
        """
        self.release()
        with self._lock:
            self._before = frozenset(_sockets().values())
            self._store_port = store_port
            self._generation += 1

    def complete(self) -> None:
        """Take hold of what the group opened."""
        with self._lock:
            if self._before is not None:
                self._handles = self._opened(self._before)
                self._before = None

    def cut(self) -> None:
        """Close the group's connections in both directions; no memory is freed."""
        with self._lock:
            generation = self._generation
            for handle in self._handles:
                _cut(handle)
        while True:
            with self._lock:
                if self._before is None or self._generation != generation:
                    return
                for handle in self._opened(self._before):
                    _cut(handle)
                    handle.close()
            time.sleep(_SWEEP_PAUSE_S)

    def release(self) -> None:
        """Cut and let go of everything."""
        with self._lock:
            for handle in self._handles:
                _cut(handle)
                handle.close()
            self._handles = []
            self._before = None

    def _opened(self, before: frozenset[int]) -> list[socket.socket]:
        candidates = (
            _duplicate(fd, inode, self._store_port)
            for fd, inode in _sockets().items()
            if inode not in before
        )
        return [handle for handle in candidates if handle is not None]
