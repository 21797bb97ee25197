"""The floor: forked children, sockets and pickle, and nothing that makes a runtime of them.

Tensors go through a segment of memory that all share and that stays warm, or, over TCP, as raw
bytes. TCP has the job's mutual TLS 1.3 around it.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import pickle
import selectors
import socket
import struct
from collections.abc import Iterator
from typing import Any

from benchmarks.actor_runtime.tensors import as_bytes, filled, read

_HEAD = struct.Struct("<I")
_READ = 1 << 18
_BATCH = 256
_SHARED = 512 << 20


def _packed(*message: Any) -> bytes:
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _HEAD.pack(len(body)) + body


class Stream:
    """Messages over a connected socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._buffer = bytearray()

    def receive(self) -> list[Any]:
        """Wait for a message; all that are here. Empty at the end."""
        found: list[Any] = []
        while not found:
            data = self.sock.recv(_READ)
            if not data:
                break
            self._buffer += data
            found = list(self._messages())
        return found

    def _messages(self) -> Iterator[Any]:
        at, end = 0, len(self._buffer)
        while end - at >= _HEAD.size:
            (size,) = _HEAD.unpack_from(self._buffer, at)
            if end - at - _HEAD.size < size:
                break
            with memoryview(self._buffer) as view:
                yield pickle.loads(view[at + _HEAD.size : at + _HEAD.size + size])
            at += _HEAD.size + size
        del self._buffer[:at]

    def receive_into(self, tensor: Any) -> None:
        """Fill it with the raw bytes that follow."""
        with as_bytes(tensor) as view:
            at = 0
            while at < len(view):
                at += self.sock.recv_into(view[at:])

    def send_raw(self, tensor: Any) -> None:
        """Its bytes."""
        with as_bytes(tensor) as view:
            self.sock.sendall(view)


class Child:
    """What a child does: each method is an endpoint."""

    def __init__(self, stream: Stream, shared: mmap.mmap | None) -> None:
        self._stream = stream
        self._shared = shared
        self._tensor: Any = None

    def serve(self) -> None:
        """Answer in the order of the calls until the parent hangs up."""
        while messages := self._stream.receive():
            answers = []
            for number, name, args in messages:
                try:
                    answer = getattr(self, name)(*args)
                except Exception as error:
                    answer = error
                if number is not None:
                    answers.append(_packed(number, answer))
            if answers:
                self._stream.sock.sendall(b"".join(answers))

    def nothing(self) -> None:
        """Answer."""

    def keep(self, elements: int) -> None:
        """Make a tensor, which receives or is given."""
        self._tensor = filled(elements)

    def load(self) -> None:
        """Import torch."""
        import torch  # noqa: F401

    def take(self, elements: int) -> None:
        """Read what is in shared memory."""
        read(_view(self._shared, elements))

    def take_raw(self) -> None:
        """Read a tensor from the socket, which is sent once this says that it may come."""
        self._stream.sock.sendall(_packed(0, None))
        self._stream.receive_into(self._tensor)
        read(self._tensor)

    def give(self) -> None:
        """Put the tensor made before in shared memory."""
        _share(self._shared, self._tensor)

    def give_raw(self) -> None:
        """Send the tensor made before as raw bytes, before the answer."""
        self._stream.send_raw(self._tensor)

    def fail(self) -> None:
        """Raise."""
        raise ValueError("as it should")


def _share(shared: Any, tensor: Any) -> None:
    with as_bytes(tensor) as view:
        shared[: len(view)] = view


def _view(shared: Any, elements: int) -> Any:
    import torch

    return torch.frombuffer(shared, dtype=torch.float32, count=elements)


