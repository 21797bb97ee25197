"""Every error slurmmesh raises, in one tree.

An error carries data, not only text, so that a program can act on it; its text says
what happened, to whom, and what to do. ``exit_code`` is what a front door (``submit``,
``lab``, the controller) ends with when the error reaches it; the table of codes is in
``docs/exit-codes.md``.
"""

from __future__ import annotations

import signal as _signal
from dataclasses import dataclass
from typing import Any, Literal

EXIT_OK = 0
EXIT_PROGRAM_FAILED = 1
EXIT_USAGE = 2
EXIT_SUBMIT_FAILED = 3
EXIT_JOB_FAILED = 4
EXIT_RESTARTS_SPENT = 5
EXIT_SETUP_FAILED = 6
EXIT_PREEMPTED = 7
EXIT_INTERRUPTED = 130


class SlurmmeshError(Exception):
    """Base of all errors of slurmmesh."""

    exit_code = EXIT_PROGRAM_FAILED


class UsageError(SlurmmeshError, ValueError):
    """Bad input, found before anything was started. Correct it and call again."""

    exit_code = EXIT_USAGE


class ConfigError(UsageError):
    """A setting has a wrong name, type or value. The text names where it was set."""


class HostListError(UsageError):
    """A Slurm host list that cannot be read. ``position`` counts characters from 0."""

    def __init__(self, text: str, position: int, problem: str) -> None:
        super().__init__(f"host list {text!r}, character {position}: {problem}")
        self.text = text
        self.position = position
        self.problem = problem

    def __reduce__(self) -> tuple[type[HostListError], tuple[str, int, str]]:
        return type(self), (self.text, self.position, self.problem)


class MissingDependencyError(SlurmmeshError, ImportError):
    """An optional package or system program is not installed. The text has the install line."""

    exit_code = EXIT_SETUP_FAILED


class SubmitError(SlurmmeshError):
    """A job could not be handed to Slurm: it refused, did not answer, or is not there.

    Attributes:
        slurm_message: the line of Slurm this comes from; empty where Slurm said nothing.
        advice: what to do about it.
    """

    exit_code = EXIT_SUBMIT_FAILED

    def __init__(self, message: str, *, slurm_message: str = "", advice: str = "") -> None:
        said = f"\n  Slurm said: {slurm_message}" if slurm_message else ""
        what_to_do = f"\n  {advice}" if advice else ""
        super().__init__(message + said + what_to_do)
        self.message = message
        self.slurm_message = slurm_message
        self.advice = advice


class SetupError(SlurmmeshError):
    """The job started but its hosts could not be brought up."""

    exit_code = EXIT_SETUP_FAILED


class LabError(SetupError):
    """The lab's Slurm could not be started or did not become ready; carries the daemons' words."""


class ReportError(SlurmmeshError):
    """A report could not be written: folder not writable, disk full. Give another folder."""


class WireError(SlurmmeshError):
    """Base of errors between processes."""


class FrameError(WireError):
    """Bytes that are no valid frame, or a frame over the limits. The link is closed."""


class LinkClosed(WireError):
    """The other side of a link is gone, or the link was closed here."""


class IdentityError(WireError):
    """A peer did not prove that it belongs to this job. Nothing it sent was read."""


