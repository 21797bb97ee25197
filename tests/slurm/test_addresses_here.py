"""The choice of an address with real interfaces and routes, and with name servers made up.

What no machine of a test has (two networks, a name server, a hosts file like Debian's) is a double
here; ``tests/hosts/test_networks.py`` has real networks.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slurmmesh.errors import ConfigError, SetupError
from slurmmesh.slurm import interfaces, reach
from slurmmesh.slurm.addresses import Interface, parse_wish
from slurmmesh.slurm.allocation import Allocation
from slurmmesh.slurm.environment import for_step, for_submit
from slurmmesh.slurm.interfaces import interfaces_here

ALLOCATION = Allocation("12", ("n1", "n2", "n3"), (4, 4, 4), "n1")
TWO_NETWORKS = [
    Interface("lo", "127.0.0.1", 8),
    Interface("eth0", "10.1.0.1", 24),
    Interface("ib0", "10.8.0.1", 16),
    Interface("ib0", "fd08::1", 64),
]
ROUTES = {"10.1.0.": "10.1.0.1", "10.8.": "10.8.0.1", "fd08:": "fd08::1"}


@pytest.fixture
def two_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a management network and a fabric."""

    def source(other: str) -> str:
        return next((source for net, source in ROUTES.items() if other.startswith(net)), "")

    monkeypatch.setattr(reach, "interfaces_here", lambda: TWO_NETWORKS)
    monkeypatch.setattr(reach, "source_address", source)


Names = Callable[[dict[str, list[str]]], list[str]]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    """``names(table)``: a resolver that knows these names; returns what it was asked for."""

    def use(table: dict[str, list[str]]) -> list[str]:
        asked = []

        def resolve(name: str, *_args: object, **_options: object) -> list[tuple[object, ...]]:
            asked.append(name)
            if name not in table:
                raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
            return [(0, 0, 0, "", (address, 0)) for address in table[name]]

        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        return asked

    return use


