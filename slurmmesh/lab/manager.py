"""The process that starts a lab's daemons and does to them what a ``Lab`` asks."""

from __future__ import annotations

import json
import os
import pwd
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from slurmmesh.errors import LabError, UsageError
from slurmmesh.lab import accounting, control, processes, render, spawn
from slurmmesh.lab.environment import daemon_environment
from slurmmesh.lab.network import LabNetwork, write_etc
from slurmmesh.lab.node import NodeSpec, start_node
from slurmmesh.lab.packages import slurm_version
from slurmmesh.lab.ports import PortClaims
from slurmmesh.lab.render import Site
from slurmmesh.lab.spec import LabSpec, Layout

_POLL_S = 0.005
_SINFO_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 15.0
_PORT_TRIES = 4
_NODE_PORT_OF_ITS_OWN = 6818
_TAIL_LINES = 6
_JOB_IDS = 60_000_000
_PORT_TAKEN_WORDS = "Address already in use"


class PortTaken(LabError):
    """A daemon could not listen where it was told to: somebody was faster."""


class Manager:
    """All daemons of one lab. Runs in a process of its own, without threads."""

    def __init__(
        self,
        spec: LabSpec,
        layout: Layout,
        programs: Mapping[str, str],
        network: LabNetwork | None,
        environ: Mapping[str, str],
        path: str,
    ) -> None:
        self._spec = spec
        self._layout = layout
        self._programs = programs
        self._network = network
        self._env = daemon_environment(environ, layout, path)
        self._user = user_name()
        self._claims = PortClaims()
        self._pids: dict[str, int] = {}
        self._dead: dict[str, int] = {}
        self._deadline = time.monotonic() + spec.start_timeout_s

    # -- start ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Start everything and wait until all nodes are idle.

        Raises:
            LabError: a daemon ended or was not ready in time; with its last words.
        """
        self._write_fixed_files()
        self._start_munged()
        if self._spec.accounting:
            accounting.create_database(self._layout, self._programs, self._user)
            self._spawn(
                "mariadbd", accounting.server_command(self._layout, self._programs, self._user)
            )
            database = str(self._layout.database_socket)
            self._wait("mariadbd", lambda: answers(database), ["mariadbd"])
        if self._network is not None:
            self._network.create()
            addresses = [self._network.node_address(i) for i in range(self._spec.nodes)]
            etc = self._layout.run / "etc"
            write_etc(etc, self._network.controller, self._spec.node_names, addresses)
        for attempt in range(_PORT_TRIES):
            try:
                self._start_slurm()
                return
            except PortTaken:
                if attempt == _PORT_TRIES - 1:
                    raise
                self._stop_slurm()

    def _write_fixed_files(self) -> None:
        layout = self._layout
        layout.munge_key.touch(mode=0o600)
        layout.munge_key.write_bytes(os.urandom(128))
        layout.munge_key.chmod(0o400)
        for gpu in range(self._spec.gpus):
            (layout.run / f"gpu{gpu}").symlink_to("/dev/null")
        for name in self._spec.node_names:
            (layout.spool / name).mkdir(mode=0o700)
        (layout.etc / "gres.conf").write_text(render.gres_conf(self._spec, layout))
        cgroup = render.cgroup_conf(slurm_version(self._programs["slurmctld"]))
        if cgroup:
            (layout.etc / "cgroup.conf").write_text(cgroup)

    def _start_munged(self) -> None:
        layout = self._layout
        self._spawn(
            "munged",
            [
                self._programs["munged"],
                "--foreground",
                # A lab's folder may lie below one that others can write to.
                "--force",
                f"--key-file={layout.munge_key}",
                f"--socket={layout.munge_socket}",
                f"--pid-file={layout.run}/munged.pid",
                f"--log-file={layout.log}/munged.log",
                f"--seed-file={layout.run}/munge.seed",
                "--num-threads=4",
            ],
        )
        self._wait("munged", lambda: answers(str(layout.munge_socket)), ["munged"])

    def _start_slurm(self) -> None:
        site = self._choose_site()
        layout = self._layout
        layout.conf.write_text(render.slurm_conf(self._spec, layout, site))
        if site.dbd_port is not None:
            self._start_slurmdbd(site)
        self._start_slurmctld(site)
        for name in self._spec.node_names:
            self._start_node(name)
        self._wait("all nodes to be idle", self._all_idle, list(self._pids))
        self._site = site

    def _choose_site(self) -> Site:
        """Ports are claimed anew at each call: those of a failed attempt stay claimed."""
        spec, network = self._spec, self._network
        own_ports = 0 if network else spec.nodes
        ports = self._claims.claim(own_ports + 1 + spec.accounting)
        return Site(
            user=self._user,
            controller=network.controller if network else "127.0.0.1",
            slurmctld_port=ports[0],
            dbd_port=ports[1] if spec.accounting else None,
            node_addresses=tuple(
                network.node_address(i) if network else "127.0.0.1" for i in range(spec.nodes)
            ),
            node_hostnames=spec.node_names if network else ("localhost",) * spec.nodes,
            node_ports=(_NODE_PORT_OF_ITS_OWN,) * spec.nodes if network else ports[-spec.nodes :],
            first_job_id=_next_job_ids(),
        )

    def _start_slurmdbd(self, site: Site) -> None:
        conf = self._layout.dbd_conf
        conf.touch(mode=0o600)
        conf.write_text(render.slurmdbd_conf(self._layout, site))
        env = {**self._env, **accounting.database_client_environment(self._layout)}
        self._spawn("slurmdbd", [self._programs["slurmdbd"], "-D"], env)
        address = ("127.0.0.1", site.dbd_port)
        self._wait("slurmdbd", lambda: answers(address), ["mariadbd", "slurmdbd"])

    def _start_slurmctld(self, site: Site) -> None:
        argv = [self._programs["slurmctld"], "-D", "-f", str(self._layout.conf)]
        self._spawn("slurmctld", argv)
        # A client that comes too early waits a second before it tries again.
        address = (site.controller, site.slurmctld_port)
        self._wait("slurmctld", lambda: answers(address), ["slurmctld"])

    def _start_node(self, name: str) -> None:
        layout = self._layout
        daemon = node_daemon(name)
        node = NodeSpec(
            name=name,
            index=self._spec.node_index(name),
            slurmd=self._programs["slurmd"],
            conf=layout.conf,
            env=self._env,
            output=layout.output(daemon),
            etc=layout.run / "etc",
        )
        self._dead.pop(daemon, None)
        self._pids[daemon] = start_node(node, self._network)

    def _spawn(self, name: str, argv: list[str], env: Mapping[str, str] | None = None) -> None:
        output = self._layout.output(name)
        self._dead.pop(name, None)
        self._pids[name] = spawn.spawn_daemon(argv, self._env if env is None else env, output)

    def _all_idle(self) -> bool:
        return set(self._states().values()) == {"idle"}

    def _states(self) -> dict[str, str]:
        """Node to state as Slurm tells it; all unknown while slurmctld does not answer."""
        argv = [self._programs["sinfo"], "-h", "-N", "-p", "main", "-o", "%N %t"]
        try:
            done = subprocess.run(
                argv, env=self._env, capture_output=True, text=True, timeout=_SINFO_TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            return dict.fromkeys(self._spec.node_names, "unknown")
        told = dict(line.split() for line in done.stdout.splitlines() if len(line.split()) == 2)
        return {name: told.get(name, "unknown") for name in self._spec.node_names}

    # -- waiting and dying ---------------------------------------------------------------------

    def _wait(self, what: str, ready: Callable[[], bool], daemons: Iterable[str]) -> None:
        daemons = list(daemons)
        while True:
            self._note_dead()
            for name in daemons:
                if name in self._dead:
                    raise self._death(name)
            if ready():
                return
            if time.monotonic() > self._deadline:
                raise LabError(
                    f"waited {self._spec.start_timeout_s:.0f} s for {what}, in vain"
                    + "".join(f"\n{name} said:{self._last_words(name)}" for name in daemons[:3])
                )
            time.sleep(_POLL_S)

    def _note_dead(self) -> None:
        names = {pid: name for name, pid in self._pids.items()}
        for pid, code in processes.reap().items():
            if pid in names:
                name = names[pid]
                del self._pids[name]
                self._dead[name] = code

    def _death(self, name: str) -> LabError:
        words = self._last_words(name)
        kind = PortTaken if _PORT_TAKEN_WORDS in words else LabError
        return kind(f"{name} ended with code {self._dead[name]}; its last words:{words}")

    def _last_words(self, name: str) -> str:
        try:
            lines = self._layout.output(name).read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        return "".join(f"\n  | {line}" for line in lines[-_TAIL_LINES:]) or " nothing"

    def _stop_slurm(self) -> None:
        slurm = [name for name in self._pids if name not in ("munged", "mariadbd")]
        for name in slurm:
            self._kill(name)

    def _kill(self, name: str, signum: signal.Signals = signal.SIGKILL) -> None:
        """End a daemon and what is below it; a node's helper ends its node by itself."""
        pid = self._pids[name]
        below = processes.descendants(pid)
        if name.startswith("slurmd."):
            os.kill(pid, signal.SIGTERM)
        else:
            os.kill(pid, signum)
            if signum == signal.SIGKILL:
                processes.send(below, signal.SIGKILL)
        self._wait_dead(name)

    def _wait_dead(self, name: str) -> None:
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        while name in self._pids:
            self._note_dead()
            if time.monotonic() > deadline:
                raise LabError(f"{name} (pid {self._pids[name]}) does not end")
            time.sleep(_POLL_S)

    # -- requests ------------------------------------------------------------------------------

    def serve(self, listener: socket.socket, log: Callable[[str], None]) -> None:
        """Answer requests until one says stop."""
        receiver, sender = socket.socketpair()
        sender.setblocking(False)
        receiver.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda signum, frame: None)
        signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        self._stopping = False
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            selector.register(receiver, selectors.EVENT_READ)
            while not self._stopping:
                for key, _ in selector.select():
                    if key.fileobj is listener:
                        control.answer_one(listener, self._handle)
                    else:
                        receiver.recv(4096)
                        self._log_dead(log)

    def _log_dead(self, log: Callable[[str], None]) -> None:
        known = set(self._dead)
        self._note_dead()
        for name in self._dead.keys() - known:
            log(f"{name} ended with code {self._dead[name]}")

    def _handle(self, request: dict[str, Any]) -> dict[str, Any]:
        self._note_dead()
        self._deadline = time.monotonic() + self._spec.start_timeout_s
        what, node = request["do"], request.get("node", "")
        if what == "hello":
            return {"slurmctld": "slurmctld" in self._pids}
        if what == "stop":
            self._stopping = True
        elif what == "kill_node":
            self._kill_node(node)
        elif what == "start_node":
            if node_daemon(node) in self._pids:
                raise UsageError(f"{node} is running")
            self._start_node(node)
        elif what == "cut_network":
            self._need_network().cut(self._running_node(node))
        elif what == "heal_network":
            self._need_network().heal(self._running_node(node))
        elif what == "stop_slurmctld":
            self._stop_slurmctld(crash=request["crash"])
        elif what == "start_slurmctld":
            if "slurmctld" in self._pids:
                raise UsageError("slurmctld is running")
            self._start_slurmctld(self._site)
        else:
            raise UsageError(f"a lab cannot {what!r}")
        return {}

    def _kill_node(self, name: str) -> None:
        index = self._running_node(name)
        if self._network is not None:
            # A machine that loses power sends no more packets; a killed process does.
            self._network.cut(index)
        self._kill(node_daemon(name))
        if self._network is not None:
            self._network.disconnect(index)

    def _stop_slurmctld(self, *, crash: bool) -> None:
        if "slurmctld" not in self._pids:
            raise UsageError("slurmctld is not running")
        self._kill("slurmctld", signal.SIGKILL if crash else signal.SIGTERM)

    def _running_node(self, name: str) -> int:
        index = self._spec.node_index(name)
        if node_daemon(name) not in self._pids:
            raise UsageError(f"{name} is not running")
        return index

    def _need_network(self) -> LabNetwork:
        if self._network is None:
            raise UsageError("this lab's nodes share one network: start it with netns (--netns)")
        return self._network


def node_daemon(node: str) -> str:
    return f"slurmd.{node}"


def user_name() -> str:
    """The name of this process's user, which slurm.conf needs.

    Raises:
        LabError: the user has none.
    """
    uid = os.geteuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        raise LabError(
            f"user id {uid} has no entry in the user database, and Slurm works only for users "
            "that have one; add it to /etc/passwd or run as another user"
        ) from None


def answers(address: str | tuple[str, int | None]) -> bool:
    """Whether somebody listens at a unix socket's path or at a TCP address."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.settimeout(1.0)
        try:
            sock.connect(address)
        except OSError:
            return False
    return True


def write_card(layout: Layout, spec: LabSpec, keeper: int) -> None:
    card: Path = layout.card
    card.write_text(json.dumps({"spec": spec.to_json(), "keeper": keeper}))


def _next_job_ids() -> int:
    """Where to begin counting jobs, so that no later lab of this month uses an id again.

    Job folders are named by job ids, and two labs may well be used from one folder.
    """
    return 1 + int(time.time() * 10) % _JOB_IDS
