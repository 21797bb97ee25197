"""The allocation, from the environment of a job."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from slurmmesh.errors import HostListError, SetupError
from slurmmesh.slurm import interfaces
from slurmmesh.slurm.allocation import Allocation

ENVIRON = {
    "SLURM_JOB_ID": "12",
    "SLURM_JOB_NODELIST": "n[1-3]",
    "SLURM_JOB_CPUS_PER_NODE": "64(x2),32",
    "SLURMD_NODENAME": "n1",
}


def test_reads_the_environment() -> None:
    assert Allocation.from_env(ENVIRON) == Allocation("12", ("n1", "n2", "n3"), (64, 64, 32), "n1")


@pytest.mark.parametrize(
    ("told", "cpus"), [("4(x3)", (4, 4, 4)), ("64(x2),32", (64, 64, 32)), ("", (1, 1, 1))]
)
def test_what_each_node_has(told: str, cpus: tuple[int, ...]) -> None:
    assert Allocation.from_env({**ENVIRON, "SLURM_JOB_CPUS_PER_NODE": told}).cpus == cpus


def test_outside_of_an_allocation() -> None:
    with pytest.raises(SetupError, match=r"slurmmesh\.submit"):
        Allocation.from_env({})
    with pytest.raises(HostListError):
        Allocation.from_env({**ENVIRON, "SLURM_JOB_NODELIST": "n[1-"})


def test_addresses_by_scontrol_and_without(
    fake: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = fake(
        scontrol='echo "NodeName=n1 NodeAddr=10.1.0.1 NodeHostName=n1"\n'
        'echo "NodeName=n2 NodeAddr=fd00::2 NodeHostName=n2"\necho "Node n3 not found"; exit 1'
    )
    monkeypatch.setenv("PATH", environ["PATH"])
    allocation = Allocation.from_env(ENVIRON)
    assert allocation.addresses() == {"n1": "10.1.0.1", "n2": "fd00::2", "n3": "n3"}
    monkeypatch.setenv("PATH", "/nowhere")
    assert allocation.addresses() == {"n1": "n1", "n2": "n2", "n3": "n3"}


def test_no_loopback_for_a_name_that_resolves_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's hosts file gives a host's own name 127.0.1.1."""

    def resolve(name: str, *args: object, **options: object) -> list[tuple[object, ...]]:
        table = {"n1": ["127.0.1.1"], "n2": ["127.0.1.1", "10.1.0.2"], "n3": ["::1", "fd00::3"]}
        return [(0, 0, 0, "", (address, 0)) for address in table[name]]

    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    addresses = Allocation.from_env(ENVIRON).addresses()
    assert addresses == {"n1": "n1", "n2": "10.1.0.2", "n3": "fd00::3"}


def test_the_own_address_is_that_of_the_route_to_the_others() -> None:
    allocation = Allocation.from_env(ENVIRON)
    local = dict.fromkeys(allocation.nodes, "127.0.0.1")
    assert allocation.own_address(local) == "127.0.0.1"
    unreachable = {"n1": "10.1.0.1", "n2": "no such host", "n3": "no such host"}
    assert allocation.own_address(unreachable) == "10.1.0.1"
    alone = Allocation("12", ("n1",), (4,), "n1")
    assert alone.own_address({"n1": "10.1.0.1"}) == "127.0.0.1"


def test_a_setting_picks_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    allocation = Allocation.from_env(ENVIRON)
    slurms = {"n1": "10.1.0.1", "n2": "10.1.0.2", "n3": "10.1.0.3"}
    for wanted in ("lo", "127.0.0.0/8", "127.0.0.9/8"):
        monkeypatch.setenv("SLURMMESH_INTERFACE", wanted)
        assert allocation.own_address(slurms) == "127.0.0.1"
    for wanted, told in (
        ("nosuch0", "no interface 'nosuch0' with an address"),
        ("203.0.113.0/28", r"no address in 203\.0\.113\.0/28"),
        ("fd12:3456::/32", "no address in fd12:3456::/32"),
    ):
        monkeypatch.setenv("SLURMMESH_INTERFACE", wanted)
        with pytest.raises(SetupError, match=rf"{told}; it has lo 127\.0\.0\.1"):
            allocation.own_address(slurms)
    alone = Allocation("12", ("n1",), (4,), "n1")
    assert alone.own_address({"n1": "10.1.0.1"}) == "127.0.0.1"


def test_a_table_of_ipv6_addresses(tmp_path: Path) -> None:
    table = tmp_path / "if_inet6"
    table.write_text(
        "00000000000000000000000000000001 01 80 10 80       lo\n"
        "fe8000000000000000000000000000aa 02 40 20 80     eth0\n"
        "fd0000000000000000000000000000aa 03 40 00 80      ib0\n"
    )
    assert interfaces._ipv6(table) == [("lo", "::1"), ("ib0", "fd00::aa")]
    assert interfaces._ipv6(tmp_path / "no IPv6 in this kernel") == []
