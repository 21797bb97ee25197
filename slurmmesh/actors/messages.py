"""What a host and a proc, and a caller and an actor, say to each other. Plain data.

Named tuples, for each process that starts makes these classes: dataclasses take far longer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from slurmmesh.actors.addresses import ProcessId
from slurmmesh.shape import Region

if TYPE_CHECKING:
    from slurmmesh.wire.identity import Credentials


class ProcWelcome(NamedTuple):
    """The first thing a new proc is told: who and where it is.

    Attributes:
        bootstrap: a pickled function to run before all else; empty for none.
    """

    job: str
    mesh_id: int
    mesh: str
    rank: int
    region: Region
    host: str
    host_address: str
    incarnation: int
    job_folder: str | None
    credentials: Credentials | None
    bootstrap: bytes = b""


class StopProc(NamedTuple):
    """End in order: finish the running message, drop queued ones, clean up, exit 0.

    In ``grace_s`` seconds it will be killed.
    """

    grace_s: float


class WriteLogs(NamedTuple):
    """Write records of ``logging`` from this level on; see ``stdio.write_from``."""

    level: int


class Connect(NamedTuple):
    """To a host: make a direct link from a caller to this rank; it is sent ``Connected``."""

    mesh: int
    rank: int
    caller: ProcessId


class Connected(NamedTuple):
    """From a host, with one descriptor: your end of the link to this rank."""

    mesh: int
    rank: int
    incarnation: int


class OpenDoor(NamedTuple):
    """To a host and on to a rank of it: listen for callers of other hosts."""

    mesh: int
    rank: int


class DoorOpened(NamedTuple):
    """Proc to host: the port at which it listens; 0 if it cannot."""

    port: int


class Door(NamedTuple):
    """Where a proc listens for callers of other hosts, and the certified name it has."""

    mesh: int
    rank: int
    incarnation: int
    address: str
    port: int
    identity: str


class TakeLink(NamedTuple):
    """Host to proc, with one descriptor: a caller's direct link to you."""
