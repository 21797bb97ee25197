"""The choice of a node's address: pure, so every machine there could be is tried."""

from __future__ import annotations

import ipaddress
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.errors import ConfigError, SetupError
from slurmmesh.slurm.addresses import Choice, Interface, Peer, Wish, alone, choose, parse_wish

LO = Interface("lo", "127.0.0.1", 8)
ETH = Interface("eth0", "10.1.0.1", 24)
ETH6 = Interface("eth0", "fd01::1", 64)
IB = Interface("ib0", "10.8.0.1", 16)
IB6 = Interface("ib0", "fd08::1", 64)
DOCKER = Interface("docker0", "172.17.0.1", 16)
LINK = Interface("ib1", "fe80::1", 64)
MACHINE = [LO, ETH, IB, DOCKER, ETH6, IB6, LINK, Interface("ib2", state="down")]

BY_ETH = Peer("node2", "10.1.0.2", "10.1.0.2", "10.1.0.1")
BY_ETH6 = Peer("node2", "fd01::2", "fd01::2", "fd01::1")
CUT_OFF = Peer("node2", "10.1.0.2", "10.1.0.2")
UNKNOWN = Peer("node2", "node2")
HERE = Peer("node2", "127.0.0.1", "127.0.0.1", "127.0.0.1")


def chosen(wish: str, *peers: Peer, here: list[Interface] = MACHINE, own: str = "") -> Choice:
    return choose(here, parse_wish(wish), peers or [BY_ETH], "node1", own)[0]


# ------------------------------------------------------------------ what is wished for


@pytest.mark.parametrize(
    ("wish", "address"),
    [
        ("ib0", "10.8.0.1"),
        ("=ib0", "10.8.0.1"),
        ("ib", "10.8.0.1"),
        ("10.8.0.0/16", "10.8.0.1"),
        ("10.8.255.255/16", "10.8.0.1"),
        ("10.8.0.1", "10.8.0.1"),
        ("10.8.0.9,10.8.0.1", "10.8.0.1"),
        ("fd08::/32", "fd08::1"),
        ("fd08::1", "fd08::1"),
        ("hsn,ib,eth", "10.8.0.1"),
        (" eth0 , ib0 ", "10.1.0.1"),
        ("10.0.0.0/8", "10.1.0.1"),  # both networks: the one of the route
        ("^eth", "10.8.0.1"),
        ("^ib0,docker0", "10.1.0.1"),
        ("", "10.1.0.1"),
    ],
)
def test_a_wish_picks_an_address(wish: str, address: str) -> None:
    here = MACHINE if wish != "^eth" else [each for each in MACHINE if each != DOCKER]
    assert chosen(wish, here=here).address == address


def test_a_whole_name_goes_before_the_beginning_of_one() -> None:
    here = [Interface(f"hsn{i}", f"10.8.0.{i}", 16) for i in (10, 2, 1)]
    assert chosen("hsn1", here=here).interface == "hsn1"
    assert chosen("hsn", here=here).interface == "hsn1"
    assert chosen("hsn", here=here[:2]).interface == "hsn2"  # not hsn10
    assert chosen("hsn1", here=here[:2]).interface == "hsn10"
    with pytest.raises(SetupError, match="no interface is =hsn1"):
        chosen("=hsn1", here=here[:2])


def test_it_says_why() -> None:
    assert chosen("ib0").why == "asked for as ib0 (--interface, SLURMMESH_INTERFACE)"
    assert chosen("").why == "the route to node2 (10.1.0.2) takes it"
    assert chosen("hsn,ib2,ib0").warning == "no interface is hsn; ib2 is not usable (ib2 (down))"
    assert chosen("10.9.0.0/16,ib0").warning == "no address is in 10.9.0.0/16"
    assert chosen("ib0").warning == chosen("").warning == ""


