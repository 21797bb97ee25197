"""How a replica's state goes from a living replica to a restarted one: authenticated and direct.

The donor listens on its fabric address and offers its state for one step at a time. Both sides
prove with the job's certificates who they are (mutual TLS 1.3) before a byte of state or pickle
is sent, tensors go from memory to memory, and nobody else's state is ever loaded.

What travels, after the handshake: the client sends :data:`REQUEST`; the donor answers with
:data:`REPLY`, then the header, then the tensors one after the other.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torchft.checkpointing.transport import CheckpointTransport

from slurmmesh.errors import IdentityError
from slurmmesh.recovery.packing import Packed, make_room, pack
from slurmmesh.wire.addresses import family_of
from slurmmesh.wire.identity import Credentials, client_context, peer_name, server_context
from slurmmesh.wire.storages import memory_of
from slurmmesh.wire.strangers import Guests, Refusals

_log = logging.getLogger(__name__)

REQUEST = struct.Struct("<4sQ")
"""Magic and the step whose state is wanted."""
REPLY = struct.Struct("<4sBQQ")
"""Magic, 0 for "here it is" or 1 for "not this step", the step offered, length of the header."""

_MAGIC = b"SMst"
_HANDSHAKE_S = 5.0
_MAX_HEADER = 1 << 30
_MAX_GUESTS = 64
"""Connections in their handshake at one time, each with a thread of its own."""
_NO_STEP = (1 << 64) - 1


class StateUnavailable(ConnectionError):
    """The donor does not offer the state of this step (any more), or went away."""


class SecureTransport(CheckpointTransport[Any]):
    """TorchFT's CheckpointTransport over mutual TLS.

    Args:
        address: the fabric address to listen on.
        credentials: this process's certificate, of the job.
        timeout_s: longest silence on a connection before it is given up.
        give_up: asked while a donor does not offer the state yet; true ends the wait.
    """

    def __init__(
        self,
        address: str,
        credentials: Credentials,
        timeout_s: float,
        give_up: Callable[[], bool] = lambda: False,
    ) -> None:
        self._name = credentials.name
        self._timeout_s = timeout_s
        self._give_up = give_up
        self._fetching: socket.socket | None = None
        self._server_context = server_context(credentials)
        self._client_context = client_context(credentials)
        self._changed = threading.Condition()
        self._offer: tuple[int, Packed] | None = None
        self._sending = 0
        self._guests: Guests[socket.socket] = Guests(_MAX_GUESTS)
        self._refusals = Refusals(_log.warning)
        self._closed = False
        self._listener = socket.create_server((address, 0), family=family_of(address), backlog=128)
        self._address = (address, int(self._listener.getsockname()[1]))
        threading.Thread(target=self._accept, name="state-server", daemon=True).start()

    def metadata(self) -> str:
        """Where and from whom the state can be fetched: ``name@host:port``."""
        host, port = self._address
        return f"{self._name}@{host}:{port}"

    # ------------------------------------------------------------------ the donor's side

    def send_checkpoint(
        self, dst_ranks: list[int], step: int, state_dict: Any, timeout: timedelta
    ) -> None:
        """Offer the state of ``step`` until :meth:`disallow_checkpoint`. Returns at once.

        The tensors are not copied: they must not change until then.
        """
        packed = pack(state_dict)
        with self._changed:
            self._offer = (step, packed)
            self._changed.notify_all()

    def disallow_checkpoint(self) -> None:
        """Offer nothing more; returns when what is being sent has been sent (or failed)."""
        with self._changed:
            self._offer = None
            self._changed.wait_for(lambda: self._sending == 0)

    def shutdown(self, wait: bool = True) -> None:
        """Stop listening. With ``wait``, let transfers that are under way end first."""
        with self._changed:
            self._closed = True
            self._offer = None
            if wait:
                self._changed.wait_for(lambda: self._sending == 0)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._refusals.flush()

    def _accept(self) -> None:
        while True:
            try:
                connection, peer = self._listener.accept()
            except OSError:
                if self._closed:
                    return
                time.sleep(0.1)  # out of descriptors, or the peer left already
                continue
            connection.settimeout(_HANDSHAKE_S)
            with self._changed:
                crowded_out = self._guests.add(connection, peer[0])
                if crowded_out is not None:
                    with contextlib.suppress(OSError):
                        crowded_out.shutdown(socket.SHUT_RDWR)  # its thread then goes on
            threading.Thread(
                target=self._serve, args=(connection, peer[0]), name="state-sender", daemon=True
            ).start()

    def _serve(self, connection: socket.socket, address: str) -> None:
        try:
            try:
                wanted, secure = self._admit(connection)
            finally:
                with self._changed:
                    self._guests.remove(connection)
                    connection.close()
            with secure:
                self._answer(secure, wanted)
        except IdentityError as error:
            self._refusals.add(f"refused {address}, who asked for this replica's state: {error}")
        except OSError as error:
            _log.warning("sending state to %s failed: %s", address, error)

    def _admit(self, connection: socket.socket) -> tuple[int, ssl.SSLSocket]:
        """Handshake and request; raises unless the peer proves to be a host of this job."""
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # The secure socket takes a descriptor of its own: this one stays to be shut down by.
            secure = self._server_context.wrap_socket(connection.dup(), server_side=True)
        except (OSError, ValueError) as error:
            raise IdentityError(f"no valid certificate of this job ({error})") from error
        try:
            peer_name(secure, "host")
            magic, step = REQUEST.unpack(_receive(secure, REQUEST.size))
            if magic != _MAGIC:
                raise IdentityError("it does not speak this protocol")
        except BaseException:
            secure.close()
            raise
        return step, secure

    def _answer(self, secure: ssl.SSLSocket, wanted: int) -> None:
        packed = self._take(wanted)
        secure.settimeout(self._timeout_s)
        if packed is None:
            offered = self._offer[0] if self._offer else _NO_STEP
            secure.sendall(REPLY.pack(_MAGIC, 1, offered, 0))
            return
        try:
            secure.sendall(REPLY.pack(_MAGIC, 0, wanted, len(packed.header)) + packed.header)
            for view in packed.views:
                secure.sendall(view)
        finally:
            with self._changed:
                self._sending -= 1
                self._changed.notify_all()

    def _take(self, wanted: int) -> Packed | None:
        """The offered state if it is that of step ``wanted``; the caller then is a sender."""
        with self._changed:
            if self._offer is None or self._offer[0] != wanted:
                return None
            self._sending += 1
            return self._offer[1]

    # ------------------------------------------------------------------ the receiver's side

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> Any:
        """Fetch the state of ``step`` from the donor that gave ``metadata``.

        The donor may take its offer a moment later than the quorum that names it, so it is
        asked again until ``timeout``.

        Raises:
            IdentityError: who answered is not the donor.
            StateUnavailable: it offers no such state, or broke off.
        """
        name, _, location = metadata.rpartition("@")
        host, _, port = location.rpartition(":")
        deadline = time.monotonic() + timeout.total_seconds()
        pause_s = 0.005
        while True:
            try:
                return self._fetch(name, host, int(port), step)
            except _NotYet as error:
                if time.monotonic() + pause_s > deadline or self._give_up():
                    raise StateUnavailable(str(error)) from None
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.1)

    def break_off(self) -> None:
        """Make a fetch that another thread is in fail now: its donor is known to be dead."""
        fetching = self._fetching
        if fetching is not None:
            with contextlib.suppress(OSError):
                fetching.shutdown(socket.SHUT_RDWR)

    def _fetch(self, name: str, host: str, port: int, step: int) -> Any:
        try:
            plain = socket.create_connection((host, port), timeout=self._timeout_s)
        except OSError as error:
            raise StateUnavailable(f"donor {name} at {host}:{port} is gone: {error}") from error
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # The secure socket takes the descriptor over; this one stays to be shut down by.
            self._fetching = plain.dup()
            with self._fetching, plain, self._prove(plain, name) as secure:
                return self._receive_state(secure, step)
        except (StateUnavailable, IdentityError):
            raise
        except OSError as error:
            raise StateUnavailable(f"donor {name} broke off: {error}") from error
        finally:
            self._fetching = None

    def _prove(self, plain: socket.socket, name: str) -> ssl.SSLSocket:
        """The connection, once the other side has proved to be the donor of this name."""
        try:
            secure = self._client_context.wrap_socket(plain)
        except ssl.SSLError as error:
            raise IdentityError(f"this is not donor {name}: {error}") from error
        shown = peer_name(secure)
        if shown != name:
            secure.close()
            raise IdentityError(f"this is {shown}, not donor {name}")
        return secure

    @staticmethod
    def _receive_state(secure: ssl.SSLSocket, step: int) -> Any:
        secure.sendall(REQUEST.pack(_MAGIC, step))
        magic, refused, offered, length = REPLY.unpack(_receive(secure, REPLY.size))
        if magic != _MAGIC or length > _MAX_HEADER:
            raise StateUnavailable("the donor does not speak this protocol")
        if refused:
            known = "none" if offered == _NO_STEP else f"that of step {offered}"
            raise _NotYet(f"the donor offers no state of step {step} ({known})")
        state, tensors = make_room(bytes(_receive(secure, length)))
        for tensor in tensors:
            _receive_into(secure, memory_of(tensor))
        return state


class _NotYet(StateUnavailable):
    """The donor answered, but does not offer that step now."""


def _receive(connection: ssl.SSLSocket, length: int) -> bytearray:
    buffer = bytearray(length)
    _receive_into(connection, memoryview(buffer))
    return buffer


def _receive_into(connection: ssl.SSLSocket, view: memoryview) -> None:
    while len(view):
        count = connection.recv_into(view)
        if count == 0:
            raise ConnectionResetError("the connection ended early")
        view = view[count:]