@pytest.fixture
def no_scontrol(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")


def scontrol(fake: Callable[..., dict[str, str]], patch: pytest.MonkeyPatch, **told: str) -> None:
    lines = [f'echo "NodeName={node} NodeAddr={address}"' for node, address in told.items()]
    patch.setenv("PATH", fake(scontrol="\n".join(lines))["PATH"])


# ------------------------------------------------------------------ how Slurm reaches the nodes


@pytest.mark.usefixtures("two_networks")
def test_node_names_that_nobody_knows_have_slurms_addresses(
    fake: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch, names: Names
) -> None:
    asked = names({})
    scontrol(fake, monkeypatch, n1="10.1.0.1", n2="10.1.0.2", n3="10.1.0.3")
    [choice] = ALLOCATION.own_addresses()
    assert (choice.address, choice.why) == ("10.1.0.1", "the route to n2 (10.1.0.2) takes it")
    scontrol(fake, monkeypatch, n1="fd08::1", n2="fd08::2", n3="fd08::3")
    assert [each.address for each in ALLOCATION.own_addresses()] == ["fd08::1", "10.8.0.1"]
    assert asked == []


@pytest.mark.usefixtures("two_networks", "no_scontrol")
def test_without_scontrol_names_are_looked_up_and_loopback_is_not_believed(names: Names) -> None:
    """Debian's hosts file gives a host's own name 127.0.1.1, and people's give any."""
    names({"n1": ["127.0.1.1"], "n2": ["127.0.0.1", "::1"], "n3": ["fe80::3%ib0", "10.1.0.3"]})
    [choice] = ALLOCATION.own_addresses()
    assert (choice.address, choice.why) == ("10.1.0.1", "the route to n3 (10.1.0.3) takes it")


@pytest.mark.usefixtures("two_networks", "no_scontrol")
def test_a_name_with_several_addresses_is_the_one_that_has_a_route(names: Names) -> None:
    names({"n2": ["192.0.2.2", "2001:db8::2", "10.8.0.2"]})
    assert ALLOCATION.own_addresses()[0].address == "10.8.0.1"


@pytest.mark.usefixtures("two_networks", "no_scontrol")
def test_the_own_name_helps_where_no_other_is_known(names: Names) -> None:
    names({"n1": ["127.0.1.1", "10.8.0.1"]})
    choice = ALLOCATION.own_addresses()[0]
    assert choice.address == "10.8.0.1"
    assert choice.why.startswith("Slurm's own address of this node (no route to another node")


@pytest.mark.usefixtures("two_networks", "no_scontrol")
def test_no_scontrol_and_no_name_known_is_an_error_that_says_what_was_tried(names: Names) -> None:
    names({"n1": ["127.0.1.1"]})
    with pytest.raises(SetupError) as failed:
        ALLOCATION.own_addresses()
    for part in (
        "node n1",
        "n2 (n2 has no address that other nodes can use)",
        "SLURMMESH_INTERFACE",
        "eth0 10.1.0.1/24, ib0 10.8.0.1/16",
    ):
        assert part in str(failed.value)


@pytest.mark.usefixtures("two_networks", "no_scontrol")
def test_a_name_server_that_is_not_there_is_asked_a_few_times_only(names: Names) -> None:
    asked = names({})
    many = Allocation("12", tuple(f"n{i}" for i in range(1, 2000)), (4,) * 1999, "n1")
    with pytest.raises(SetupError):
        many.own_addresses()
    assert len(asked) <= 5


@pytest.mark.usefixtures("no_scontrol")
@pytest.mark.parametrize("name", ["n" * 300, "a..b", "\ud800", "n2\0"])
def test_a_name_that_cannot_be_one_has_no_address(name: str) -> None:
    assert reach.resolve(name) == []


# ------------------------------------------------------------------ the setting


@pytest.mark.usefixtures("two_networks", "no_scontrol")
def test_the_setting_picks_the_network(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    names({"n2": ["10.1.0.2"]})
    for wanted, address in (
        ("ib0", "10.8.0.1"),
        ("fd08::/64", "fd08::1"),
        ("hsn,10.8.0.0/16", "10.8.0.1"),
        ("^eth0", "10.8.0.1"),
    ):
        monkeypatch.setenv("SLURMMESH_INTERFACE", wanted)
        assert ALLOCATION.own_addresses()[0].address == address
    monkeypatch.setenv("SLURMMESH_INTERFACE", "hsn0")
    with pytest.raises(SetupError, match=r"node n1 no interface is hsn0\. It has lo 127\.0\.0\.1"):
        ALLOCATION.own_addresses()
    monkeypatch.setenv("SLURMMESH_INTERFACE", "10.8.0.0/99")
    with pytest.raises(ConfigError, match="10\\.8\\.0\\.0/99"):
        ALLOCATION.own_addresses()


def test_the_setting_reaches_the_steps_and_the_jobs() -> None:
    environ = {"SLURMMESH_INTERFACE": "ib0", "SLURM_JOB_ID": "1", "NCCL_SOCKET_IFNAME": "ib1"}
    for clean in (for_step(environ), for_submit(environ)):
        assert clean["SLURMMESH_INTERFACE"] == "ib0"
        assert clean["NCCL_SOCKET_IFNAME"] == "ib1"


def test_alone_nothing_is_asked(monkeypatch: pytest.MonkeyPatch, names: Names) -> None:
    asked = names({})
    monkeypatch.setenv("SLURMMESH_INTERFACE", "nosuch0")
    [choice] = Allocation("12", ("n1",), (4,), "n1").own_addresses()
    assert (choice.address, choice.interface) == ("127.0.0.1", "lo")
    assert asked == []


# ------------------------------------------------------------------ several nodes on one machine


@pytest.mark.parametrize(
    "told",
    [
        {"n2": "127.0.0.1", "n3": "127.0.0.1"},
        {"n2": "127.0.0.2", "n3": "127.0.0.3"},
        {"n2": "::1", "n3": "::1"},
        {"n2": "localhost", "n3": socket.gethostname()},
    ],
)
def test_slurm_was_told_loopback_for_all(
    told: dict[str, str], fake: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    scontrol(fake, monkeypatch, n1="127.0.0.1", **told)
    [choice] = ALLOCATION.own_addresses()
    assert choice.is_loopback
    assert "all nodes of the job go by loopback" in choice.why


def test_one_node_elsewhere_and_loopback_is_out(
    fake: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch, two_networks: None
) -> None:
    scontrol(fake, monkeypatch, n1="127.0.0.1", n2="127.0.0.1", n3="10.1.0.3")
    assert ALLOCATION.own_addresses()[0].address == "10.1.0.1"


# ------------------------------------------------------------------ what the kernel says


def test_the_interfaces_of_this_machine(wait_until: Callable[..., None]) -> None:
    def told_as_the_kernel_lists_them() -> bool:  # a lab of another test may just come or go
        names = {each.name for each in interfaces_here()}
        return names == set(os.listdir("/sys/class/net")) - {"bonding_masters"}

    wait_until(told_as_the_kernel_lists_them)
    here = interfaces_here()
    assert Interface("lo", "127.0.0.1", 8) in here
    for each in here:
        if each.address:
            assert ipaddress.ip_interface(f"{each.address}/{each.prefix}")


def test_a_table_of_ipv6_addresses(tmp_path: Path) -> None:
    table = tmp_path / "if_inet6"
    table.write_text(
        "00000000000000000000000000000001 01 80 10 80       lo\n"
        "fe8000000000000000000000000000aa 02 40 20 80     eth0\n"
        "fd0000000000000000000000000000aa 03 40 00 80      ib0\n"
        "fd0000000000000000000000000000ab 03 40 00 c0      ib0\n"
        "fd0000000000000000000000000000ac 03 40 00 01      ib0\n"
        "fd0000000000000000000000000000ad 03 40 00 c8      ib0\n"
        "fd0000000000000000000000000000ae 04 38 00 a0      ib1\n"
    )
    states = {"lo": "", "eth0": "", "ib0": "", "ib1": "down"}
    assert list(map(str, interfaces._ipv6(table, states))) == [
        "lo ::1/128 (loopback)",
        "eth0 fe80::aa/64 (link-local)",
        "ib0 fd00::aa/64",
        "ib0 fd00::ab/64 (tentative)",
        "ib0 fd00::ac/64 (temporary)",
        "ib0 fd00::ad/64 (duplicate)",
        "ib1 fd00::ae/56 (down)",
    ]
    assert interfaces._ipv6(tmp_path / "no IPv6 in this kernel", states) == []


SHOW = """
from slurmmesh.slurm.interfaces import interfaces_here
from slurmmesh.slurm.reach import choose_here
from slurmmesh.slurm.addresses import parse_wish
import sys
print(*interfaces_here(), sep="; ")
for wish, peer in zip(sys.argv[1::2], sys.argv[2::2]):
    print(*(each.address for each in choose_here(parse_wish(wish), [("n2", peer)], "n1")))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_real_interfaces_of_every_kind() -> None:
    setup = """
        ip link set lo up
        ip address add 10.99.0.1/32 dev lo
        ip link add eth0 type veth peer name far; ip link set eth0 up; ip link set far up
        ip address add 10.1.0.1/24 dev eth0; ip address add 10.1.0.9/25 dev eth0 label eth0:vip
        ip address add fd01::1/64 dev eth0 nodad
        ip link add ib0 type veth peer name far0; ip link set ib0 up; ip link set far0 up
        ip address add fd08::1/64 dev ib0 nodad
        ip link add ib1 type veth peer name far1; ip link set ib1 up
        ip address add 10.9.0.1/16 dev ib1
        ip link add ib2 type veth peer name far2
    """
    asked = ["", "10.1.0.200", "", "fd08::2", "ib0", "10.1.0.2", "10.1.0.9", "10.1.0.2"]
    asked += ["10.99.0.0/16", "10.1.0.2"]
    command = f'set -e\n{setup}\nexec "$@"'
    done = subprocess.run(
        ["unshare", "-n", "bash", "-c", command, "bash", sys.executable, "-c", SHOW, *asked],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(reach.__file__).parents[2],
    )
    shown, *chosen = done.stdout.splitlines()
    told = {each for each in shown.split("; ") if not each.startswith("far") and "fe80" not in each}
    assert told == {
        "lo 127.0.0.1/8 (loopback)",
        "lo 10.99.0.1/32",
        "eth0 10.1.0.1/24",
        "eth0 10.1.0.9/25",
        "ib1 10.9.0.1/16 (no link)",
        "ib2 (down)",
        "lo ::1/128 (loopback)",
        "eth0 fd01::1/64",
        "ib0 fd08::1/64",
    }
    assert chosen == ["10.1.0.1 fd01::1", "fd08::1", "fd08::1", "10.1.0.9", "10.99.0.1"]


def test_a_wish_for_the_loopback_is_refused_between_machines() -> None:
    with pytest.raises(SetupError, match=r"lo is not usable \(lo 127\.0\.0\.1/8 \(loopback\)"):
        reach.choose_here(parse_wish("lo"), [("n2", "192.0.2.77")], "n1")
