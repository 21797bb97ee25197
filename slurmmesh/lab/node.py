"""A node of the lab: one helper process, with slurmd and all that slurmd starts below it.

The helper is a subreaper: step daemons, which leave slurmd to live on without it, and tasks,
which may leave their step daemon, all stay its descendants. So a node is a subtree of the
process table, and killing a node is killing that subtree.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slurmmesh import linux
from slurmmesh.errors import LabError
from slurmmesh.lab import processes, spawn
from slurmmesh.lab.network import LabNetwork, enter_own_namespaces


@dataclass(frozen=True)
class NodeSpec:
    """What one node's helper is to run.

    Attributes:
        output: where slurmd prints to.
        etc: what a node with namespaces of its own sees in place of files in ``/etc``.
    """

    name: str
    index: int
    slurmd: str
    conf: Path
    env: Mapping[str, str]
    output: Path
    etc: Path


def start_node(node: NodeSpec, network: LabNetwork | None) -> int:
    """Start the helper of a node and return its pid; SIGTERM to it is the node's death.

    The helper ends by itself, with slurmd's exit code, when nothing of the node is left.

    Raises:
        LabError: the node's network could not be set up.
    """
    if network is None:
        return spawn.fork_child(lambda: _live(node), signal.SIGTERM)
    from_node, to_manager = os.pipe()
    from_manager, to_node = os.pipe()

    def body() -> None:
        # Copies of the manager's ends would hide its death.
        os.close(from_node)
        os.close(to_node)
        _live_in_namespace(node, network, from_manager, to_manager)

    pid = spawn.fork_child(body, signal.SIGTERM)
    os.close(to_manager)
    os.close(from_manager)
    try:
        if os.read(from_node, 1) != b"n":
            raise LabError(f"{node.name}: no namespace; see {node.output}")
        network.connect(node.index, pid)
        os.write(to_node, b"c")
        if os.read(from_node, 1) != b"r":
            raise LabError(f"{node.name}: no network; see {node.output}")
    finally:
        os.close(from_node)
        os.close(to_node)
    return pid


def _live_in_namespace(
    node: NodeSpec, network: LabNetwork, from_manager: int, to_manager: int
) -> None:
    spawn.redirect(node.output)
    enter_own_namespaces(node.name, node.etc)
    os.write(to_manager, b"n")
    if os.read(from_manager, 1) != b"c":
        return
    network.configure_inside(node.index)
    os.write(to_manager, b"r")
    _live(node)


def _live(node: NodeSpec) -> None:
    spawn.redirect(node.output)
    spawn.close_files()
    linux.set_name(processes.NODE_NAME)
    linux.become_subreaper()
    signal.signal(signal.SIGTERM, _die)
    argv = [node.slurmd, "-D", "-N", node.name, "-f", str(node.conf)]
    slurmd = spawn.spawn_daemon(argv, node.env, node.output)
    code = 1
    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            os._exit(code)
        if pid == slurmd:
            code = abs(os.waitstatus_to_exitcode(status))


def _die(signum: int, frame: object) -> None:
    """Nearest first: slurmd and step daemons go before they can report a task's death."""
    processes.kill_all(lambda: processes.descendants(os.getpid()))
    os._exit(0)
