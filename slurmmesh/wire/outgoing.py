"""What is to be sent over a socket, in order, and how much of it is sent.

A signal handler may raise at any moment: what is queued and how much of it is sent change in
single steps of the interpreter that no handler can split. Only a write over TLS has no such step:
the ssl module runs handlers amid it. If one raises there nobody knows what was sent.
"""

from __future__ import annotations

import array
import collections
import itertools
import os
import socket
import ssl
from collections.abc import Iterable, Sequence
from typing import Any

from slurmmesh.wire.frames import Buffer

_MAX_PARTS = 64


class Outgoing:
    """The queue of one connection. Whoever uses it holds the link's lock.

    Positions count the bytes of the stream from its beginning.

    Attributes:
        queue: what is to be sent, each part with the position at which it ends, and the
            descriptors that go with its first byte.
        is_torn: nobody knows any more how much of it is sent: the connection must be closed.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._tls: Any = sock if isinstance(sock, ssl.SSLSocket) else None
        self.queue: collections.deque[tuple[int, Buffer, tuple[int, ...]]] = collections.deque()
        self.is_torn = False
        # Bytes sent: those up to some write, and those of each write since then.
        self._progress: tuple[int, list[int]] = (0, [])

    @property
    def sent(self) -> int:
        """Position up to which all is sent."""
        base, writes = self._progress
        return base + sum(writes) if writes else base

    @property
    def end(self) -> int:
        """Position at which all that was ever queued ends."""
        return self.queue[-1][0] if self.queue else self.sent

    def put(self, parts: Sequence[Buffer], fds: tuple[int, ...] = ()) -> int:
        """Queue parts, the descriptors with the first; returns the position at which they end."""
        end = self.end
        if len(parts) == 1:
            end += len(parts[0])
            self.queue.append((end, parts[0], fds))
            return end
        entries = []
        for part in parts:
            end += len(part)
            entries.append((end, part, fds))
            fds = ()
        self.queue.extend(entries)
        return end

    def flush(self) -> None:
        """Send as much as the socket takes. Raises OSError if the connection is broken."""
        queue = self.queue
        try:
            while not self.is_torn:
                sent = self.sent
                while queue and queue[0][0] <= sent:
                    if queue[0][2]:
                        close_all(queue[0][2])
                    queue.popleft()
                self._progress = (sent, [])
                if not queue:
                    return
                # Write and note in one step of the interpreter.
                self._progress[1].extend(self._write(sent))
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return
        except OSError:
            raise
        except BaseException:
            self.is_torn = self._tls is not None
            raise

    def send_alone(self, data: Buffer) -> int:
        """Queue and send ``data``, with as few steps as it takes; returns where it ends.

        Only while nothing else is queued, and not over TLS.
        """
        base, writes = self._progress
        begin = base + sum(writes) if writes else base
        end = begin + len(data)
        writes = []
        self._progress = (begin, writes)
        self.queue.append((end, data, ()))
        try:
            writes.extend(map(self._sock.send, (data,)))
        except OSError:
            return end  # it is full, or broken: the reading side tells that
        if writes[0] == len(data):
            self.queue.popleft()
            self._progress = (end, [])
        return end

    def drop(self) -> None:
        """Drop what is queued, and close its descriptors."""
        while self.queue:
            close_all(self.queue.popleft()[2])

    def _write(self, sent: int) -> Iterable[int]:
        """A write of what comes next, which takes place when it is asked for its count."""
        end, first, fds = self.queue[0]
        begin = len(first) - (end - sent)
        if begin:
            first = memoryview(first)[begin:]
        if self._tls is not None:
            # Below the socket's own method, whose many steps a signal handler can split.
            return map(self._tls._sslobj.write, (first,))
        if fds and not begin:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
            return map(self._sock.sendmsg, ([first],), ([rights],))
        if len(self.queue) == 1:
            return map(self._sock.send, (first,))
        parts = [first]
        for _, part, with_fds in itertools.islice(self.queue, 1, _MAX_PARTS):
            if with_fds:
                break
            parts.append(part)
        return map(self._sock.sendmsg, (parts,))


def close_all(fds: Iterable[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        os.close(fd)
