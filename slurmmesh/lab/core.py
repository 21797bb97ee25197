"""``Lab``: a real Slurm on this machine, as a context manager."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from slurmmesh.errors import LabError, UsageError
from slurmmesh.lab import control, processes
from slurmmesh.lab.control import DETACH
from slurmmesh.lab.environment import MARK, client_environment
from slurmmesh.lab.spec import LabSpec, Layout

# The keeper is a fresh interpreter that finds the same modules as this one and nothing else. It is
# told where they are, so it need not search for them as "site" does (-S), which takes its time.
_KEEPER_PROGRAM = """\
import json, sys
request = json.loads(sys.stdin.readline())
sys.path[:] = request.pop("sys_path")
from slurmmesh.lab.keeper import main
main(request)
"""

# In a lab's card: it outlives the program that started it.
_LEFT = "detached"
_STOP_TIMEOUT_S = 60.0
_POLL_S = 0.02
# Each look at the nodes is a run of sinfo.
_STATE_POLL_S = 0.1
# The marks sinfo puts behind a state: not responding, powering up, maintenance and so on.
_STATE_MARKS = "*~#!%$@^-+"


class Lab:
    """A Slurm cluster of ``nodes`` nodes on this machine, run by and for the current user.

    Use it as a context manager, or call ``start`` and ``stop``. All of it lives under one keeper
    process, which ends it when this process ends, however it ends.

    Args:
        nodes: nodes named ``node1`` .. ``nodeN``, all in the partitions ``main`` and ``low``.
        netns: each node in a network namespace of its own; needs root.
        accounting: also slurmdbd and MariaDB, so that ``sacct`` answers.
        directory: where to keep configuration and logs, absent or empty; they stay there after
            the lab's end. By default a temporary folder that is removed.
        cpus, gpus, gpu_type: what each node claims to have.
        slurmd_timeout_s: how long a node may be silent, in seconds, before Slurm looks closer.
        settings: further ``slurm.conf`` settings, such as ``{"MaxStepCount": "10"}``.
        start_timeout_s: how long the nodes may take to become idle.

    Raises:
        UsageError: arguments no lab can be built from, or netns without root.
        MissingDependencyError: programs are not installed; the text has the line that installs
            them on Debian and Ubuntu.
        LabError: Slurm could not be started, here or (from any method) does not do as asked.
    """

    def __init__(
        self,
        nodes: int = 4,
        *,
        netns: bool = False,
        accounting: bool = False,
        directory: str | os.PathLike[str] | None = None,
        cpus: int = 64,
        gpus: int = 8,
        gpu_type: str = "mi300x",
        slurmd_timeout_s: int = 10,
        settings: Mapping[str, str] | None = None,
        start_timeout_s: float = 60.0,
    ) -> None:
        self.spec = LabSpec(
            nodes=nodes,
            cpus=cpus,
            gpus=gpus,
            gpu_type=gpu_type,
            netns=netns,
            accounting=accounting,
            slurmd_timeout_s=slurmd_timeout_s,
            settings=dict(settings or {}),
            start_timeout_s=start_timeout_s,
        )
        self._directory = None if directory is None else os.path.abspath(Path(directory))
        self._layout: Layout | None = None
        self._keeper: subprocess.Popen[bytes] | None = None
        self._keeper_pid = 0
        self._owner = 0

    @classmethod
    def attach(cls, root: str | os.PathLike[str]) -> Lab:
        """A running lab of this user, by its root folder. ``with`` and ``stop`` end it.

        Raises:
            LabError: no lab is running there.
        """
        layout = Layout(Path(os.path.abspath(root)))
        control.ask(layout.control_socket, {"do": "hello"}, 10.0)
        card = json.loads(layout.card.read_text())
        spec = LabSpec.from_json(card["spec"])
        lab = cls(spec.nodes)
        lab.spec = spec
        lab._layout = layout
        lab._keeper_pid = card["keeper"]
        lab._owner = os.getpid()
        return lab

    @staticmethod
    def was_left_running(root: str | os.PathLike[str]) -> bool:
        """Whether the lab in this folder outlives the program that started it (``detach``)."""
        try:
            return bool(json.loads(Layout(Path(root)).card.read_text()).get(_LEFT))
        except (OSError, ValueError):
            return False

    # -- life ----------------------------------------------------------------------------------

    def start(self) -> Lab:
        """Start it and wait until all nodes are idle. Whatever goes wrong, nothing stays."""
        if self._layout is not None:
            raise UsageError("this lab is running; make another Lab for a second one")
        # A mark inherited from the command of `exec` would let that lab's end end this one.
        environ = {name: value for name, value in os.environ.items() if name != MARK}
        self._owner = os.getpid()
        try:
            self._keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _KEEPER_PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env=environ,
                cwd="/",
            )
        except OSError as error:
            raise LabError(f"cannot start another Python ({sys.executable}): {error}") from error
        try:
            answer = self._first_answer(self._keeper)
            control.raise_error(answer)
        except BaseException:
            self._end_keeper(self._keeper)
            raise
        self._layout = Layout(Path(answer["root"]))
        self._keeper_pid = self._keeper.pid
        return self

    def _first_answer(self, keeper: subprocess.Popen[bytes]) -> dict[str, Any]:
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        assert keeper.stderr is not None
        package_parent = str(Path(__file__).resolve().parents[2])
        request = {
            "spec": self.spec.to_json(),
            "directory": self._directory,
            "owner": self._owner,
            "sys_path": [*map(os.path.abspath, sys.path), package_parent],
        }
        with contextlib.suppress(BrokenPipeError):
            keeper.stdin.write(json.dumps(request).encode() + b"\n")
            keeper.stdin.flush()
        line = keeper.stdout.readline()
        if not line:
            words = keeper.stderr.read().decode(errors="replace").strip()
            raise LabError(f"the lab's keeper died while starting it: {words or 'no last words'}")
        keeper.stdout.close()
        keeper.stderr.close()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def stop(self) -> None:
        """End the lab: SIGTERM to tasks that still run, a second later SIGKILL to everything.

        Raises:
            LabError: a process of it does not end.
        """
        if self._layout is None or os.getpid() != self._owner:
            return
        layout, self._layout = self._layout, None
        if self._keeper is not None:
            self._end_keeper(self._keeper)
        else:
            control.ask(layout.control_socket, {"do": "stop"}, _STOP_TIMEOUT_S)
            self._wait_until_gone()

    def _end_keeper(self, keeper: subprocess.Popen[bytes]) -> None:
        for pipe in (keeper.stdin, keeper.stdout, keeper.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._keeper = None
        try:
            keeper.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise LabError(f"the lab's keeper (pid {keeper.pid}) does not end") from None

    def _wait_until_gone(self) -> None:
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        while processes.is_alive(self._keeper_pid):
            if time.monotonic() > deadline:
                raise LabError(f"the lab's keeper (pid {self._keeper_pid}) does not end")
            time.sleep(_POLL_S)

    def detach(self) -> None:
        """Let the lab live on without this object and this process; ``attach`` finds it."""
        layout = self._running()
        self._layout = None
        if self._keeper is not None:
            _write_atomically(
                layout.card, json.dumps({**json.loads(layout.card.read_text()), _LEFT: True})
            )
            keeper, self._keeper = self._keeper, None
            assert keeper.stdin is not None
            keeper.stdin.write(DETACH)
            keeper.stdin.close()
            # It is no child to wait for any more; without this, Popen would warn of it.
            keeper.returncode = 0

    def __enter__(self) -> Lab:
        return self if self._layout is not None else self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _running(self) -> Layout:
        if self._layout is None:
            raise LabError("this lab is not running: start it, or use it in its with block")
        return self._layout

    # -- what clients need ---------------------------------------------------------------------

    @property
    def root(self) -> Path:
        """The folder with all of the lab's files; logs are in ``log/``."""
        return self._running().root

    @property
    def conf(self) -> Path:
        """The lab's slurm.conf: with ``SLURM_CONF`` set to it, every Slurm client speaks to it."""
        return self._running().conf

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.spec.node_names

    def env(self, **extra: str) -> dict[str, str]:
        """This process's environment for programs in the lab, with ``extra`` on top.

        ``SLURM_CONF`` is set, and what an outer Slurm job left (``SLURM_*`` and the like) is gone.
        """
        return {**client_environment(os.environ, self._running()), **extra}

    def run(
        self,
        *command: str | os.PathLike[str],
        check: bool = True,
        timeout: float = 60.0,
        input: str | None = None,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the lab and return its output as text.

        Args:
            env: more variables, or other values, than ``env()`` has.

        Raises:
            LabError: it did not start, took more than ``timeout`` seconds, or (with ``check``)
                ended with a code other than 0; the text has what it wrote to standard error.
        """
        argv = [os.fspath(part) for part in command]
        try:
            done = subprocess.run(
                argv,
                env=self.env(**(env or {})),
                cwd=cwd,
                input=input,
                stdin=subprocess.DEVNULL if input is None else None,
                capture_output=True,
                text=True,
                timeout=timeout,
            )
        except OSError as error:
            raise LabError(f"{argv[0]} did not start: {error}") from error
        except subprocess.TimeoutExpired:
            raise LabError(f"{' '.join(argv)} took more than {timeout} s") from None
        if check and done.returncode != 0:
            raise LabError(f"{' '.join(argv)} ended with code {done.returncode}: {done.stderr}")
        return done

    def states(self) -> dict[str, str]:
        """Node to its state in Slurm's words: ``idle``, ``allocated``, ``mixed``, ``down*``..."""
        told = self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%N %T").stdout
        return dict(line.split() for line in told.splitlines())  # type: ignore[misc]

    def wait_state(self, node: str, *states: str, timeout: float = 60.0) -> str:
        """Wait until Slurm shows a node in one of ``states`` (without marks such as ``*``).

        Raises:
            LabError: it does not within ``timeout`` seconds.
        """
        self.spec.node_index(node)
        deadline = time.monotonic() + timeout
        while True:
            state = self.states().get(node, "unknown")
            if state.rstrip(_STATE_MARKS) in states:
                return state
            if time.monotonic() > deadline:
                raise LabError(f"{node} is {state}, not {' or '.join(states)}, after {timeout} s")
            time.sleep(_STATE_POLL_S)

    # -- bad days ------------------------------------------------------------------------------

    def kill_node(self, node: str) -> None:
        """A node dies without a goodbye: slurmd, its step daemons and their tasks get SIGKILL.

        With ``netns`` its cable is pulled first, so that not even a reset connection tells.
        Slurm itself notices by ``slurmd_timeout_s`` only.
        """
        self._ask("kill_node", node=node)

    def start_node(self, node: str, timeout: float = 60.0) -> None:
        """Start a killed node again and wait until Slurm takes it back."""
        self._ask("start_node", node=node)
        self.wait_state(node, "idle", "mixed", "allocated", timeout=timeout)

    def cut_network(self, node: str) -> None:
        """Pull a node's cable; what runs on it goes on. Needs ``netns``."""
        self._ask("cut_network", node=node)

    def heal_network(self, node: str) -> None:
        """Plug a node's cable in again."""
        self._ask("heal_network", node=node)

    def drain(self, node: str, reason: str = "drained by slurmmesh.lab") -> None:
        """Give a node no new jobs; those on it go on."""
        self.spec.node_index(node)
        self.run("scontrol", "update", f"nodename={node}", "state=drain", f"reason={reason}")

    def resume(self, node: str) -> None:
        """Give a drained or downed node jobs again."""
        self.spec.node_index(node)
        self.run("scontrol", "update", f"nodename={node}", "state=resume")

    def stop_slurmctld(self, *, crash: bool = False) -> None:
        """Slurm is down; jobs go on. ``restart_slurmctld`` brings it back.

        With ``crash`` it gets SIGKILL, and what happened in the last seconds was not saved: as on
        a real cluster, a job that has just started may be lost.
        """
        self._ask("stop_slurmctld", crash=crash)

    def restart_slurmctld(self, *, crash: bool = False) -> None:
        """End slurmctld, if it runs, and start it again with the state it had saved."""
        if self._ask("hello")["slurmctld"]:
            self.stop_slurmctld(crash=crash)
        self._ask("start_slurmctld")

    def _ask(self, what: str, **fields: Any) -> dict[str, Any]:
        layout = self._running()
        timeout = self.spec.start_timeout_s + 30.0
        return control.ask(layout.control_socket, {"do": what, **fields}, timeout)


def _write_atomically(path: Path, text: str) -> None:
    """Others read it meanwhile."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text)
    new.replace(path)
