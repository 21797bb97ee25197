"""Jobs on nodes with several networks, each node in a namespace of its own; only root has those.

Each node has, beside the lab's ``eth0`` (IPv4) over which Slurm reaches it: ``ib0`` with addresses
of both families, ``hsn0`` with IPv6 alone, and all but the first have ``fab0``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from slurmmesh.lab import Lab

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]

ROOT = Path(__file__).parents[2]
NODES = ("node1", "node2", "node3")


@contextmanager
def network(lab: Lab, interface: str, nodes: Sequence[str], *addresses: str) -> Iterator[None]:
    """A further network: ``interface`` on these nodes, with addresses such as ``10.77.0.{}/24``."""
    bridge = f"t{os.getpid()}{interface}"
    ip("link", "add", bridge, "type", "bridge")
    try:
        ip("link", "set", bridge, "up")
        for node in nodes:
            number = node.removeprefix("node")
            cable = f"{bridge}{number}"
            inside = [
                f"ip link add {interface} type veth peer name {cable} netns {os.getpid()}",
                *(
                    f"ip address add {each.format(number)} dev {interface}"
                    + (" nodad" if ":" in each else "")
                    for each in addresses
                ),
                f"ip link set {interface} up",
            ]
            lab.run("srun", "-N1", "-w", node, "sh", "-c", " && ".join(inside))
            ip("link", "set", cable, "master", bridge, "up")
        yield
    finally:
        ip("link", "delete", bridge)


def ip(*command: str) -> None:
    subprocess.run(["ip", *command], check=True, capture_output=True)


@pytest.fixture(scope="module")
def lab(outlives_tests: Callable[[Path], AbstractContextManager[None]]) -> Iterator[Lab]:
    with ExitStack() as stack:
        lab = stack.enter_context(Lab(len(NODES), netns=True))
        stack.enter_context(outlives_tests(lab.root))
        stack.enter_context(network(lab, "ib0", NODES, "10.77.0.{}/24", "fd77::{}/64"))
        stack.enter_context(network(lab, "hsn0", NODES, "fd78::{}/64"))
        stack.enter_context(network(lab, "fab0", NODES[1:], "10.79.0.{}/24"))
        yield lab


class Job:
    """A program on the three nodes, run to its end; what it left behind."""

    def __init__(
        self, lab: Lab, folder: Path, program: str, interface: str, **variables: str
    ) -> None:
        (folder / "program.py").write_text(program)
        variables |= {
            "SLURMMESH_JOB_FOLDER": str(folder / "job"),
            "SLURMMESH_CLUSTER": "slurm",
            "SLURMMESH_NODES": str(len(NODES)),
            "SLURMMESH_INTERFACE": interface,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        exports = " ".join(f"{name}='{value}'" for name, value in variables.items())
        (folder / "batch.sh").write_text(
            f"#!/bin/bash\nexport {exports} SLURMMESH_JOB_ID=$SLURM_JOB_ID\n"
            f"{sys.executable} -u -m slurmmesh.hosts.program {folder}/program.py {folder}\n"
            f"echo $? >{folder}/code.tmp; mv {folder}/code.tmp {folder}/code\n"
        )
        command = ["sbatch", f"-N{len(NODES)}", "--no-kill", "-o", f"{folder}/out"]
        lab.run(*command, str(folder / "batch.sh"))
        deadline = time.monotonic() + 200
        while not (folder / "code").exists():
            assert time.monotonic() < deadline, (folder / "out").read_text()
            time.sleep(0.02)
        self.code = int((folder / "code").read_text())
        self.said = (folder / "out").read_text()
        log = folder / "job" / "events.jsonl"
        self.events: list[dict[str, Any]] = [json.loads(e) for e in log.read_text().splitlines()]
        result = folder / "result.json"
        self.result = json.loads(result.read_text()) if result.exists() else None

    def hosts(self, *fields: str) -> list[Any]:
        """These fields of each ``host_up``, in the order of the hosts."""
        ups = sorted((e for e in self.events if e["kind"] == "host_up"), key=lambda e: e["host"])
        return [tuple(up[field] for field in fields) for up in ups]


# Each rank tells its place, and all add up a tensor over torch's own Gloo, as a user would have it.
PLACES = """
import json, os, socket, sys
import slurmmesh as sm

NAMES = ["GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY"]


class Rank(sm.Actor):
    @sm.endpoint
    def place(self):
        return sm.context().host_address, [os.environ.get(name) for name in NAMES]

    @sm.endpoint
    def free_port(self):
        address = sm.context().host_address
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as sock:
            sock.bind((address, 0))
            return address, sock.getsockname()[1]

    @sm.endpoint
    def add_up(self, address, port):
        import torch
        import torch.distributed as dist

        os.environ.update(MASTER_ADDR=address, MASTER_PORT=str(port))
        dist.init_process_group("gloo")
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        ends = ends_of_connections()
        dist.barrier()
        return float(tensor), ends


def ends_of_connections():
    "Both addresses of each TCP connection of this process."
    inodes = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            inodes.add(os.readlink(f"/proc/self/fd/{fd}")[8:-1])
        except OSError:
            pass
    found = set()
    for name in ("tcp", "tcp6"):
        for line in open(f"/proc/net/{name}").read().splitlines()[1:]:
            fields = line.split()
            if fields[9] in inodes and fields[3] == "01":
                found |= {numeric(fields[1]), numeric(fields[2])}
    return sorted(found)


def numeric(text):
    raw = bytes.fromhex(text.split(":")[0])
    raw = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
    address = socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)
    return address.removeprefix("::ffff:")


