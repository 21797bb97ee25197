"""The hosts' addresses, seen together: what libraries are told of them, and what looks wrong."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from slurmmesh.slurm.addresses import Choice

_NAMED = 3
"""So many hosts are named in a warning; of more, the number is."""


def socket_variables(choice: Choice, environ: Mapping[str, str]) -> dict[str, str]:
    """What makes Gloo, RCCL (which reads NCCL's names) and TensorPipe use the chosen interface.

    What ``environ`` has already is left as it is. Nothing is set for the loopback: there all
    libraries find each other by themselves.
    """
    if choice.is_loopback:
        return {}
    wanted = {"GLOO_SOCKET_IFNAME": choice.interface, "TP_SOCKET_IFNAME": choice.interface}
    if "NCCL_SOCKET_IFNAME" not in environ:
        # The family goes with our interface only. "=": this name, not what begins with it.
        wanted["NCCL_SOCKET_IFNAME"] = f"={choice.interface}"
        wanted["NCCL_SOCKET_FAMILY"] = "AF_INET6" if choice.version == 6 else "AF_INET"
    return {name: value for name, value in wanted.items() if name not in environ}


def warnings_about(places: Mapping[str, Choice]) -> list[str]:
    """What somebody should look at in the choices of these hosts (by name), a line each.

    That is what a host wanted and could not have, and hosts in different networks. A network of
    two addresses or one, as a routed fabric or a cloud gives each host, says nothing of that.
    """
    lines = [
        f"{_names(hosts)}: {warning}"
        for warning, hosts in _grouped({n: p.warning for n, p in places.items()}).items()
        if warning
    ]
    networks = _grouped({name: _network(place) for name, place in places.items()})
    if len(networks) > 1:
        told = ", ".join(f"{network} ({_names(hosts)})" for network, hosts in networks.items())
        lines.append(
            f"the hosts' addresses are in {len(networks)} networks: {told}. Each host must reach "
            "those of all others; --interface or SLURMMESH_INTERFACE picks one network"
        )
    return lines


def _network(place: Choice) -> str:
    network = ipaddress.ip_network(place.network)
    return f"IPv{place.version} links" if network.num_addresses <= 2 else place.network


def _grouped(values: Mapping[str, str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name, value in values.items():
        groups.setdefault(value, []).append(name)
    return groups


def _names(hosts: list[str]) -> str:
    if len(hosts) <= _NAMED:
        return ", ".join(hosts)
    return f"{', '.join(hosts[: _NAMED - 1])} and {len(hosts) - _NAMED + 1} more"
