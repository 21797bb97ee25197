"""Which address the other nodes are to reach this one under: chosen, and explained in words.

Pure: the interfaces of this machine, what is wished for and what the kernel says of the routes go
in; ``interfaces.py`` and ``reach.py`` ask for them.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from slurmmesh.config.networks import network_items
from slurmmesh.errors import ConfigError, SetupError

LOOPBACK = "loopback"
_WISH = "(--interface, SLURMMESH_INTERFACE)"
_TOGETHER = "all nodes of the job go by loopback: they are on this machine"


@dataclass(frozen=True)
class Interface:
    """One address of a network interface of this machine.

    Attributes:
        name: of the interface.
        address: numeric; empty if the interface has none.
        prefix: length of its network's prefix.
        state: why it cannot be used now (``down``); empty if it can.
    """

    name: str
    address: str = ""
    prefix: int = 0
    state: str = ""

    @property
    def flaw(self) -> str:
        """Why other nodes cannot be given this address; empty if they can."""
        if self.state or not self.address:
            return self.state or "no address"
        parsed = ipaddress.ip_address(self.address)
        if parsed.is_loopback:
            return LOOPBACK
        if parsed.is_link_local:
            return "link-local"
        return "unspecified" if parsed.is_unspecified else ""

    @property
    def version(self) -> int:
        """4 or 6; 0 without an address."""
        return ipaddress.ip_address(self.address).version if self.address else 0

    def __str__(self) -> str:
        where = f" {self.address}/{self.prefix}" if self.address else ""
        return f"{self.name}{where}" + (f" ({self.flaw})" if self.flaw else "")


@dataclass(frozen=True)
class Peer:
    """Another node, as far as this one knows it.

    Attributes:
        name: for people.
        told: the address or name by which Slurm reaches it.
        address: numeric; empty if ``told`` has none that other nodes can use.
        source: this machine's address of the route there; empty without a route.
    """

    name: str
    told: str
    address: str = ""
    source: str = ""

    @property
    def is_here(self) -> bool:
        """Whether its address is the loopback's, so that it can only be on this machine."""
        return bool(self.address) and ipaddress.ip_address(self.address).is_loopback

    def __str__(self) -> str:
        if not self.address:
            return f"{self.name} ({self.told} has no address that other nodes can use)"
        place = self.name if self.name == self.address else f"{self.name} ({self.address})"
        return place if self.source else f"{place}: no route"


@dataclass(frozen=True)
class Choice:
    """The address that the other nodes are given, and why it is this one.

    Attributes:
        interface: that has it.
        prefix: length of its network's prefix.
        why: in words, for people.
        warning: what was preferred and is not to be had; empty if nothing was.
    """

    address: str
    interface: str
    prefix: int
    why: str
    warning: str = ""

    @property
    def network(self) -> str:
        """The network it is in, such as ``10.8.0.0/16``."""
        return str(ipaddress.ip_interface(f"{self.address}/{self.prefix}").network)

    @property
    def version(self) -> int:
        """4 or 6."""
        return ipaddress.ip_address(self.address).version

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return ipaddress.ip_address(self.address).is_loopback


def alone(why: str) -> Choice:
    """The choice where nobody outside of this machine has to reach it."""
    return Choice("127.0.0.1", "lo", 8, why)


@dataclass(frozen=True)
class Wish:
    """What the user asked for: see ``parse_wish``.

    Attributes:
        items: interfaces and networks, the most wanted first.
        excluding: any interface but these.
    """

    text: str
    items: tuple[str, ...] = ()
    excluding: bool = False

    def __str__(self) -> str:
        return f"interface {self.text} {_WISH}"


def parse_wish(text: str) -> Wish:
    """Read a list by commas, the most wanted first, or after ``^`` a list of what to leave out.

    An item is a network (``10.8.0.0/16``, ``fd00:8::/64``), an address, an interface (``ib0``),
    the beginning of interfaces' names (``hsn``), or with ``=`` before it a name and nothing longer.

    Raises:
        ConfigError: it is no such list.
    """
    text = text.strip()
    try:
        items = network_items(text)
    except ValueError as error:
        raise ConfigError(f"interface {text!r} {_WISH} {error}") from None
    return Wish(text, items, excluding=text.startswith("^"))