@pytest.mark.parametrize(
    ("wish", "reason"),
    [
        ("nosuch0", "no interface is nosuch0"),
        ("203.0.113.0/28", "no address is in 203.0.113.0/28"),
        ("ib1", "ib1 is not usable (ib1 fe80::1/64 (link-local))"),
        ("ib2,hsn", "ib2 is not usable (ib2 (down)); no interface is hsn"),
        ("lo", "lo is not usable (lo 127.0.0.1/8 (loopback))"),
        ("127.0.0.0/8", "127.0.0.0/8 is not usable (lo 127.0.0.1/8 (loopback))"),
        ("fe80::/10", "fe80::/10 is not usable (ib1 fe80::1/64 (link-local))"),
    ],
)
def test_a_wish_that_cannot_be_had_lists_what_there_is(wish: str, reason: str) -> None:
    with pytest.raises(SetupError) as failed:
        chosen(wish)
    assert str(failed.value) == (
        f"interface {wish} (--interface, SLURMMESH_INTERFACE): on node node1 {reason}. It has "
        "lo 127.0.0.1/8 (loopback), eth0 10.1.0.1/24, ib0 10.8.0.1/16, docker0 172.17.0.1/16, "
        "eth0 fd01::1/64, ib0 fd08::1/64, ib1 fe80::1/64 (link-local), ib2 (down)"
    )


@pytest.mark.parametrize(
    "text",
    [
        "10.8.0.0/33",
        "ib0/1",
        "fd08:::/32",
        "ib0,",
        ",",
        "^",
        "=",
        "ib0,^eth0",
        "a b",
        "ib0\nx",
        "/",
    ],
)
def test_what_is_no_wish(text: str) -> None:
    with pytest.raises(ConfigError, match="SLURMMESH_INTERFACE"):
        parse_wish(text)


@given(st.text(alphabet="ab0=^,./: \n%é", max_size=12) | st.text(max_size=12))
def test_any_text_is_a_wish_or_refused(text: str) -> None:
    try:
        wish = parse_wish(text)
    except ConfigError:
        return
    assert bool(wish.items) == bool(text.strip())
    assert parse_wish(wish.text) == wish


# ------------------------------------------------------------------ without a wish


def test_the_route_to_the_first_node_that_has_one() -> None:
    assert chosen("", UNKNOWN, CUT_OFF, BY_ETH).address == "10.1.0.1"
    assert chosen("", BY_ETH6).address == "fd01::1"
    assert chosen("", HERE, BY_ETH).address == "10.1.0.1"  # an odd hosts file names one node so


def test_an_address_that_will_go_is_left_for_a_lasting_one_of_its_interface() -> None:
    passing = Interface("eth0", "fd01::abcd", 64, "temporary")
    by_it = Peer("node2", "fd01::2", "fd01::2", passing.address)
    assert chosen("", by_it, here=[LO, IB6, passing, ETH6]).address == "fd01::1"


def test_without_any_route_this_nodes_own_address_or_the_only_interface() -> None:
    own = chosen("", UNKNOWN, own="10.8.0.1")
    assert own.address == "10.8.0.1"
    assert own.why.startswith("Slurm's own address of this node")
    only = chosen("", UNKNOWN, CUT_OFF, here=[LO, ETH, ETH6], own="127.0.1.1")
    assert only.address == "10.1.0.1"
    assert only.why == (
        "the only interface here that others can reach (no route to another node tells more: "
        "node2 (node2 has no address that other nodes can use); node2 (10.1.0.2): no route)"
    )


def test_nothing_to_choose_by_is_an_error_that_says_what_was_tried() -> None:
    with pytest.raises(SetupError) as failed:
        chosen("", UNKNOWN, here=[LO, ETH, IB])
    assert str(failed.value) == (
        "the network by which the nodes reach node node1 is not known: it was not asked for, and "
        "no route to another node tells more: node2 (node2 has no address that other nodes can "
        "use). Name it (--interface, SLURMMESH_INTERFACE). It has lo 127.0.0.1/8 (loopback), "
        "eth0 10.1.0.1/24, ib0 10.8.0.1/16"
    )
    with pytest.raises(SetupError, match=r"interface \^eth .* leaves nothing to choose by"):
        chosen("^eth")  # docker0 or ib0?
    with pytest.raises(SetupError, match="It has lo 127"):
        chosen("", BY_ETH, here=[LO])


def test_loopback_where_no_other_node_is_or_slurm_says_so_of_all() -> None:
    assert choose([], Wish(""), [], "node1")[0].address == "127.0.0.1"
    assert choose(MACHINE, parse_wish("ib0"), [], "node1") == (
        alone("no other node has to reach this one"),
    )
    assert chosen("", HERE, HERE).address == "127.0.0.1"
    assert chosen("", HERE).why == "all nodes of the job go by loopback: they are on this machine"
    assert chosen("lo", HERE).address == "127.0.0.1"
    assert chosen("ib0", HERE).address == "10.8.0.1"
    assert chosen("", HERE, here=[]).address == "127.0.0.1"


