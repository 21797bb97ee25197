"""``slurmmesh doctor``: looks at this node, and prints what it finds and what to do."""

from __future__ import annotations

import json
import math
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence

from slurmmesh._version import __version__
from slurmmesh.doctor import checks, cluster, collectives, gpus, kernel, python
from slurmmesh.doctor.checks import Check
from slurmmesh.doctor.probe import Told, ask
from slurmmesh.errors import EXIT_OK, EXIT_SETUP_FAILED, UsageError
from slurmmesh.hosts.machine import machine
from slurmmesh.slurm.addresses import Interface
from slurmmesh.slurm.interfaces import interfaces_here
from slurmmesh.submit.door import Parser, run
from slurmmesh.submit.output import write

_PATIENCE_S = 60.0


def main(argv: Sequence[str]) -> int:
    """Run the command; returns its exit code: 6 if something does not work, else 0."""
    return run(_main, argv)


def _main(argv: Sequence[str]) -> int:
    asked = _parser().parse_args(list(argv))
    if not 0 < asked.timeout < math.inf:
        raise UsageError(f"--timeout {asked.timeout:g}: give a number of seconds over 0")
    found, emulated = look(asked.timeout)
    host = socket.gethostname()
    if asked.json:
        data = checks.as_data(host, __version__, emulated, found)
        write(json.dumps(data, indent=1) + "\n")
    else:
        label = ", EMULATED GPU libraries" if emulated else ""
        write(checks.as_text(f"{host}, slurmmesh {__version__}{label}", found))
    return EXIT_SETUP_FAILED if checks.worst(found) == "error" else EXIT_OK


def look(timeout_s: float) -> tuple[list[Check], bool]:
    """All checks, and whether the GPU libraries are the emulator.

    Args:
        timeout_s: how long each thing that may hang is waited for.
    """
    environ, kernels = dict(os.environ), machine()
    wanted = gpus.is_wanted(environ, kernels)
    told, failed = _ask_gpus(timeout_s)
    interfaces, unseen = _interfaces()
    settings, found = cluster.settings_here()
    names = tuple(dict.fromkeys(each.name for each in interfaces if not each.flaw))
    rocm = kernels.rocm or told.values.get("platform", {}).get("name") == "rocm"
    hip = told.values.get("versions", {}).get("driver", "") if rocm else ""
    node = collectives.Node(rocm, hip, names)
    tasks: list[tuple[str, Callable[[], Iterable[Check]]]] = [
        (python.SECTION, python.checks),
        (gpus.SECTION, lambda: failed),
        (gpus.SECTION, lambda: gpus.checks(told, kernels, wanted, python.torch_build())),
        (gpus.MASKS, lambda: gpus.mask_checks(environ, kernels)),
        (collectives.SECTION, lambda: collectives.checks(environ, node)),
        (kernel.KERNEL, lambda: kernel.kernel_checks(kernels)),
        (kernel.LIMITS, lambda: kernel.limit_checks(kernels)),
        (cluster.SECTION, lambda: [*found, *unseen]),
    ]
    if settings is not None:
        at = settings
        tasks += [
            (cluster.SECTION, lambda: cluster.slurm_checks(at, environ)),
            (cluster.SECTION, lambda: cluster.network_checks(interfaces, at.interface)),
            (cluster.SECTION, lambda: cluster.folder_checks(at.job_root, timeout_s)),
        ]
    return [check for section, task in tasks for check in _guarded(section, task)], (
        gpus.emulated(told)
    )


def _guarded(section: str, task: Callable[[], Iterable[Check]]) -> Iterator[Check]:
    """What a task finds; that it failed itself is something it found."""
    try:
        yield from task()
    except Exception as error:
        yield _own_failure(section, error)


def _own_failure(section: str, error: Exception) -> Check:
    return Check(section, "doctor", "error", f"it cannot look: {type(error).__name__}: {error}")


def _ask_gpus(timeout_s: float) -> tuple[Told, list[Check]]:
    try:
        return ask("gpus", timeout_s=timeout_s), []
    except OSError as error:
        return Told({}), [_own_failure(gpus.SECTION, error)]


def _interfaces() -> tuple[list[Interface], list[Check]]:
    try:
        return interfaces_here(), []
    except OSError as error:
        return [], [_own_failure(cluster.SECTION, error)]


def _parser() -> Parser:
    parser = Parser(
        prog="slurmmesh doctor",
        description="What this node has for a job, what it lacks, and what to do about it.",
        epilog="Run it on a compute node: srun -N1 --gpus-per-node=8 slurmmesh doctor. "
        "All about it: docs/doctor.md",
    )
    parser.add_argument("--json", action="store_true", help="the same as JSON")
    parser.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        default=_PATIENCE_S,
        help="how long GPU libraries and file systems may take to answer (60)",
    )
    return parser
