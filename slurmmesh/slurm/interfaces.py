"""The network interfaces of this machine, as the kernel tells them."""

from __future__ import annotations

import array
import fcntl
import ipaddress
import os
import socket
import struct
from pathlib import Path

from slurmmesh.slurm.addresses import Interface

_SIOCGIFCONF = 0x8912
_SIOCGIFFLAGS = 0x8913
_SIOCGIFNETMASK = 0x891B
_NAME_BYTES = 16
# struct ifreq of Linux: the name, then a union as large as its largest member.
_ENTRY_BYTES = _NAME_BYTES + (24 if struct.calcsize("P") == 8 else 16)
_MOST = 1024
_UP, _RUNNING = 0x1, 0x40
# Of an IPv6 address, with what each means for who is told it: it will go, or is not there yet.
_PASSING = {0x08: "duplicate", 0x40: "tentative", 0x20: "deprecated", 0x01: "temporary"}


def interfaces_here() -> list[Interface]:
    """Every address of every interface, IPv4 first; interfaces without one come last."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        states = {name: _state(sock, name) for _, name in socket.if_nameindex()}
        found = _ipv4(sock, states) + _ipv6(Path("/proc/net/if_inet6"), states)
    bare = states.keys() - {each.name for each in found}
    return found + [Interface(name, state=states[name]) for name in sorted(bare)]


def _state(sock: socket.socket, name: str) -> str:
    try:
        entry = fcntl.ioctl(sock, _SIOCGIFFLAGS, struct.pack(f"{_ENTRY_BYTES}s", os.fsencode(name)))
    except OSError:
        return "gone"
    (flags,) = struct.unpack_from("H", entry, _NAME_BYTES)
    if not flags & _UP:
        return "down"
    return "" if flags & _RUNNING else "no link"


def _ipv4(sock: socket.socket, states: dict[str, str]) -> list[Interface]:
    buffer = array.array("B", bytes(_ENTRY_BYTES * _MOST))
    where, _ = buffer.buffer_info()
    asked = struct.pack("iP", len(buffer), where)
    length, _ = struct.unpack("iP", fcntl.ioctl(sock, _SIOCGIFCONF, asked))
    found = []
    for start in range(0, length, _ENTRY_BYTES):
        entry = bytes(buffer[start : start + _ENTRY_BYTES])
        label = entry[:_NAME_BYTES].partition(b"\0")[0].decode(errors="surrogateescape")
        name = label.partition(":")[0]
        # The mask of this address, not of the interface's first: the entry names both.
        mask = _address(fcntl.ioctl(sock, _SIOCGIFNETMASK, entry))
        prefix = int(ipaddress.IPv4Address(mask)).bit_count()
        found.append(Interface(name, _address(entry), prefix, states.get(name, "")))
    return found


def _address(entry: bytes) -> str:
    """Of a sockaddr_in: two bytes of family, two of port, four of address."""
    return socket.inet_ntoa(entry[_NAME_BYTES + 4 : _NAME_BYTES + 8])


def _ipv6(table: Path, states: dict[str, str]) -> list[Interface]:
    """From the kernel's table: address, index, prefix length, scope, flags, name."""
    try:
        lines = table.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []
    found = []
    for row in map(str.split, lines):
        flags, name = int(row[4], 16), row[5]
        passing = next((word for flag, word in _PASSING.items() if flags & flag), "")
        address = str(ipaddress.IPv6Address(int(row[0], 16)))
        found.append(Interface(name, address, int(row[2], 16), states.get(name, "") or passing))
    return found