def test_the_other_family_comes_second_from_the_same_interface() -> None:
    def both(wish: str, peer: Peer = BY_ETH, here: list[Interface] = MACHINE) -> list[str]:
        return [each.address for each in choose(here, parse_wish(wish), [peer], "node1")]

    assert both("") == ["10.1.0.1", "fd01::1"]
    assert both("", BY_ETH6) == ["fd01::1", "10.1.0.1"]
    assert both("ib0") == ["10.8.0.1", "fd08::1"]
    assert both("10.8.0.0/16") == ["10.8.0.1"]
    assert both("fd08::/32,10.8.0.0/16") == ["fd08::1", "10.8.0.1"]
    assert both("", HERE, [*MACHINE, Interface("lo", "::1", 128)]) == ["127.0.0.1"]


# ------------------------------------------------------------------ any machine

NAMES = ["lo", "eth0", "eth1", "hsn2", "hsn10", "ib0"]
ADDRESSES = st.one_of(
    st.ip_addresses(v=4, network="10.0.0.0/8"),
    st.ip_addresses(v=6, network="fd00::/8"),
    st.ip_addresses(v=4, network="127.0.0.0/8"),
    st.ip_addresses(v=4, network="169.254.0.0/16"),
    st.ip_addresses(v=6, network="fe80::/64"),
    st.just(ipaddress.ip_address("::1")),
).map(str)


@st.composite
def interfaces(draw: st.DrawFn) -> list[Interface]:
    found = []
    for address in draw(st.lists(ADDRESSES | st.just(""), unique=True, max_size=6)):
        longest = 128 if ":" in address else 32
        prefix = draw(st.integers(8, longest)) if address else 0
        state = draw(st.sampled_from(["", "", "", "down", "tentative"]))
        found.append(Interface(draw(st.sampled_from(NAMES)), address, prefix, state))
    return found


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[Interface], Wish, list[Peer], str]:
    here = draw(interfaces())
    sources = st.sampled_from([each.address for each in here] + [""])
    peers = [
        Peer(f"node{i}", address or f"node{i}", address, draw(sources) if address else "")
        for i, address in enumerate(draw(st.lists(ADDRESSES | st.just(""), min_size=1, max_size=3)))
    ]
    item = st.sampled_from([*NAMES, "hsn", "=ib0", "10.0.0.0/8", "fd00::/8", "127.0.0.0/8"])
    items = ",".join(draw(st.lists(item, max_size=3)))
    mark = draw(st.sampled_from(["", "^"])) if items else ""
    return here, parse_wish(mark + items), peers, draw(sources)


def outcome(
    here: list[Interface], wish: Wish, peers: list[Peer], own: str
) -> tuple[tuple[Choice, ...], str]:
    """What is chosen, or else the error's text."""
    try:
        return choose(here, wish, peers, "node1", own), ""
    except SetupError as error:
        return (), str(error)


@given(situations())
def test_whatever_is_chosen_can_be_reached_and_was_allowed(
    situation: tuple[list[Interface], Wish, list[Peer], str],
) -> None:
    here, wish, peers, own = situation
    together = all(ipaddress.ip_address(p.address).is_loopback if p.address else 0 for p in peers)
    choices, error = outcome(here, wish, peers, own)
    if error:
        assert all(str(each) in error for each in [*here, wish.text])
        return
    assert len({each.version for each in choices}) == len(choices) <= 2
    assert len({each.interface for each in choices}) == 1
    for choice in choices:
        assert choice.why
        assert ipaddress.ip_address(choice.address) in ipaddress.ip_network(choice.network)
        if together and choice.is_loopback:
            continue
        [found] = [each for each in here if each.address == choice.address]
        assert (found.flaw, found.name, found.prefix) == ("", choice.interface, choice.prefix)
        if wish.excluding:
            assert choice.interface not in wish.items
        elif wish.items:
            assert choose([found], wish, [BY_ETH], "node1")[0].address == choice.address


@given(situations(), st.randoms(use_true_random=False))
def test_the_order_in_which_the_kernel_lists_does_not_matter(
    situation: tuple[list[Interface], Wish, list[Peer], str], rng: random.Random
) -> None:
    here, wish, peers, own = situation
    here = list({(each.name, each.version): each for each in here}.values())
    shuffled = rng.sample(here, len(here))

    (told, error), (again, error_again) = (
        outcome(each, wish, peers, own) for each in (here, shuffled)
    )
    assert (told, bool(error)) == (again, bool(error_again))
