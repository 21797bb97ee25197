"""The process that a lab lives under, and that ends it.

``Lab`` starts a keeper; the keeper forks the manager, which starts the daemons. All of them are
the keeper's descendants, and stay so however they detach, because it is a subreaper. It watches
its owner, and ends the lab when told to, or when the owner is gone without a word. Should the
keeper itself be killed, the manager does the same in its place; should both be killed at once,
each node's helper ends its node.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from typing import Any

from slurmmesh import linux
from slurmmesh.errors import LabError, SlurmmeshError
from slurmmesh.lab import control, packages, processes, spawn
from slurmmesh.lab.folder import make_root, remove_root
from slurmmesh.lab.manager import Manager, user_name, write_card
from slurmmesh.lab.network import LabNetwork
from slurmmesh.lab.spec import LabSpec, Layout

# How long tasks of jobs may take to end after SIGTERM, when the lab is ended under them.
GRACE_S = 1.0


class _KeeperGone(BaseException):
    """Raised in the manager by the signal it gets when the keeper dies."""


def main(request: dict[str, Any]) -> None:
    """Keep one lab until it is to end.

    Standard input: further lines of the owner; its end is the end of the lab. Standard output:
    one JSON line, once the lab is ready or has failed.
    """
    wake = _wake_on_signals()
    owner = _watch(request["owner"])
    linux.set_name(processes.KEEPER_NAME)
    linux.become_subreaper()
    network: LabNetwork | None = None
    try:
        spec = LabSpec.from_json(request["spec"])
        path = packages.search_path()
        programs = packages.find_programs(spec, path)
        user_name()
        network = LabNetwork(programs["ip"]) if spec.netns else None
        layout, temporary = make_root(
            request["directory"], accounting=spec.accounting, environ=os.environ
        )
    except Exception as error:
        _report(_as_message(error))
        return
    keeper = os.getpid()

    def manage() -> None:
        signal.signal(signal.SIGTERM, _keeper_gone)
        try:
            linux.set_name(processes.MANAGER_NAME)
            linux.become_subreaper()
            manager = Manager(spec, layout, programs, network, os.environ, path)
            _manage(manager, layout, spec, keeper)
        except _KeeperGone:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            _end(layout, network, temporary)

    manager_pid = spawn.fork_child(manage, signal.SIGTERM)
    spawn.redirect_output(layout.keeper_log)
    try:
        _wait_for_end(manager_pid, wake, owner)
    finally:
        _end(layout, network, temporary)


def _manage(manager: Manager, layout: Layout, spec: LabSpec, keeper: int) -> None:
    try:
        manager.start()
        write_card(layout, spec, keeper)
        listener = control.listen(layout.control_socket)
    except Exception as error:
        _report(_as_message(error))
        return
    _report({"root": str(layout.root)})
    spawn.redirect(layout.keeper_log)
    manager.serve(listener, _log)


def _as_message(error: Exception) -> dict[str, Any]:
    if isinstance(error, SlurmmeshError):
        return control.error_message(error)
    return control.error_message(LabError(traceback.format_exc()))


def _report(message: dict[str, Any]) -> None:
    # An owner that is gone does not listen; that it is gone is noticed elsewhere.
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(message).encode() + b"\n")


def _log(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)


def _keeper_gone(signum: int, frame: object) -> None:
    raise _KeeperGone


def _wake_on_signals() -> socket.socket:
    """A socket that becomes readable at each signal."""
    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    receiver.setblocking(False)
    signal.set_wakeup_fd(sender.detach(), warn_on_full_buffer=False)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(signum, lambda signum, frame: None)
    return receiver


def _watch(owner: int) -> int | None:
    """A descriptor that becomes readable when the owner dies.

    The end of standard input tells it too, but not while a child that the owner forked lives.
    """
    try:
        watch = os.pidfd_open(owner)
    except (AttributeError, OSError):
        watch = None
    if os.getppid() != owner:
        sys.exit(1)
    return watch


def _wait_for_end(manager: int, wake: socket.socket, owner: int | None) -> None:
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(wake, select.POLLIN)
    if owner is not None:
        poll.register(owner, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == 0:
                if os.read(0, 4096) != control.DETACH:
                    return
                poll.unregister(0)
                if owner is not None:
                    poll.unregister(owner)
            elif fd == owner:
                return
            else:
                signals = wake.recv(4096)
                if any(signum != signal.SIGCHLD for signum in signals):
                    return
        if manager in processes.reap():
            return


def _end(layout: Layout, network: LabNetwork | None, temporary: bool) -> None:
    """End every process of the lab and remove what it made, whatever of that fails."""
    root = str(layout.root)
    with contextlib.ExitStack() as afterwards:
        afterwards.callback(remove_root, layout, temporary=temporary)
        if network is not None:
            afterwards.callback(network.close)
            afterwards.callback(network.remove)
        processes.end_politely(lambda: processes.users_processes(processes.of_a_lab(root)), GRACE_S)
        processes.kill_all(lambda: processes.of_a_lab(root))
