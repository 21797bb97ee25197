"""How this node reaches others: names, routes, and the address it goes by among them."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

from slurmmesh.slurm.addresses import Choice, Peer, Wish, choose
from slurmmesh.slurm.interfaces import interfaces_here

_LOCAL_NAMES = frozenset({"localhost", "localhost.localdomain", "localhost4", "localhost6"})
_NAMES_TRIED = 4
"""Each name that does not resolve may take many seconds where the name server is not there."""


def choose_here(
    wish: Wish, others: Sequence[tuple[str, str]], node: str, own: str = ""
) -> tuple[Choice, ...]:
    """The address under which others reach this machine, see ``addresses.choose``.

    Args:
        others: other nodes: the name of each, and the address or name by which Slurm reaches it.
        node: the name of this one, for messages.
        own: by what Slurm reaches this one, if that is known.

    Raises:
        SetupError: there is none; lists what there is.
    """
    peers = look_around(others)
    lost = bool(peers) and not any(peer.source for peer in peers)
    mine = next(iter(resolve(own)), "") if own and lost else ""
    return choose(interfaces_here(), wish, peers, node, mine)


def look_around(others: Sequence[tuple[str, str]]) -> list[Peer]:
    """Some of the other nodes: up to the first that is elsewhere and has a route, and not many."""
    peers: list[Peer] = []
    # One that is told to be elsewhere says that not all are here.
    for name, told in sorted(others, key=lambda other: _is_here(other[1])):
        peers.append(_look(name, told))
        if len(peers) == _NAMES_TRIED or (peers[-1].source and not peers[-1].is_here):
            break
    return peers


def _look(name: str, told: str) -> Peer:
    numeric = ["127.0.0.1"] if _is_local_name(told) else resolve(told)
    for address in numeric:
        if source := source_address(address):
            return Peer(name, told, address, source)
    return Peer(name, told, next(iter(numeric), ""))


def resolve(told: str) -> list[str]:
    """The numeric addresses of a name that other nodes can use; an address stays as it is.

    Hosts files give names to loopback addresses, such as Debian's 127.0.1.1 for a host's own name:
    no other node can be reached there.
    """
    try:
        return [str(ipaddress.ip_address(told))]
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(told, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    numeric = dict.fromkeys(str(entry[4][0]) for entry in found)
    return [each for each in numeric if _is_outward(each)]


def source_address(other: str) -> str:
    """The local address of the route to a numeric address; empty without. No packet is sent."""
    family = socket.AF_INET6 if ":" in other else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((other, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def _is_outward(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    return not (parsed.is_loopback or parsed.is_link_local)


def _is_here(told: str) -> bool:
    try:
        return ipaddress.ip_address(told).is_loopback
    except ValueError:
        return _is_local_name(told)


def _is_local_name(told: str) -> bool:
    """Whether Slurm reaches a node by a name that can only be this very machine."""
    return told in _LOCAL_NAMES or told == socket.gethostname()
