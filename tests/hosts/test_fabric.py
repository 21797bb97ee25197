"""What procs and people are told of the hosts' addresses, and how a host finds its controller."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import slurmmesh as sm
from slurmmesh.errors import SetupError
from slurmmesh.hosts.controller import Controller
from slurmmesh.hosts.fabric import socket_variables, warnings_about
from slurmmesh.hosts.mesh import HostMesh
from slurmmesh.shape import Extent, Region
from slurmmesh.slurm.addresses import Choice, alone

ROOT = Path(__file__).parents[2]
IB = Choice("10.8.0.1", "ib0", 16, "")
IB6 = Choice("fd08::1", "ib0", 64, "")


def test_libraries_are_told_the_interface_and_the_family() -> None:
    told = {"GLOO_SOCKET_IFNAME": "ib0", "TP_SOCKET_IFNAME": "ib0", "NCCL_SOCKET_IFNAME": "=ib0"}
    assert socket_variables(IB, {}) == {**told, "NCCL_SOCKET_FAMILY": "AF_INET"}
    assert socket_variables(IB6, {}) == {**told, "NCCL_SOCKET_FAMILY": "AF_INET6"}
    assert socket_variables(alone(""), {}) == {}


def test_what_the_user_or_the_template_set_is_left_alone() -> None:
    own = {"NCCL_SOCKET_IFNAME": "hsn", "GLOO_SOCKET_IFNAME": ""}
    assert socket_variables(IB6, own) == {"TP_SOCKET_IFNAME": "ib0"}
    assert "NCCL_SOCKET_FAMILY" not in socket_variables(IB6, {"NCCL_SOCKET_FAMILY": "AF_INET"})


def hosts(**networks: str) -> dict[str, Choice]:
    """``hosts(node1="10.8.0.1/16")``."""
    places = {}
    for name, text in networks.items():
        address, _, prefix = text.partition("/")
        places[name] = Choice(address, "eth0", int(prefix), "")
    return places


@pytest.mark.parametrize(
    "together",
    [
        hosts(),
        hosts(node1="10.8.0.1/16", node2="10.8.9.9/16"),
        hosts(node1="10.8.0.1/32", node2="10.9.0.1/32"),  # as some clouds give them
        hosts(node1="10.8.0.1/31", node2="10.8.0.3/31"),
        hosts(node1="127.0.0.1/8", node2="127.0.0.2/8"),
    ],
)
def test_hosts_in_one_network_are_nothing_to_look_at(together: dict[str, Choice]) -> None:
    assert warnings_about(together) == []


def test_hosts_in_several_networks_are_told_in_one_line() -> None:
    many = {f"node{i}": f"10.8.0.{i}/16" for i in range(1, 9)}
    [line] = warnings_about(hosts(**many, odd="10.1.0.9/24", v6="fd08::1/128"))
    assert line == (
        "the hosts' addresses are in 3 networks: 10.8.0.0/16 (node1, node2 and 6 more), "
        "10.1.0.0/24 (odd), IPv6 links (v6). Each host must reach those of all others; "
        "--interface or SLURMMESH_INTERFACE picks one network"
    )


def test_hosts_that_could_not_have_what_they_wanted_are_told_together() -> None:
    fell = Choice("10.1.0.1", "eth0", 24, "", "no interface is ib0")
    places = {"node1": fell, "node2": Choice("10.1.0.2", "eth0", 24, ""), "node3": fell}
    assert warnings_about(places) == ["node1, node3: no interface is ib0"]


# ------------------------------------------------------------------ a host dials its controller

DIAL = """
import json, sys
from slurmmesh.hosts.remote_agent import DialSpec, dial
targets = tuple(map(tuple, json.loads(sys.argv[1])))
sys.exit(dial(DialSpec(targets, sys.argv[2], "host-0", sys.argv[3])))
"""


class Teller(sm.Actor):
    @sm.endpoint
    def address(self) -> str:
        return sm.context().host_address


class Awaited:
    """A controller that awaits one host."""

    def __init__(self, folder: Path) -> None:
        self.controller = Controller("job-1", folder / "job")
        self.roster = self.controller.roster
        self.record = self.roster.add_host("node1")
        self.identity = folder / "identity"
        self.roster.authority.issue(self.record.identity).write(self.identity)

    def dial(self, *targets: tuple[str, int], interface: str = "") -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-c", DIAL, json.dumps(targets), str(self.identity), interface],
            cwd=ROOT,
            stderr=subprocess.PIPE,
        )

    def hosts(self) -> HostMesh:
        self.roster.wait_ready([self.record], 30)
        return HostMesh(self.controller.runtime, Region.from_ranks(Extent.of({"hosts": 1}), [0]))


@pytest.fixture
def awaited(tmp_path: Path) -> Iterator[Awaited]:
    made = Awaited(tmp_path)
    yield made
    made.controller.close()


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Nobody listens there, and nobody else gets it."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def test_a_host_by_ipv6(awaited: Awaited) -> None:
    with awaited.dial(("::1", awaited.roster.listen("::1"))) as agent:
        mesh = awaited.hosts()
        assert mesh.addresses == ["::1"]
        tellers = mesh.spawn_procs().spawn("teller", Teller)
        assert list(tellers.address.call().get(30).values()) == ["::1"]
        awaited.controller.close()
        assert agent.wait(20) == 0


def test_the_next_address_is_tried_and_that_is_told(
    awaited: Awaited, closed_port: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    awaited.roster.listen("127.0.0.1")
    port = awaited.roster.listen("::1")
    with awaited.dial(("127.0.0.1", closed_port), ("::1", port)):
        assert awaited.hosts().addresses == ["::1"]
        said = f"could not reach the controller at 127.0.0.1 port {closed_port}: "
        assert f"slurmmesh: node1: {said}" in capfd.readouterr().err
        awaited.hosts()
        assert said not in capfd.readouterr().err, "once is enough"
        awaited.controller.close()
    events = map(json.loads, (tmp_path / "job" / "events.jsonl").read_text().splitlines())
    [up] = (event for event in events if event["kind"] == "host_up")
    told = {key: up[key] for key in ("name", "address", "interface", "why")}
    assert told == {
        "name": "node1",
        "address": "::1",
        "interface": "lo",
        "why": "all nodes of the job go by loopback: they are on this machine",
    }


def test_a_host_that_reaches_no_address_says_which(awaited: Awaited, closed_port: int) -> None:
    with awaited.dial(("127.0.0.1", closed_port), ("::1", closed_port)) as agent:
        _, said = agent.communicate(timeout=30)
    for address in ("cannot reach the controller at 127.0.0.1", "; ::1"):
        assert f"{address} port {closed_port}: " in said.decode()


def test_a_host_without_the_wished_interface_is_a_setup_error(awaited: Awaited) -> None:
    port = awaited.roster.listen("127.0.0.1")
    with awaited.dial(("127.0.0.1", port), interface="nosuch0") as agent:
        with pytest.raises(SetupError, match=r"node1: .*no interface is nosuch0\. It has lo 127"):
            awaited.hosts()
        awaited.controller.close()
        assert agent.wait(20) == 1
