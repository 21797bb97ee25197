"""Free TCP ports, and other numbers only one lab on the machine may use at a time.

A claim is a bound abstract unix socket: the kernel lets one process of a network namespace hold
a name, frees it when the holder dies however it dies, and leaves no file behind. So labs never
race each other for a port; against other programs each port is tried first, and whoever claims
must be ready to claim others if a daemon finds its port taken after all.
"""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

from slurmmesh.errors import LabError

_BLOCK = 32
_FIRST_PORT = 10240
_LAST_PORT = 65535


class Claim:
    """One number held by this process until ``close``."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def close(self) -> None:
        self._socket.close()


def try_claim(what: str, number: int) -> Claim | None:
    """Hold ``number`` of the series ``what``, or None if another process holds it."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(f"\0slurmmesh-lab-{what}-{number}")
    except OSError:
        sock.close()
        return None
    return Claim(sock)


class PortClaims:
    """Ports held against other labs until ``close``."""

    def __init__(self) -> None:
        self._claims: list[Claim] = []

    def claim(self, count: int) -> tuple[int, ...]:
        """Ports on which, at this moment, nobody listens.

        Raises:
            LabError: there are not enough.
        """
        ports: list[int] = []
        for block in _blocks():
            held = try_claim("ports", block)
            if held is None:
                continue
            self._claims.append(held)
            first = block * _BLOCK
            ports += [port for port in range(first, first + _BLOCK) if is_free(port)]
            if len(ports) >= count:
                return tuple(ports[:count])
        raise LabError(f"no {count} free TCP ports from {_FIRST_PORT} to {_LAST_PORT}")

    def close(self) -> None:
        for held in self._claims:
            held.close()
        self._claims.clear()


def is_free(port: int) -> bool:
    """Whether a daemon could listen on ``port`` on all addresses."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        # As Slurm does; without it a port of a lab that has just ended counts as taken.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            sock.bind(("0.0.0.0", port))
            return True
    return False


def _blocks() -> list[int]:
    """Blocks of ports in the order to try them: those the kernel hands out to clients last."""
    low, high = _ephemeral_range()
    blocks = list(range(_FIRST_PORT // _BLOCK, (_LAST_PORT + 1) // _BLOCK))
    random.shuffle(blocks)

    def handed_out(block: int) -> bool:
        return block * _BLOCK <= high and (block + 1) * _BLOCK > low

    return sorted(blocks, key=handed_out)


def _ephemeral_range() -> tuple[int, int]:
    try:
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
        low, high = text.split()
        return int(low), int(high)
    except (OSError, ValueError):
        return 32768, 60999
