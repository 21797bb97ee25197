"""Numeric IP addresses, of either family, as sockets and URLs want them."""

from __future__ import annotations

import socket


def family_of(address: str) -> socket.AddressFamily:
    """The family of the sockets that a numeric address is for."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def in_url(address: str) -> str:
    """As it stands before ``:port``: an IPv6 address has brackets there."""
    return f"[{address}]" if ":" in address else address
