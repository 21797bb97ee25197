"""Nodes with networks of their own; only root can make them."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slurmmesh.errors import LabError, UsageError
from slurmmesh.lab import Lab
from slurmmesh.lab.network import LabNetwork, run_ip

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]


def links() -> set[str]:
    """Those of all labs on the machine."""
    return {name for name in os.listdir("/sys/class/net") if name.startswith("slm")}


def network_of(lab: Lab) -> re.Pattern[str]:
    """What the links of a lab are called."""
    address = re.search(r"\b198\.(18|19)\.(\d+)\.254\b", lab.conf.read_text())
    assert address is not None
    number = (int(address[1]) - 18) * 256 + int(address[2])
    return re.compile(f"slmesh{number}|slm{number}n[0-9]+")


def links_of(lab: Lab) -> set[str]:
    return set(filter(network_of(lab).fullmatch, links()))


@pytest.fixture(scope="module")
def lab(outlives_tests: Callable[[Path], object]) -> Iterator[Lab]:
    running = Lab(3, netns=True, slurmd_timeout_s=2)
    with running, outlives_tests(running.root):  # type: ignore[attr-defined]
        own = network_of(running)
        assert len(links_of(running)) == 4
        yield running
    assert not list(filter(own.fullmatch, links()))


def test_each_node_is_a_machine_of_its_own_on_the_network(lab: Lab) -> None:
    show = "hostname; cat /sys/class/net/eth0/operstate; getent ahostsv4 node3"
    for node in ("node1", "node2"):
        out = lab.run("srun", "-N1", "-w", node, "sh", "-c", show).stdout.split()
        assert out[:2] == [node, "up"]
        assert out[2].startswith(("198.18.", "198.19."))
        assert out[2].endswith(".3")


def test_nodes_reach_each_other_and_the_machine(lab: Lab) -> None:
    server = "import socket; s = socket.create_server(('', 5000)); c, _ = s.accept(); c.send(b'hi')"
    client = (
        "import socket, time\n"
        "for _ in range(200):\n"
        "    try: print(socket.create_connection(('node1', 5000)).recv(9).decode()); break\n"
        "    except ConnectionRefusedError: time.sleep(0.05)\n"
    )
    program = f"import os\nexec({server!r} if os.environ['SLURM_PROCID'] == '0' else {client!r})"
    out = lab.run("srun", "-N2", "-w", "node1,node2", "/usr/bin/python3", "-c", program)
    assert out.stdout == "hi\n"
    wide = "srun -N3 -l hostname"
    assert sorted(lab.run("sh", "-c", wide).stdout.split("\n")[:-1]) == [
        "0: node1",
        "1: node2",
        "2: node3",
    ]


def test_an_unknown_name_fails_at_once_in_a_node(lab: Lab) -> None:
    find = "getent ahostsv4 no.such.host.invalid; echo $?"
    assert lab.run("srun", "-N1", "sh", "-c", find, timeout=8).stdout == "2\n"


@pytest.mark.slow
def test_a_cut_node_is_down_for_slurm_while_its_task_runs_on(
    lab: Lab, tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    beat = tmp_path / "beat"
    loop = f"while :; do date +%s.%N > {beat}.new; mv {beat}.new {beat}; sleep 0.1; done"
    (tmp_path / "task").write_text(loop)
    srun = f"srun -w node2 -N1 -n1 --no-kill --kill-on-bad-exit=0 sh {tmp_path}/task"
    job = lab.run(
        "sbatch",
        "--parsable",
        "--no-kill",
        "-N2",
        "-w",
        "node1,node2",
        "-o/dev/null",
        "--wrap",
        srun,
    ).stdout.strip()
    wait_until(beat.exists, "the task runs")
    lab.cut_network("node2")
    lab.wait_state("node2", "down")
    seen = beat.read_text()
    wait_until(lambda: beat.read_text() != seen, "the task beats on behind the cut")
    lab.heal_network("node2")
    lab.wait_state("node2", "idle", "mixed", "allocated")
    lab.run("scancel", job)
    lab.wait_state("node2", "idle")


@pytest.mark.slow
def test_a_killed_node_falls_silent_and_comes_back_with_a_new_network(lab: Lab) -> None:
    before = links_of(lab)
    lab.kill_node("node3")
    assert len(before - links_of(lab)) == 1
    with pytest.raises(UsageError, match="node3 is not running"):
        lab.cut_network("node3")
    lab.wait_state("node3", "down")
    lab.start_node("node3")
    assert links_of(lab) == before
    assert lab.run("srun", "-N1", "-w", "node3", "hostname").stdout == "node3\n"


@pytest.mark.slow
def test_two_labs_have_two_networks(lab: Lab) -> None:
    with Lab(2, netns=True) as other:
        show = ("srun", "-N1", "-w", "node1", "getent", "ahostsv4", "node1")
        assert lab.run(*show).stdout.split()[0] != other.run(*show).stdout.split()[0]


@pytest.fixture
def network() -> Iterator[LabNetwork]:
    network = LabNetwork("/usr/sbin/ip")
    network.create()
    yield network
    network.remove()
    network.close()
    assert not links() & {network.bridge, network._cable(0)}


@contextmanager
def connected(network: LabNetwork, wait_until: Callable[..., None]) -> Iterator[None]:
    """Cable 0 leads to a namespace; afterwards the one process in it is dead."""
    with subprocess.Popen(["unshare", "--net", "sleep", "60"]) as process:
        try:
            ours, own = "/proc/self/ns/net", f"/proc/{process.pid}/ns/net"
            wait_until(lambda: os.readlink(own) != os.readlink(ours), "it has its namespace")
            network.connect(0, process.pid)
            assert network._cable(0) in links()
            yield
        finally:
            process.kill()


def test_a_cable_that_the_kernel_removed_is_removed(
    network: LabNetwork, wait_until: Callable[..., None]
) -> None:
    cable = network._cable(0)
    with connected(network, wait_until):
        pass
    wait_until(lambda: cable not in links(), "the namespace is gone and the cable with it")
    network.cut(0)
    network.disconnect(0)
    with pytest.raises(LabError, match=cable):
        network.heal(0)


def test_a_cable_is_removed_while_the_kernel_does_that(
    network: LabNetwork, wait_until: Callable[..., None]
) -> None:
    for _ in range(20):
        with connected(network, wait_until):
            pass
        network.disconnect(0)
        wait_until(lambda: network._cable(0) not in links(), "the cable is gone")


def test_a_device_that_is_gone_hides_no_other_failure(network: LabNetwork) -> None:
    for commands in (["link delete none", "link delete lo"], ["link delete lo"], ["no such thing"]):
        with pytest.raises(LabError, match="the network of the lab"):
            run_ip("/usr/sbin/ip", commands, or_gone=True)
    run_ip("/usr/sbin/ip", ["link delete none", f"link set {network.bridge} down"], or_gone=True)
    assert (Path("/sys/class/net") / network.bridge / "operstate").read_text() == "down\n"


def test_a_bridge_that_a_killed_lab_left_is_removed_by_the_next() -> None:
    left = LabNetwork("/usr/sbin/ip")
    left.create()
    bridge, number = left.bridge, left._number
    left.close()
    try:
        assert os.path.exists(f"/sys/class/net/{bridge}")
        again = LabNetwork("/usr/sbin/ip")
        assert again._number == number
        again.create()
    finally:
        left.remove()
    again.close()
    assert not os.path.exists(f"/sys/class/net/{bridge}")


def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UsageError, match="need root"):
        LabNetwork("/usr/sbin/ip")