class Session:
    """See ``peers.Session``."""

    def __init__(self, transport: str) -> None:
        self._tls = _Tls() if transport == "tcp" else None
        self._streams: list[Stream] = []
        self._pids: list[int] = []
        self._coroutine: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    def spawn(self, procs: int, torch: bool) -> None:
        self._shared = None if self._tls else mmap.mmap(-1, _SHARED)
        self._streams, self._pids = [], []
        for _ in range(procs):
            ours, theirs = self._tls.pair() if self._tls else socket.socketpair()
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    for each in [ours, *(stream.sock for stream in self._streams)]:
                        each.close()
                    child = theirs if self._tls is None else self._tls.client(theirs)
                    Child(Stream(child), self._shared).serve()
                    code = 0
                finally:
                    os._exit(code)
            theirs.close()
            self._streams.append(Stream(self._tls.server(ours) if self._tls else ours))
            self._pids.append(pid)
        self._one = self._streams[0]
        self._everyone = selectors.DefaultSelector()
        for stream in self._streams:
            self._everyone.register(stream.sock, selectors.EVENT_READ, stream)
        self._ask_all("load" if torch else "nothing")

    def _ask(self, name: str, *args: Any) -> Any:
        self._one.sock.sendall(_packed(0, name, args))
        [(_, answer)] = self._one.receive()
        return answer

    def _ask_all(self, name: str) -> None:
        question = _packed(0, name, ())
        for stream in self._streams:
            stream.sock.sendall(question)
        missing = len(self._streams)
        while missing:
            for key, _ in self._everyone.select():
                missing -= len(key.data.receive())

    def pids(self) -> list[int]:
        return self._pids

    def call_one(self) -> None:
        self._ask("nothing")

    async def await_one(self) -> None:
        if self._coroutine is None:
            self._coroutine = await asyncio.open_unix_connection(sock=self._one.sock)
        reader, writer = self._coroutine
        writer.write(_packed(0, "nothing", ()))
        (size,) = _HEAD.unpack(await reader.readexactly(_HEAD.size))
        pickle.loads(await reader.readexactly(size))

    def call_all(self) -> None:
        self._ask_all("nothing")

    def burst(self, actors: int, calls: int) -> None:
        each = calls // actors
        for stream in self._streams[:actors]:
            _send_batches(stream, [_packed(i, "nothing", ()) for i in range(each)])
        for stream in self._streams[:actors]:
            missing = each
            while missing:
                missing -= len(stream.receive())

    def cast(self, messages: int) -> None:
        _send_batches(self._one, [_packed(None, "nothing", ()) for _ in range(messages)])
        self.call_one()

    def send(self, tensor: Any) -> None:
        if self._shared is not None:
            _share(self._shared, tensor)
            self._ask("take", len(tensor))
        else:
            self._ask("take_raw")
            self._one.send_raw(tensor)
            self._one.receive()

    def keep(self, elements: int) -> None:
        self._kept = filled(elements)
        self._ask("keep", elements)

    def fetch(self) -> Any:
        if self._shared is not None:
            self._ask("give")
            return _view(self._shared, len(self._kept))
        self._one.sock.sendall(_packed(0, "give_raw", ()))
        self._one.receive_into(self._kept)
        self._one.receive()
        return self._kept

    def fail(self) -> Exception | None:
        answer = self._ask("fail")
        return answer if isinstance(answer, Exception) else None

    def stop(self) -> None:
        self._everyone.close()
        for stream in self._streams:
            stream.sock.close()
        for pid in self._pids:
            os.waitpid(pid, 0)

    def close(self) -> None:
        """The children see that this process is gone."""


def _send_batches(stream: Stream, messages: list[bytes]) -> None:
    for start in range(0, len(messages), _BATCH):
        stream.sock.sendall(b"".join(messages[start : start + _BATCH]))


class _Tls:
    """The job's TLS 1.3, with a certificate on both ends."""

    def __init__(self) -> None:
        from slurmmesh.wire.identity import JobAuthority, client_context, server_context

        authority = JobAuthority("benchmark")
        self._server = server_context(authority.issue("controller"))
        self._client = client_context(authority.issue("host-0"))

    def pair(self) -> tuple[socket.socket, socket.socket]:
        """Two ends of a TCP connection."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            theirs = socket.create_connection(listener.getsockname())
            ours, _ = listener.accept()
        for end in (ours, theirs):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return ours, theirs

    def server(self, sock: socket.socket) -> socket.socket:
        """Put TLS on our end; the other has to do the same meanwhile."""
        return self._server.wrap_socket(sock, server_side=True)

    def client(self, sock: socket.socket) -> socket.socket:
        """Put TLS on the other end."""
        return self._client.wrap_socket(sock)