class ActorError(SlurmmeshError):
    """An endpoint raised. ``exception`` is the original where it could be rebuilt.

    Attributes:
        exception: the remote exception, or None if it could not be rebuilt here: it cannot be
            pickled, or its class is not importable here.
        exception_type: name of its class, with its module.
        exception_formatted: the remote traceback as text.
        actor, rank, host: who raised; the rank is that within the whole proc mesh.
    """

    def __init__(
        self,
        message: str,
        *,
        exception: BaseException | None = None,
        exception_type: str = "",
        exception_formatted: str = "",
        actor: str = "",
        rank: int = -1,
        host: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.exception = exception
        self.exception_type = exception_type
        self.exception_formatted = exception_formatted
        self.actor = actor
        self.rank = rank
        self.host = host


class SupervisionError(SlurmmeshError, RuntimeError):
    """A process, host or actor that was needed is gone.

    Attributes:
        about: mesh, rank and number of the actor that is gone, where it is an actor.
    """

    about: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class ExitCause:
    """How a process ended, with the evidence: what every report of a death carries.

    Attributes:
        kind: ``exited``, ``signalled``, ``host_lost`` (how it ended is not known) or
            ``not_started`` (there never was a process). Follows from the rest unless given.
        exit_code: of one that exited.
        signal: that ended one that was signalled.
    """

    mesh: str
    rank: int
    host: str
    pid: int
    exit_code: int | None = None
    signal: int | None = None
    stderr_tail: tuple[str, ...] = ()
    detail: str = ""
    kind: Literal["exited", "signalled", "host_lost", "not_started", ""] = ""

    def __post_init__(self) -> None:
        if not self.kind:
            object.__setattr__(self, "kind", self._kind())

    def _kind(self) -> str:
        if self.signal is not None:
            return "signalled"
        if self.exit_code is not None:
            return "exited"
        return "host_lost" if self.pid else "not_started"

    @property
    def signal_name(self) -> str:
        """``SIGKILL`` and the like; empty if no signal ended it."""
        if self.signal is None:
            return ""
        try:
            return _signal.Signals(self.signal).name
        except ValueError:
            return f"signal {self.signal}"

    def describe(self) -> str:
        """One line: who, where, how."""
        if self.signal is not None:
            how = f"killed by {self.signal_name}"
        elif self.exit_code is not None:
            how = f"exited with code {self.exit_code}"
        else:
            how = "lost" if self.kind == "host_lost" else "could not be started"
        pid = "" if self.kind == "not_started" else f" (pid {self.pid})"
        text = f"rank {self.rank} of {self.mesh!r} on {self.host}{pid} {how}"
        return f"{text}: {self.detail}" if self.detail else text


class ProcDied(SupervisionError):
    """A process that owed an answer died. ``cause`` names rank, host, signal and last stderr lines.

    If its mesh is supervised it is being restarted: calls made afterwards go to the new process.
    """

    def __init__(self, cause: ExitCause) -> None:
        lines = "".join(f"\n  | {line}" for line in cause.stderr_tail)
        super().__init__(cause.describe() + (f"; its last stderr lines:{lines}" if lines else ""))
        self.cause = cause

    def __reduce__(self) -> tuple[type[ProcDied], tuple[ExitCause]]:
        return type(self), (self.cause,)


class HostLost(SupervisionError):
    """The link to a host broke or went silent; its processes count as dead."""

    def __init__(self, host: str, detail: str) -> None:
        super().__init__(f"host {host} is lost: {detail}")
        self.host = host
        self.detail = detail

    def __reduce__(self) -> tuple[type[HostLost], tuple[str, str]]:
        return type(self), (self.host, self.detail)


class WorkspaceError(SlurmmeshError):
    """A folder of code could not be read, or could not be copied to a host.

    ``host`` names the host where one is to blame; there the copy of before still stands.
    """

    def __init__(self, message: str, host: str = "") -> None:
        super().__init__(f"host {host}: {message}" if host else message)
        self.message = message
        self.host = host

    def __reduce__(self) -> tuple[type[WorkspaceError], tuple[str, str]]:
        return type(self), (self.message, self.host)


class RestartBudgetSpent(SupervisionError):
    """A mesh failed more often than its restart intensity allows. The last cause is told."""

    exit_code = EXIT_RESTARTS_SPENT


class MeshStopped(SupervisionError):
    """A mesh was used after ``stop()``."""


class CallTimeout(SlurmmeshError, TimeoutError):
    """No answer within the time given. What was called may still be running.

    From ``get(timeout)`` the future stays usable; a call with a deadline of its own
    (``options(timeout=...)``) has failed for good.

    Attributes:
        ranks: that have not answered a call with a deadline, of the whole proc mesh.
        seconds: its deadline.
        deaths: of ranks of that mesh since the call.
    """

    def __init__(
        self,
        message: str,
        *,
        ranks: tuple[int, ...] = (),
        seconds: float | None = None,
        deaths: tuple[ExitCause, ...] = (),
    ) -> None:
        super().__init__(message)
        self.ranks = ranks
        self.seconds = seconds
        self.deaths = deaths


class CallCycle(SlurmmeshError, RuntimeError):
    """Actors wait for each other in a circle, so that none could ever go on.

    The wait that closed the circle has failed with it; the others go on once they are answered.
    Its call is taken back: actors that have not begun with it never run it.

    Attributes:
        chain: endpoints, ``"actor[rank].endpoint"``, of which each waits for the next; the last is
            of the same actor as the first.
    """

    def __init__(self, chain: tuple[str, ...]) -> None:
        super().__init__(
            f"{' → '.join(chain)}: each of these waits for the next, so none would ever end. An "
            "actor takes no other message while an endpoint of it waits: do not wait there, or "
            "make one of these endpoints a @concurrent_endpoint that awaits"
        )
        self.chain = chain

    def __reduce__(self) -> tuple[type[CallCycle], tuple[tuple[str, ...]]]:
        return type(self), (self.chain,)


class GpuError(SlurmmeshError):
    """A call of a GPU library, or of the bridge to it, failed.

    The text names the function, the library it belongs to and what that said.

    Attributes:
        code: the library's own if positive (a ``hipError_t``, ``CUresult`` or ``ncclResult_t``);
            the bridge's if negative.
        symbol: the library's function, such as ``hipMemCreate``; empty where it is none of those.
        library: path of the library; empty where there is none.
        text: what was said.
    """

    def __init__(self, text: str, *, code: int = 0, symbol: str = "", library: str = "") -> None:
        said = f"{symbol}: {text}" if symbol else text
        number = f" (code {code})" if code > 0 else ""
        super().__init__(said + number + (f", in {library}" if library else ""))
        self.text = text
        self.code = code
        self.symbol = symbol
        self.library = library

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.args, self.__dict__)


