"""TorchFT's Gloo process group, made abortable and given an explicit address.

What it adds: it listens on the fabric address it is told (Gloo by itself resolves the host's
name, which is 127.0.1.1 on many machines); it can be cut from another thread the moment a peer
is known to be dead, in a collective as well as while it is being set up; and it never waits for
a member that is known to be dead.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import PrefixStore, ProcessGroup, Store, TCPStore
from torch.distributed import ProcessGroupGloo as Backend
from torchft.process_group import ProcessGroupGloo

from slurmmesh.recovery.membership import Membership
from slurmmesh.recovery.sockets import ConnectionGuard

_STORE_PAUSE_S = 0.01


class PeerDead(RuntimeError):
    """A member of the quorum is known to be dead, so no group is made with it."""


class AbortableGloo(ProcessGroupGloo):
    """A Gloo process group between replicas, for CPU tensors (and GPU tensors through the host).

    Args:
        address: this host's address on the fabric.
        membership: who is in the quorum; shared with whoever is told of deaths.
        timeout: for collectives whose peers are silent.
        connect_timeout: for reaching the peers when a new quorum is formed.
    """

    def __init__(
        self,
        address: str,
        membership: Membership,
        timeout: timedelta,
        connect_timeout: timedelta,
    ) -> None:
        super().__init__(timeout=timeout)
        self._membership = membership
        self._connect_timeout = connect_timeout
        self._guard = ConnectionGuard()
        self._device = Backend.create_device(hostname=address, lazy_init=False)
        self.configured_at = 0.0
        """When the group was last set up (seconds since the epoch)."""

    def configure(
        self,
        store_addr: str,
        replica_id: str,
        rank: int,
        world_size: int,
        quorum_id: int | None = None,
        group_rank: int | None = None,
        group_world_size: int | None = None,
        global_ranks: list[int] | None = None,
    ) -> None:
        """Connect to the members of a new quorum (called by TorchFT's Manager).

        Raises:
            PeerDead: a member is known to be dead, or was reported dead meanwhile.
            TimeoutError, RuntimeError: the members could not be reached.
        """
        self.abort(errored=False)
        location, _, prefix = store_addr.partition("/")
        host, _, port = location.rpartition(":")
        with self._setup(int(port)):
            store = PrefixStore(prefix, self._open_store(host.strip("[]"), int(port)))
            self._pg = self._create_pg(store, rank, world_size)
        self.configured_at = time.time()

    @contextlib.contextmanager
    def _setup(self, store_port: int) -> Iterator[None]:
        """Watch the sockets that the body opens; on failure close them all."""
        self._guard.begin(store_port)
        try:
            self._refuse_dead()
            yield
            self._guard.complete()
            self._refuse_dead()
        except BaseException:
            self._pg = None  # type: ignore[assignment]
            self._guard.release()
            raise

    def _refuse_dead(self) -> None:
        dead = self._membership.dead_members()
        if dead:
            raise PeerDead(f"replica {', '.join(map(str, dead))} died while the quorum was formed")

    def _open_store(self, host: str, port: int) -> Store:
        """Connect to the store of the quorum's first member, unless that one dies meanwhile.

        TorchFT's own client would go on trying a dead store until its timeout.
        """
        deadline = time.monotonic() + self._connect_timeout.total_seconds()
        while True:
            self._refuse_dead()
            try:
                socket.create_connection((host, port), timeout=1.0).close()
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no store at {host}:{port}: {error}") from error
                time.sleep(_STORE_PAUSE_S)
        return TCPStore(
            host_name=host,
            port=port,
            is_master=False,
            wait_for_workers=False,
            timeout=self._connect_timeout,
        )

    def _create_pg(self, store: Store, rank: int, world_size: int) -> ProcessGroup:
        return _make_group(
            store, rank, world_size, self._device, self._timeout, self._connect_timeout
        )

    def abort(self, errored: bool = True) -> None:
        """End this group: its connections close, so that peers in a collective fail at once.

        Call it from the thread that uses the group; :meth:`cut` is for any other.
        """
        self._guard.release()
        self._pg = None  # type: ignore[assignment]

    def cut(self) -> None:
        """Make a collective (or the connecting) that another thread is in fail now."""
        self._guard.cut()

    def peer_died(self, replica: int, incarnation: int) -> bool:
        """Take news of a death; cuts the group if that replica is in it. True if it was."""
        is_member = self._membership.died(replica, incarnation)
        if is_member:
            self.cut()
        return is_member

    def allreduce(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        """As ProcessGroup.allreduce.

        Raises:
            RuntimeError: the group was aborted, or the collective failed.
        """
        if self._pg is None:
            raise RuntimeError("the replicas' process group was aborted; the next quorum makes one")
        return super().allreduce(tensors, opts)


def make_group(
    store: Store, rank: int, size: int, address: str, timeout: timedelta
) -> ProcessGroup:
    """A Gloo process group that listens on ``address``."""
    device = Backend.create_device(hostname=address, lazy_init=False)
    return _make_group(store, rank, size, device, timeout, timeout)


def _make_group(
    store: Store,
    rank: int,
    size: int,
    device: Any,
    timeout: timedelta,
    connect_timeout: timedelta,
) -> ProcessGroup:
    options = Backend._Options()  # type: ignore[attr-defined]
    options._devices = [device]
    # A member that dies just now never dials in, and there is no socket yet that could be cut.
    options._timeout = connect_timeout
    backend = Backend(store, rank, size, options)
    backend._set_default_timeout(timeout)
    backend._set_sequence_number_for_group()
    group = ProcessGroup(store, rank, size)
    group._set_default_backend(ProcessGroup.BackendType.GLOO)
    kinds = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    for kind in kinds:
        group._register_backend(torch.device(kind), ProcessGroup.BackendType.GLOO, backend)
    return group
