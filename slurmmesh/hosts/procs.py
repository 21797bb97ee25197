"""One proc as its host sees it: process, link, output, and how it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any, Literal

from slurmmesh.actors.messages import Connected, ProcWelcome, StopProc, TakeLink, WriteLogs
from slurmmesh.errors import ExitCause, LinkClosed
from slurmmesh.hosts.logs import HostLog
from slurmmesh.hosts.messages import ProcGone, SpawnProcs
from slurmmesh.linux import kill_group, oom_kills
from slurmmesh.wire.codec import dumps
from slurmmesh.wire.frames import Buffer, Frame, Kind
from slurmmesh.wire.quick import QuickLink
from slurmmesh.wire.reactor import READ, Reactor, Timer

_TERM_NEWS_S = 0.1
"""How long the news of a SIGTERM that did not come through us waits for one to this host."""


class HostedProc:
    """A proc from the request to start it until all it left is swept.

    Its link exists from the beginning, so what is sent to it before it runs is kept for it.

    Args:
        on_frame: takes what the proc sends.
        on_gone: told once, after the last frame of the proc.
    """

    def __init__(
        self,
        reactor: Reactor,
        log: HostLog,
        spawn: SpawnProcs,
        rank: int,
        host: str,
        on_frame: Callable[[HostedProc, Frame], Any],
        on_gone: Callable[[HostedProc, ProcGone], Any],
    ) -> None:
        self.mesh = spawn.mesh
        self.mesh_name = spawn.name
        self.rank = rank
        self.incarnation = spawn.incarnation
        self.pid = 0
        self.expected = False
        self._stopped = False
        self._doomed = False
        self._term_explained = False
        self._host = host
        self._log = log
        self._reactor = reactor
        self._on_gone = on_gone
        self._pidfd = -1
        self._grace: Timer | None = None
        self._oom_kills = oom_kills()
        prefix = f"{spawn.name}[{rank}] "
        with contextlib.ExitStack() as undo:  # when descriptors run out half way
            self._stdout = log.stream(1, prefix, self.mesh, rank)
            undo.callback(self._stdout.finish)
            self._stderr = log.stream(2, prefix, self.mesh, rank)
            undo.callback(self._stderr.finish)
            ours, self._theirs = socket.socketpair()
            undo.pop_all()
        self._link = QuickLink(
            reactor,
            ours,
            authenticate=lambda _sock: f"{spawn.name}[{rank}]",  # nobody else has the other end
            on_frame=lambda _link, frame: on_frame(self, frame),
        )
        self._link.start()

    def fds(self) -> list[int]:
        """The descriptors that the proc gets: link, stdout, stderr."""
        return [self._theirs.fileno(), self._stdout.write_fd, self._stderr.write_fd]

    def started(self, pid: int, error: str) -> None:
        """See ``Unborn``."""
        self._theirs.close()
        self._stdout.close_write_end()
        self._stderr.close_write_end()
        if not pid:
            self._end(detail=error, kind="not_started")
            return
        self.pid = pid
        try:
            self._pidfd = os.pidfd_open(pid)
        except OSError as refused:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self._end(detail=f"it could not be watched: {refused}", kind="not_started")
            return
        self._reactor.watch(self._pidfd, READ, self._exited)
        if self._doomed:
            self.kill()

    def welcome(self, welcome: ProcWelcome) -> None:
        """Tell the proc who it is."""
        body, buffers = dumps(welcome)
        self.send(Frame(Kind.WELCOME, body, buffers))
        self.write_logs(self._log.level_of(self.mesh, self.rank))

    def write_logs(self, level: int | None) -> None:
        """Have it write records of ``logging`` from this level on; None: as Python does."""
        if level is not None:
            self.send(Frame(Kind.CONTROL, dumps(WriteLogs(level))[0]))

    def send(self, frame: Frame) -> None:
        """Send it a frame; one that is dying does not get it."""
        with contextlib.suppress(LinkClosed):
            self._link.post(frame)

    def send_encoded(self, data: Buffer) -> None:
        """``send`` of a frame that is encoded already."""
        with contextlib.suppress(LinkClosed):
            self._link.post_encoded(data)

    @property
    def has_unsent(self) -> bool:
        """Whether some of what it was sent has to wait for it to read."""
        return self._link.has_unsent

    def post(self, frame: Frame) -> None:
        """Send it a frame; see ``Way``."""
        self.send(frame)

    def when_sent(self, callback: Callable[[], Any]) -> None:
        """Call back once all that was sent to it has left, or never will."""
        self._link.when_sent(callback)

    def say(self, message: Any) -> None:
        """Send it a message."""
        self.send(Frame(Kind.CONTROL, dumps(message)[0]))

    def hand_over(self, message: TakeLink | Connected, fd: int) -> None:
        """Give it a descriptor, which is the link's from here on."""
        with contextlib.suppress(LinkClosed):
            self._link.post(Frame(Kind.CONTROL, dumps(message)[0]), (fd,))

    def signal(self, signum: int) -> None:
        """Send a signal to the process; no matter if it is gone."""
        self._term_explained = self._term_explained or signum == signal.SIGTERM
        if self._pidfd >= 0:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._pidfd, signum)

    def stop(self, grace_s: float) -> None:
        """End it in order; kill it after ``grace_s`` seconds."""
        self.expected = self._stopped = True
        self.send(Frame(Kind.CONTROL, dumps(StopProc(grace_s))[0]))
        if self._grace is None:
            self._grace = self._reactor.call_later(grace_s, self.kill)

    def kill(self) -> None:
        """End it now, and all it started in its process group."""
        self.expected = self._doomed = True
        if self.pid:  # else as soon as it has one
            kill_group(self.pid)
            self.signal(signal.SIGKILL)

    def _exited(self, _events: int) -> None:
        self._take_exit(time.time())

    def _take_exit(self, at: float) -> None:
        status = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if status is None:
            return
        by_term = status.si_code != os.CLD_EXITED and status.si_status == signal.SIGTERM
        if by_term and not (self.expected or self._term_explained):
            # Slurm ends a job with a SIGTERM to each of its processes: is there one for us too?
            self._term_explained = True
            self._reactor.unwatch(self._pidfd)
            self._reactor.call_later(_TERM_NEWS_S, lambda: self._take_exit(at))
            return
        kill_group(self.pid)  # what it started and left behind; before its pid can be another's
        os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED)
        if status.si_code == os.CLD_EXITED:
            self._end(at=at, exit_code=status.si_status)
            return
        detail = "core dumped" if status.si_code == os.CLD_DUMPED else ""
        if status.si_status == signal.SIGKILL and oom_kills() > self._oom_kills:
            detail = "the kernel killed for memory in this cgroup while it ran"
        self._end(at=at, signum=status.si_status, detail=detail)

    def _end(
        self,
        *,
        at: float | None = None,
        exit_code: int | None = None,
        signum: int | None = None,
        detail: str = "",
        kind: Literal["not_started", ""] = "",
    ) -> None:
        if self._grace is not None:
            self._grace.cancel()
        self._link.drain()  # what it said before it died comes before the news of its death
        self._link.close()
        self._stdout.finish()
        self._stderr.finish()
        if self._pidfd >= 0:
            self._reactor.unwatch(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        cause = ExitCause(
            mesh=self.mesh_name,
            rank=self.rank,
            host=self._host,
            pid=self.pid,
            exit_code=exit_code,
            signal=signum,
            stderr_tail=self._stderr.tail,
            detail=detail,
            kind=kind,
        )
        gone = ProcGone(
            self.mesh,
            self.rank,
            self.incarnation,
            cause,
            self.expected,
            at or time.time(),
            self._stopped,
        )
        self._on_gone(self, gone)


def not_started(spawn: SpawnProcs, rank: int, host: str, reason: str) -> ProcGone:
    """The news of a rank of which nothing could be started."""
    cause = ExitCause(spawn.name, rank, host, 0, detail=reason, kind="not_started")
    return ProcGone(spawn.mesh, rank, spawn.incarnation, cause, False, time.time())
