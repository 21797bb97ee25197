"""Outside of the image: what the batch script becomes when the program runs in one.

It starts the controller in the image, serves it Slurm's commands (``commands``), passes signals on,
and ends when the controller has, with its exit code.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import selectors
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from slurmmesh._version import __version__
from slurmmesh.errors import EXIT_SETUP_FAILED, SetupError, SlurmmeshError
from slurmmesh.linux import die_with_parent
from slurmmesh.slurm import environment
from slurmmesh.slurm.allocation import Allocation
from slurmmesh.slurm.container import inside
from slurmmesh.slurm.container.commands import Commands, find
from slurmmesh.slurm.container.image import Container

# Named, not imported: what runs in the image is above this room.
_CONTROLLER = "slurmmesh.hosts.program"


def main() -> NoReturn:
    """Run the controller in an image, and exit with its code.

    Standard input: the container as JSON. Arguments: the program with its own.
    """
    # Two descriptors for each host; many sites allow 1024 unless asked for more.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    container = Container.from_json(sys.stdin.read())
    folder = Path(os.environ["SLURMMESH_JOB_FOLDER"], "commands")
    try:
        code = run(container, sys.argv[1:], folder)
    except (OSError, SlurmmeshError) as error:
        print(f"slurmmesh: error: the program cannot be started: {error}", file=sys.stderr)
        code = EXIT_SETUP_FAILED
    sys.exit(code)


def run(container: Container, argv: Sequence[str], folder: Path) -> int:
    """Run a program's controller; returns its exit code as a shell would tell it.

    Args:
        argv: the program and its arguments.
        folder: for the stand-ins of Slurm's commands; seen in the image at the same path.

    Raises:
        OSError: the folder cannot be written, or a process cannot be started.
        SlurmmeshError: this is no batch script of Slurm's.
    """
    with selectors.DefaultSelector() as selector, Commands(selector, container, folder) as commands:
        signals = _Signals(selector)
        with _start(container, argv, commands) as controller:
            pidfd = os.pidfd_open(controller.pid)
            selector.register(pidfd, selectors.EVENT_READ, lambda: None)
            while controller.poll() is None:
                commands.serve()
                _pass_on(signals.take(), controller, commands)
            selector.unregister(pidfd)
            os.close(pidfd)
    code = controller.returncode if controller.returncode >= 0 else 128 - controller.returncode
    if commands.controller_pidfd >= 0 or code == EXIT_SETUP_FAILED:
        return code
    if signals.terminated:
        return 128 + signal.SIGTERM
    raise SetupError(
        f"{container.runtime} did not bring up the image {container.image} (exit code {code}); "
        "its own words are above"
    )


def _start(
    container: Container, argv: Sequence[str], commands: Commands
) -> subprocess.Popen[bytes]:
    command = [
        *("python3", "-u", str(commands.folder / "inside.py"), commands.name),
        *("enter", container.image, __version__, _CONTROLLER, *argv),
    ]
    prepare = None
    if container.runtime == "apptainer":
        words = container.here(os.getcwd(), command)
        outside: Mapping[str, str] = os.environ
        prepare = functools.partial(die_with_parent, os.getpid(), signal.SIGTERM)
    else:
        # No such thing for srun: it would kill the controller. Slurm ends it in order.
        words = [find("srun"), *_on_this_node(os.environ)]
        words += container.of_step(os.getcwd(), command, {}, os.environ)
        outside = environment.for_step(os.environ)
    return subprocess.Popen(
        words,
        env=container.environ(outside, {}),
        stdin=subprocess.DEVNULL,
        preexec_fn=prepare,
    )


def _on_this_node(environ: Mapping[str, str]) -> list[str]:
    """Options of the srun whose only task is the controller: all that this node has."""
    allocation = Allocation.from_env(environ)
    node = environ.get("SLURMD_NODENAME", "")
    cpus = environ.get("SLURM_CPUS_ON_NODE", "1")
    options = [
        *("--overlap", "--no-kill", "--nodes=1", "--ntasks=1", f"--cpus-per-task={cpus}"),
        *("--cpu-bind=none", "--mpi=none", "--export=ALL", "--unbuffered", "--input=none"),
        *("--job-name=controller", f"--nodelist={node}"),
    ]
    # A heterogeneous job's first component is the controller's.
    return [*options, "--het-group=0"] if allocation.components else options


def _pass_on(
    signums: Sequence[int], controller: subprocess.Popen[bytes], commands: Commands
) -> None:
    """Signals go to the controller itself: srun would kill it on a SIGTERM.

    Slurm tells the batch script alone of preemption and of ``--signal``. Of its end it tells all
    processes of a job; the controller heeds the first word.
    """
    for signum in signums:
        with contextlib.suppress(ProcessLookupError):
            if commands.controller_pidfd >= 0:
                signal.pidfd_send_signal(commands.controller_pidfd, signum)
            else:
                controller.send_signal(signum)


class _Signals:
    """The signals that this process got, as something to select for."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.terminated = False
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for signum in inside.PASSED_ON:
            signal.signal(signum, lambda *_: None)
        selector.register(self._reader, selectors.EVENT_READ, lambda: None)

    def take(self) -> Sequence[int]:
        """Those that came since the last time."""
        try:
            signums = os.read(self._reader, 64)
        except BlockingIOError:
            return ()
        self.terminated = self.terminated or signal.SIGTERM in signums
        return signums