hosts = sm.this_job().hosts
ranks = hosts.spawn_procs(name="ranks").spawn("rank", Rank)
places = list(ranks.place.call().get(60).values())
where = ranks.slice(hosts=0).free_port.call_one().get(60)
sums = list(ranks.add_up.call(*where).get(120).values())
own = [os.environ.get(name) for name in NAMES]
result = {"addresses": hosts.addresses, "places": places, "own": own, "sums": sums}
json.dump(result, open(sys.argv[1] + "/result.json", "w"))
"""


@pytest.mark.parametrize(
    ("wish", "interface", "network", "family"),
    [
        ("ib0", "ib0", "10.77.0.", "AF_INET"),
        ("fd77::/64", "ib0", "fd77::", "AF_INET6"),
        ("hsn", "hsn0", "fd78::", "AF_INET6"),
        ("", "eth0", "198.1", "AF_INET"),
    ],
)
def test_all_that_connects_hosts_goes_by_the_chosen_network(
    lab: Lab, tmp_path: Path, wish: str, interface: str, network: str, family: str
) -> None:
    job = Job(lab, tmp_path, PLACES, wish)
    assert job.code == 0, job.said
    addresses = job.result["addresses"]
    assert len(set(addresses)) == len(NODES)
    assert all(address.startswith(network) for address in addresses)
    assert job.hosts("name", "address", "interface") == [
        (name, address, interface) for name, address in zip(NODES, addresses, strict=True)
    ]
    reason = f"asked for as {wish} " if wish else f"the route to the controller ({addresses[0]})"
    assert all(why.startswith(reason) for (why,) in job.hosts("why"))
    variables = [interface, interface, f"={interface}", family]
    assert job.result["places"] == [[address, variables] for address in addresses]
    assert job.result["own"] == variables
    # Gloo is told the interface, and takes IPv4 where that has both families.
    allowed = {*addresses, *(f"10.77.0.{i}" for i in (1, 2, 3) if interface == "ib0")}
    for total, ends in job.result["sums"]:
        assert total == len(NODES)
        assert ends, "no connection"
        assert set(ends) <= allowed
    assert "networks" not in job.said


def test_what_the_user_set_for_a_library_stays(lab: Lab, tmp_path: Path) -> None:
    program = PLACES.partition("where = ranks")[0] + (
        "json.dump({'places': places}, open(sys.argv[1] + '/result.json', 'w'))\n"
    )
    job = Job(lab, tmp_path, program, "ib0", NCCL_SOCKET_IFNAME="hsn", GLOO_SOCKET_IFNAME="eth0")
    assert job.code == 0, job.said
    assert [set_ for _, set_ in job.result["places"]] == [["eth0", "ib0", "hsn", None]] * 3


def test_the_controllers_node_may_lack_the_fabric_if_a_second_choice_is_given(
    lab: Lab, tmp_path: Path
) -> None:
    """Hosts reach each other by the fabric and the controller as it is reached; it is told."""
    program = "import slurmmesh as sm; sm.this_job().hosts"
    job = Job(lab, tmp_path, program, "fab0,eth0")
    assert job.code == 0, job.said
    assert [each for (each,) in job.hosts("interface")] == ["eth0", "fab0", "fab0"]
    assert "slurmmesh: node1: no interface is fab0\n" in job.said
    assert "the hosts' addresses are in 2 networks: 198." in job.said
    assert "10.79.0.0/24 (node2, node3)" in job.said


def test_a_host_without_the_wished_network_ends_the_job_with_a_list(
    lab: Lab, tmp_path: Path
) -> None:
    program = "import slurmmesh as sm; sm.this_job().hosts"
    job = Job(lab, tmp_path, program, "fab0")
    assert job.code == 6, job.said
    assert "on node node1 no interface is fab0. It has lo 127.0.0.1/8 (loopback), eth0 198." in (
        job.said
    )


# Two replicas; one dies and is healed from the other: Lighthouse, store, manager, state, Gloo.
TRAINING = """
import json, sys
import slurmmesh as sm
import cloudpickle
from tests.recovery import programs

cloudpickle.register_pickle_by_value(programs)


def train(replica, back):
    value = programs.train(replica, 12, die_at={1: 3}, until_back=back)
    manager = replica.manager._manager.address() if replica.manager._manager else ""
    return {**value, "manager": manager, "state": replica.transport.metadata()}


hosts = sm.this_job().hosts
result = sm.recovery.train(train, sys.argv[1] + "/back", hosts=hosts, replicas=2)
json.dump(
    {"values": result.values, "deaths": result.deaths, "recovered": result.recovered},
    open(sys.argv[1] + "/result.json", "w"),
)
"""


def test_replicas_train_and_heal_by_ipv6_alone(lab: Lab, tmp_path: Path) -> None:
    job = Job(lab, tmp_path, TRAINING, "hsn0")
    assert job.code == 0, job.said
    assert (job.result["deaths"], job.result["recovered"]) == (1, 1)
    values = job.result["values"]
    assert values[0]["fingerprint"] == values[1]["fingerprint"]
    assert values[1]["incarnation"] == 1
    [up] = (event for event in job.events if event["kind"] == "lighthouse_up")
    assert up["address"].startswith("http://[fd78::")
    for value in values:
        assert value["manager"].startswith("http://[fd78::")
        assert "@fd78::" in value["state"]
    healed = [e["healed_from"] for e in job.events if e["kind"] == "quorum"]
    assert 0 in healed