class GpuUnavailable(GpuError):
    """There is no GPU library, no device, or the bridge was not built. The text says why.

    Attributes:
        searched: a line for each place that was looked in, with what was found there.
    """

    exit_code = EXIT_SETUP_FAILED

    def __init__(
        self,
        text: str,
        *,
        searched: tuple[str, ...] = (),
        code: int = 0,
        symbol: str = "",
        library: str = "",
    ) -> None:
        super().__init__(text, code=code, symbol=symbol, library=library)
        self.args = (self.args[0] + "".join(f"\n  {line}" for line in searched),)
        self.searched = searched


class GpuUnsupported(GpuError):
    """The library has no such function, or is too old for it. Take a newer one, or do without.

    ``symbol`` and ``library`` say what was looked for, and in which file.
    """


class GpuForked(GpuError):
    """This process was forked after its parent had used a GPU. Fork first, or start it afresh."""


class DeviceOutOfMemory(GpuError):
    """The device has not that much memory left. Free some, or ask for less."""


class CollectiveError(GpuError):
    """A collective operation, or the making of its communicator, failed.

    The communicator was aborted: make a new one of the ranks that live.

    Attributes:
        operation: ``all_reduce``, ``init`` and so on; empty where it is not known.
        world: name of the communicator.
        rank, size: of this process in it.
        peers: ranks that are to blame; empty if not known.
        late: those of them that live, but have not arrived at the operation.
    """

    def __init__(
        self,
        text: str,
        *,
        operation: str = "",
        world: str = "",
        rank: int = -1,
        size: int = 0,
        peers: tuple[int, ...] = (),
        late: tuple[int, ...] = (),
        code: int = 0,
        symbol: str = "",
        library: str = "",
    ) -> None:
        where = f"{operation or 'collective'} of rank {rank} of {size} in {world!r}: "
        blamed = f"; to blame: rank {', '.join(map(str, peers))}" if peers else ""
        super().__init__(where + text + blamed, code=code, symbol=symbol, library=library)
        self.text = text
        self.operation = operation
        self.world = world
        self.rank = rank
        self.size = size
        self.peers = peers
        self.late = late


class CollectiveTimeout(CollectiveError, TimeoutError):
    """An operation did not end in time. ``peers`` are the dead ranks, else those that are late."""


class DeviceBusy(CollectiveTimeout):
    """Memory cannot be freed yet: an operation is under way on its device. Nothing was aborted.

    It tells of that operation. ``abort()`` its communicator, then free the memory again.
    """


class CollectiveAborted(CollectiveError):
    """The communicator was aborted while this operation waited, or before it."""


def _rebuilt(
    kind: type[SlurmmeshError], args: tuple[Any, ...], attributes: dict[str, Any]
) -> SlurmmeshError:
    """An error as it was, without its constructor: for pickle."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error
