"""What the tests of hosts share."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest

from slurmmesh.hosts.controller import Controller
from slurmmesh.hosts.local import LocalAgent
from slurmmesh.hosts.mesh import HostMesh
from slurmmesh.hosts.roster import HostRecord
from slurmmesh.shape import Extent, Region

ROOT = Path(__file__).parents[2]
DIAL = """
import sys
from slurmmesh.hosts.remote_agent import DialSpec, dial
port, identity, name = sys.argv[1:]
sys.exit(dial(DialSpec((("127.0.0.1", int(port)),), identity, name, "127.0.0.1")))
"""


@dataclass
class DialledJob:
    """A controller and hosts that came to it over TLS, as in an allocation."""

    controller: Controller
    records: list[HostRecord]
    agents: list[subprocess.Popen[bytes]]
    hosts: HostMesh


@contextlib.contextmanager
def _dial_hosts(folder: Path, count: int) -> Iterator[DialledJob]:
    controller = Controller("job-1", folder)
    try:
        roster = controller.roster
        port = roster.listen("127.0.0.1")
        records = [roster.add_host(f"node{index}") for index in range(count)]
        agents = []
        for record in records:
            roster.authority.issue(record.identity).write(folder / "identity")
            where = str(port), str(folder / "identity"), record.identity
            with open(folder / f"{record.name}.err", "wb") as err:
                agent = subprocess.Popen(
                    [sys.executable, "-c", DIAL, *where],
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    stderr=err,
                    start_new_session=True,
                )
            record.launched = LocalAgent(agent)
            agents.append(agent)
        roster.wait_ready(records, 120)
        hosts = HostMesh(controller.runtime, Region(Extent.of({"hosts": count})))
        yield DialledJob(controller, records, agents, hosts)
    finally:
        controller.close()


@pytest.fixture(scope="session")
def dial_hosts() -> Callable[[Path, int], AbstractContextManager[DialledJob]]:
    """``with dial_hosts(folder, count) as job``: over once the block is."""
    return _dial_hosts


@pytest.fixture(scope="session")
def stopped() -> Callable[[int], AbstractContextManager[None]]:
    """``with stopped(pid)``: that process does not run meanwhile."""

    @contextlib.contextmanager
    def stop(pid: int) -> Iterator[None]:
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    return stop
