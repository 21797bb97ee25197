"""Servers of torch and TorchFT, bound to one address: by themselves they listen on all."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import torchft.manager
from torch.distributed import TCPStore

from slurmmesh.wire.addresses import family_of, in_url


def make_store(address: str) -> TCPStore:
    """Host a TCPStore on a free port of ``address``."""
    listener = socket.socket(family_of(address), socket.SOCK_STREAM)
    try:
        listener.bind((address, 0))
        port = int(listener.getsockname()[1])
    except BaseException:
        listener.close()
        raise
    # The store closes the descriptor.
    return TCPStore(
        address, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )


@contextlib.contextmanager
def manager_at(address: str) -> Iterator[None]:
    """Have the TorchFT Managers that the body makes serve on ``address`` alone.

    The Manager takes no address to bind to, and its server obeys anybody's order to end the
    process. Not for several threads at once.
    """
    original = torchft.manager.ManagerServer

    def bound(*, bind: str, **options: Any) -> Any:
        port = bind.rpartition(":")[2]
        return original(bind=f"{in_url(address)}:{port}", **options)

    torchft.manager.ManagerServer = bound  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        torchft.manager.ManagerServer = original  # type: ignore[misc]
