"""Addresses of this machine's network interfaces, and the one that a setting picks."""

from __future__ import annotations

import array
import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

from slurmmesh.errors import SetupError

_SIOCGIFCONF = 0x8912
_NAME_BYTES = 16
# struct ifreq of Linux: the name, then a union as large as its largest member.
_ENTRY_BYTES = _NAME_BYTES + (24 if struct.calcsize("P") == 8 else 16)
_MOST = 1024
_SCOPE_LINK = 0x20


def addresses() -> list[tuple[str, str]]:
    """(interface, address) of this machine: IPv4 first, IPv6 without link-local ones."""
    return _ipv4() + _ipv6(Path("/proc/net/if_inet6"))


def pick(wanted: str) -> str:
    """The address of the interface ``wanted``, or the one in the network ``wanted`` (a CIDR).

    Raises:
        SetupError: this machine has none; tells what it has.
    """
    found = addresses()
    if "/" in wanted:
        network = ipaddress.ip_network(wanted, strict=False)
        fitting = [address for _, address in found if ipaddress.ip_address(address) in network]
        what = f"no address in {wanted}"
    else:
        fitting = [address for name, address in found if name == wanted]
        what = f"no interface {wanted!r} with an address"
    if not fitting:
        has = ", ".join(f"{name} {address}" for name, address in found)
        raise SetupError(
            f"SLURMMESH_INTERFACE={wanted}: node {socket.gethostname()} has {what}; it has {has}"
        )
    return fitting[0]


def _ipv4() -> list[tuple[str, str]]:
    buffer = array.array("B", bytes(_ENTRY_BYTES * _MOST))
    where, _ = buffer.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        asked = struct.pack("iP", len(buffer), where)
        length, _ = struct.unpack("iP", fcntl.ioctl(sock, _SIOCGIFCONF, asked))
    found = []
    for start in range(0, length, _ENTRY_BYTES):
        entry = bytes(buffer[start : start + _ENTRY_BYTES])
        name = entry[:_NAME_BYTES].partition(b"\0")[0].decode(errors="replace")
        # A sockaddr_in: two bytes of family, two of port, four of address.
        address = socket.inet_ntoa(entry[_NAME_BYTES + 4 : _NAME_BYTES + 8])
        found.append((name.partition(":")[0], address))
    return found


def _ipv6(table: Path) -> list[tuple[str, str]]:
    """From the kernel's table: address, index, prefix length, scope, flags, name."""
    try:
        lines = table.read_text().splitlines()
    except OSError:
        return []
    rows = [line.split() for line in lines]
    return [
        (row[5], str(ipaddress.IPv6Address(int(row[0], 16))))
        for row in rows
        if int(row[3], 16) != _SCOPE_LINK
    ]