def choose(
    here: Sequence[Interface], wish: Wish, peers: Sequence[Peer], node: str, own: str = ""
) -> tuple[Choice, ...]:
    """The address under which ``peers`` are to reach this node, and perhaps a second one.

    What is wished for is taken; else the address of the route to a peer, which on many clusters
    is the management network; else this node's own as Slurm tells it; else that of the only
    interface there is. A loopback or link-local address never, with one exception: where Slurm
    itself was told loopback for every node, all are on this machine. Without peers it is
    ``127.0.0.1``.

    Args:
        here: the interfaces of this machine.
        node: the name of this one, for messages.
        own: its numeric address as Slurm has it, where that is known.

    Returns:
        The choice; behind it, if the same interface also has a usable address of the other IP
        family, that one, for peers which have only that family.

    Raises:
        SetupError: there is none, or none that can be told from others; lists what there is.
    """
    if not peers:
        return (alone("no other node has to reach this one"),)
    together = all(peer.is_here for peer in peers)
    usable = [each for each in here if not each.flaw or (together and each.flaw == LOOPBACK)]
    usable.sort(key=_order)
    if wish.excluding:
        usable = [e for e in usable if not any(_fits(e, item, here) for item in wish.items)]
    if wish.items and not wish.excluding:
        pool = [e for e in usable if any(_fits(e, item, here) for item in wish.items)]
        best = _wished(usable, here, wish, peers, node)
    else:
        pool = usable
        best = _unwished(usable, here, wish, peers, node, own, together)
    return (best, *_of_other_family(best, pool))


def _wished(
    usable: list[Interface],
    here: Sequence[Interface],
    wish: Wish,
    peers: Sequence[Peer],
    node: str,
) -> Choice:
    sources = {peer.source for peer in peers}
    for item in wish.items:
        if fitting := [each for each in usable if _fits(each, item, here)]:
            chosen = next((each for each in fitting if each.address in sources), fitting[0])
            passed = wish.items[: wish.items.index(item)]
            warning = "; ".join(_why_not(each, here) for each in passed)
            return _chosen(chosen, f"asked for as {item} {_WISH}", warning)
    reasons = "; ".join(_why_not(item, here) for item in wish.items)
    raise SetupError(f"{wish}: on node {node} {reasons}. {_what_there_is(here)}")


def _why_not(item: str, here: Sequence[Interface]) -> str:
    if flawed := [each for each in here if _fits(each, item, here)]:
        return f"{item} is not usable ({', '.join(map(str, flawed))})"
    if _network(item) is not None:
        return f"no address is in {item}"
    return f"no interface is {item}"


def _unwished(
    usable: list[Interface],
    here: Sequence[Interface],
    wish: Wish,
    peers: Sequence[Peer],
    node: str,
    own: str,
    together: bool,
) -> Choice:
    if together and not usable:
        return alone(_TOGETHER)
    by_address = {each.address: each for each in usable}
    for peer in peers:
        if peer.source and peer.is_here == together:
            source = by_address.get(peer.source) or _beside(peer.source, usable, here)
            if source is not None:
                return _chosen(source, _TOGETHER if together else f"the route to {peer} takes it")
    unknown = "no route to another node tells more: " + "; ".join(map(str, peers))
    if own in by_address:
        return _chosen(by_address[own], f"Slurm's own address of this node ({unknown})")
    if len({each.name for each in usable}) == 1:
        return _chosen(usable[0], f"the only interface here that others can reach ({unknown})")
    reason = f"{wish} leaves nothing to choose by" if wish.excluding else "it was not asked for"
    raise SetupError(
        f"the network by which the nodes reach node {node} is not known: {reason}, and {unknown}. "
        f"Name it {_WISH}. {_what_there_is(here)}"
    )


def _beside(source: str, usable: list[Interface], here: Sequence[Interface]) -> Interface | None:
    """A usable address of the same interface and family as ``source``, which is not usable."""
    found = next((each for each in here if each.address == source), None)
    if found is None:
        return None
    pairs = (e for e in usable if (e.name, e.version) == (found.name, found.version))
    return next(pairs, None)


def _of_other_family(best: Choice, pool: Iterable[Interface]) -> list[Choice]:
    others = [e for e in pool if e.name == best.interface and e.version != best.version]
    return [_chosen(each, best.why, best.warning) for each in others if not best.is_loopback][:1]


def _chosen(interface: Interface, why: str, warning: str = "") -> Choice:
    return Choice(interface.address, interface.name, interface.prefix, why, warning)


def _fits(interface: Interface, item: str, here: Iterable[Interface]) -> bool:
    network = _network(item)
    if network is not None:
        return bool(interface.address) and ipaddress.ip_address(interface.address) in network
    if item.startswith("="):
        return interface.name == item[1:]
    if any(each.name == item for each in here):
        return interface.name == item
    return interface.name.startswith(item)


def _network(item: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(item, strict=False)
    except ValueError:
        return None


def _what_there_is(here: Iterable[Interface]) -> str:
    return f"It has {', '.join(map(str, here)) or 'no network interface'}"


def _order(interface: Interface) -> tuple[list[Any], int]:
    """``hsn2`` before ``hsn10``, IPv4 before IPv6; the same on all nodes."""
    parts = re.split("([0-9]+)", interface.name)
    name = [int(part) if index % 2 else part for index, part in enumerate(parts)]
    return name, interface.version
