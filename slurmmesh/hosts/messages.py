"""What the controller and a host agent say to each other. Plain data.

Named tuples, for each process that starts makes these classes: dataclasses take far longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from slurmmesh.errors import ExitCause
from slurmmesh.hosts.manifest import Manifest, Piece
from slurmmesh.hosts.masks import Mask, Visible
from slurmmesh.shape import Region
from slurmmesh.slurm.addresses import Choice
from slurmmesh.wire.identity import Credentials


class HostHello(NamedTuple):
    """Host to controller, first: I am here."""

    pid: int
    version: str


class HostWelcome(NamedTuple):
    """Controller to host, in answer: who you are and how to behave.

    Attributes:
        name: of the host, unique in the job.
        log: file for the output of all ranks; None for the agent's own stderr.
        log_max_bytes, log_keep: of that file, see ``RotatingFile``.
        sys_path, cwd: of the user's program, so that its modules are found here.
        heartbeat_s: how often to give a sign of life.
        lease_s: without a sign of life of the controller for so long, end all procs and leave.
    """

    name: str
    job_folder: str | None
    log: str | None
    sys_path: tuple[str, ...]
    cwd: str
    credentials: Credentials
    heartbeat_s: float
    lease_s: float
    log_max_bytes: int
    log_keep: int


class HostReady(NamedTuple):
    """Host to controller: procs can be spawned.

    Attributes:
        place: where others reach this host.
        gpus: what is seen here.
    """

    place: Choice
    gpus: Visible = Visible()


class HostFailed(NamedTuple):
    """Host to controller: I cannot be of use, and leave."""

    reason: str


class SpawnProcs(NamedTuple):
    """Start these ranks of a mesh.

    Attributes:
        per_host: how many ranks of the mesh each host has; a rank modulo this is its local rank.
        hosts: indices of the mesh's hosts, in order; empty where none reaches another.
        job: names the controller, see ``Runtime.job``.
        env: added to the environment of each.
        bootstrap: see ``ProcWelcome``.
        imports: see ``Imports``; None: they will be told.
        gpus_per_proc: None: each sees what the host sees.
        first_gpu: of the host's, that its procs of this mesh share.
    """

    mesh: int
    name: str
    region: Region
    ranks: tuple[int, ...]
    per_host: int
    incarnation: int
    job: str
    env: dict[str, str]
    preload: tuple[str, ...]
    hosts: Sequence[int]
    bootstrap: bytes
    imports: tuple[str, ...] | None = ()
    gpus_per_proc: int | None = None
    first_gpu: int = 0


class Imports(NamedTuple):
    """Procs that are to be started are going to import these modules: the host may do it once."""

    mesh: int
    modules: tuple[str, ...]


class StopProcs(NamedTuple):
    """End these ranks in order; kill what is left after ``grace_s`` seconds."""

    mesh: int
    ranks: tuple[int, ...]
    grace_s: float


class SignalProcs(NamedTuple):
    """Send a signal. ``ordered``: the end it brings is wanted, not a failure."""

    mesh: int
    ranks: tuple[int, ...]
    signum: int
    ordered: bool = False


class ForgetMesh(NamedTuple):
    """A mesh is over and all its ranks are gone: what is kept of it is of no more use."""

    mesh: int


class StreamLogs(NamedTuple):
    """Send what these ranks write from now on to the controller as well.

    Attributes:
        level: lines below it are not sent; None sends nothing any more.
        order: told again in ``LogsStream``.
    """

    mesh: int
    ranks: tuple[int, ...]
    level: int | None
    order: int


class LogsStream(NamedTuple):
    """Host to controller: the order is in force."""

    order: int


class LogsTaken(NamedTuple):
    """Controller to host: what you sent of your ranks' lines has been shown; send more."""


class RankLines(NamedTuple):
    """Lines of one rank, in a LOG frame.

    Attributes:
        lines: each with 1 or 2, for stdout or stderr, and when the host read it.
        dropped: so many more came, but faster than they could be sent.
    """

    mesh: int
    rank: int
    lines: tuple[tuple[int, float, bytes], ...]
    dropped: int


HOSTS = 0xFFFFFFFF
"""What these are calls to: the mesh whose ranks are the host agents themselves. No other has it."""


class OfferFolder(NamedTuple):
    """Controller to host: the folder ``source`` holds this now. Answer: the digests it lacks."""

    source: str
    manifest: Manifest


class SendPieces(NamedTuple):
    """Controller to host: contents that it lacks, or parts of them."""

    pieces: tuple[Piece, ...]
    contents: tuple[Any, ...]


class CommitFolder(NamedTuple):
    """Controller to host: all is there, use it. Answer: where the copy is."""

    source: str


class Shutdown(NamedTuple):
    """End all procs in order, and then the agent."""

    grace_s: float


class ProcStarted(NamedTuple):
    """Host to controller: a proc is up. ``at``: seconds since the epoch."""

    mesh: int
    rank: int
    incarnation: int
    pid: int
    at: float


class ProcGone(NamedTuple):
    """Host to controller: a proc ended, or could not be started. All it sent came before this.

    Attributes:
        expected: it was ended on purpose.
        stopped: it was told to stop, and is not started again.
    """

    mesh: int
    rank: int
    incarnation: int
    cause: ExitCause
    expected: bool
    at: float
    stopped: bool = False


class Listen(NamedTuple):
    """Controller to host: let other hosts come to you. Answer: ``Listening``."""


class Listening(NamedTuple):
    """Host to controller: the port at which other hosts may come; 0 if that cannot be."""

    port: int


class FindHosts(NamedTuple):
    """Host to controller: where are these hosts? Answer: ``HostsFound``."""

    hosts: tuple[int, ...]


class HostsFound(NamedTuple):
    """Controller to host: address and port of hosts, None of those that cannot be reached."""

    places: dict[int, tuple[str, int] | None]


class FindMesh(NamedTuple):
    """Host to controller: where is this mesh? Answer, once its procs are started: ``MeshFound``."""

    mesh: int


class MeshFound(NamedTuple):
    """Controller to host: where a mesh is.

    Attributes:
        hosts: indices of its hosts, in order; empty where requests for it go to the controller.
        names: of these hosts.
        per_host: how many ranks each of them has.
    """

    mesh: int
    hosts: Sequence[int] = ()
    names: Sequence[str] = ()
    per_host: int = 1


class ForkRequest(NamedTuple):
    """Host to fork server: fork procs. Three descriptors come with each: link, stdout, stderr.

    Attributes:
        local_ranks: of the procs.
        env: added to the environment of each.
        preload: modules to be imported before; if one cannot be, no proc is forked.
        imports: modules to be imported before, for these procs alone, if they bear it.
        more: the next request is of the same order.
        mask: what each sees of the host's GPUs; None: all.
    """

    local_ranks: tuple[int, ...]
    env: dict[str, str]
    preload: tuple[str, ...]
    sys_path: tuple[str, ...]
    cwd: str
    host_pid: int
    imports: tuple[str, ...] = ()
    more: bool = False
    mask: Mask | None = None


class TakeOutput(NamedTuple):
    """Host to fork server, together with one descriptor: write there what you have to say."""


class ForkReply(NamedTuple):
    """Fork server to host: the pids of the first procs, and why there are none of the others."""

    pids: tuple[int, ...] = ()
    error: str = ""
