"""The options of sbatch that slurmmesh knows: the one table behind flags, fields and directives.

The command line of submit, the fields of ``SlurmJob`` and the ``#SBATCH`` lines of a script all
come from here. Any other option of sbatch goes by ``--sbatch``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from slurmmesh.errors import HostListError, UsageError
from slurmmesh.slurm.hostlists import expand
from slurmmesh.slurm.ids import parse_tasks
from slurmmesh.slurm.times import check_time_limit

# More than any Slurm has nodes: a slip of the hand.
MOST_NODES = 65536
_NODES = re.compile(r"(-?\d+)(?:-(\d+))?", re.ASCII)
_MEMORY = re.compile(r"\d+([KMGT]B?)?", re.ASCII | re.IGNORECASE)
_GPUS = re.compile(r"(?:[A-Za-z0-9_.-]+:)?(\d+)(?:\(S:[\d,-]+\))?", re.ASCII)
_SIGNAL = re.compile(r"(?:[RB]{1,2}:)?[A-Za-z0-9]+(?:@\d{1,5})?", re.ASCII)


@dataclass(frozen=True)
class Option:
    """One option of sbatch.

    Attributes:
        name: its long name, without dashes.
        short: its letter, if it has one.
        metavar: what its value is called in the help; empty for a flag.
        help: for the command line.
        check: raises UsageError for a value that cannot be.
        value_optional: it can stand without a value (``--exclusive``).
        of_job: it is said once of a whole job, not of each component of a heterogeneous one.
    """

    name: str
    short: str
    metavar: str
    help: str
    check: Callable[[str], object] = lambda value: None
    value_optional: bool = False
    of_job: bool = False

    @property
    def field(self) -> str:
        """Its name in Python."""
        return self.name.replace("-", "_")


def node_range(text: str) -> tuple[int, int]:
    """``4`` to (4, 4), ``2-4`` to (2, 4). Raises UsageError."""
    match = _NODES.fullmatch(text.strip())
    if not match:
        raise UsageError(f"--nodes {text!r}: give a number, or a range such as 2-4")
    least, most = int(match[1]), int(match[2] or match[1])
    if least < 1 or most < 1:
        raise UsageError(f"--nodes {text}: a job needs at least one node")
    if most < least:
        raise UsageError(f"--nodes {text}: the range runs backwards")
    return least, most


def array_tasks(text: str) -> tuple[int, ...]:
    """``0-4:2,9%3`` to (0, 2, 4, 9). Raises UsageError."""
    tasks, percent, at_once = text.partition("%")
    if percent and not (at_once.isascii() and at_once.isdigit() and int(at_once)):
        raise UsageError(f"--array {text!r}: after the % goes the number of tasks at once")
    try:
        return parse_tasks(tasks)
    except UsageError as error:
        raise UsageError(f"--array: {error}") from None


def gpus_of(gpus_per_node: str, gres: str) -> int:
    """GPUs of each node that these two options ask for; 0 for none."""
    if gpus_per_node:
        matches = [_GPUS.fullmatch(part) for part in gpus_per_node.split(",")]
        return sum(int(match[1]) for match in matches if match)
    return sum(_gpus_of_resource(part.strip()) for part in gres.split(","))


def _gpus_of_resource(text: str) -> int:
    """``gpu``, ``gpu:8``, ``gres/gpu:mi300x:8``; 0 for what is no GPU."""
    name, *rest = text.removeprefix("gres/").split(":")
    if name != "gpu":
        return 0
    return int(rest[-1]) if rest and rest[-1].isdecimal() else 1


def _number(name: str) -> Callable[[str], None]:
    def check(text: str) -> None:
        if not (text.isascii() and text.isdigit() and int(text) >= 1):
            raise UsageError(f"--{name} {text!r}: give a number, 1 or more")

    return check


def _matches(name: str, pattern: re.Pattern[str], wanted: str) -> Callable[[str], None]:
    def check(text: str) -> None:
        if not pattern.fullmatch(text):
            raise UsageError(f"--{name} {text!r}: give {wanted}")

    return check


def _gpus_per_node(text: str) -> None:
    for part in text.split(","):
        if not _GPUS.fullmatch(part):
            raise UsageError(f"--gpus-per-node {text!r}: give a number, or type:number")


def _hosts(name: str) -> Callable[[str], None]:
    def check(text: str) -> None:
        if "/" in text:  # sbatch takes it for a file of names
            return
        try:
            hosts = expand(text)
        except HostListError as error:
            raise UsageError(f"--{name}: {error}") from None
        if not hosts:
            raise UsageError(f"--{name} {text!r} names no host")

    return check


_SIZE = "a size such as 64G (K, M, G or T; M if there is none)"
_table = (
    Option("nodes", "N", "N", "hosts of the program: a number, or MIN-MAX (1)", node_range),
    Option("ntasks", "n", "N", "tasks to allocate for; without -N Slurm picks the nodes",
           _number("ntasks")),
    Option("cpus-per-task", "c", "N", "CPUs of each host", _number("cpus-per-task")),
    Option("gpus-per-node", "", "[TYPE:]N", "GPUs of each node", _gpus_per_node),
    Option("gres", "", "LIST", "generic resources of each node, such as gpu:mi300x:8"),
    Option("mem", "", "SIZE", "memory of each node; 0 for all", _matches("mem", _MEMORY, _SIZE)),
    Option("mem-per-gpu", "", "SIZE", "memory for each GPU",
           _matches("mem-per-gpu", _MEMORY, _SIZE)),
    Option("time", "t", "TIME", "time limit: 2-12 (days-hours), 1:30:00, 30 (minutes)",
           check_time_limit),
    Option("partition", "p", "NAMES", "partition, or several by comma"),
    Option("account", "A", "NAME", "account that is charged"),
    Option("qos", "q", "NAME", "quality of service"),
    Option("constraint", "C", "FEATURES", "features that the nodes must have"),
    Option("nodelist", "w", "HOSTS", "nodes that must be in the job", _hosts("nodelist")),
    Option("exclude", "x", "HOSTS", "nodes that must not; those that are gone do no harm",
           _hosts("exclude")),
    Option("exclusive", "", "HOW", "share the nodes with no other job (or user, mcs)",
           value_optional=True),
    Option("reservation", "", "NAME", "a reservation to run in"),
    Option("switches", "", "N[@TIME]", "most switches to span, and how long to wait for that"),
    Option("network", "", "HOW", "the site's network options, such as single_node_vni"),
    Option("licenses", "L", "LIST", "licenses that the job needs"),
    Option("job-name", "J", "NAME", "the program's name unless given", of_job=True),
    Option("output", "o", "FILE", "the controller's output goes to this file (sbatch's patterns)",
           of_job=True),
    Option("error", "e", "FILE", "its stderr, if that shall be apart", of_job=True),
    Option("chdir", "D", "FOLDER", "where the program runs (here)", of_job=True),
    Option("array", "a", "SPEC", "a job for each index: 0-7, 1,3,5-9%%2",
           array_tasks, of_job=True),
    Option("dependency", "d", "LIST", "start after other jobs: afterok:123", of_job=True),
    Option("begin", "b", "TIME", "not before: 2026-12-24T18:00, now+1hour", of_job=True),
    Option("signal", "", "[B:]SIG[@SECONDS]", "a signal before the time limit",
           _matches("signal", _SIGNAL, "a signal such as USR1@120 or B:TERM@60"), of_job=True),
    Option("requeue", "", "", "let Slurm start the job again after a failure of its head node or "
           "a preemption", of_job=True),
    Option("comment", "", "TEXT", "any text", of_job=True),
    Option("mail-type", "", "TYPES", "when to send mail: BEGIN, END, FAIL, ALL", of_job=True),
    Option("mail-user", "", "ADDRESS", "who gets it", of_job=True),
    Option("clusters", "M", "NAMES", "clusters that may take the job", of_job=True),
)  # fmt: skip
OPTIONS: dict[str, Option] = {option.field: option for option in _table}
