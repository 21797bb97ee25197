"""The host agent: one process per node that starts procs, watches them and passes frames on.

It has one loop and, once it has opened its log, blocks on nothing else: the log is written by a
thread of its own, so that a file system that stalls does not look like a dead host.

It ends, and with it every process it started, when the controller says so, when the link to it
breaks, and when the controller has given no sign of life for the time of the lease.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from slurmmesh._version import __version__
from slurmmesh.actors.addresses import CONTROLLER
from slurmmesh.actors.messages import Connect, DoorOpened, OpenDoor, ProcWelcome
from slurmmesh.errors import LinkClosed, SetupError, SupervisionError
from slurmmesh.hosts.births import Births
from slurmmesh.hosts.fabric import socket_variables
from slurmmesh.hosts.forkclient import ForkClient
from slurmmesh.hosts.forking import ForkServer, fork_here
from slurmmesh.hosts.introductions import Pairs
from slurmmesh.hosts.logs import HostLog
from slurmmesh.hosts.messages import (
    HOSTS,
    ForgetMesh,
    ForkRequest,
    HostFailed,
    HostHello,
    HostReady,
    HostsFound,
    HostWelcome,
    Imports,
    Listen,
    LogsStream,
    LogsTaken,
    MeshFound,
    ProcGone,
    ProcStarted,
    Shutdown,
    SignalProcs,
    SpawnProcs,
    StopProcs,
    StreamLogs,
)
from slurmmesh.hosts.passing import Passing
from slurmmesh.hosts.procs import HostedProc, not_started
from slurmmesh.hosts.relay import ANSWERS
from slurmmesh.hosts.workspace import Workspace
from slurmmesh.linux import become_subreaper, reap_strangers, sweep_children
from slurmmesh.slurm.addresses import Choice, alone
from slurmmesh.wire.codec import dumps, loads
from slurmmesh.wire.frames import Frame, Kind
from slurmmesh.wire.identity import Revoked
from slurmmesh.wire.links import Link, cut_off
from slurmmesh.wire.reactor import READ, Reactor, say

EXIT_LOST_CONTROLLER = 75
"""The agent's exit code when it ended because the controller was gone."""

_GOODBYE_S = 2.0
_TERM_GRACE_S = 2.0
_TERM_NEWS_S = 1.0
"""How long a SIGTERM waits for the controller's orders, which end the ranks in their order."""


class HostAgent:
    """The agent over a connected socket to the controller.

    Args:
        authenticate: names the controller, see ``Link``.
        choose_place: gives the address under which other hosts reach this one; SetupError where
            there is none.
        server: the first fork server, if there is one.
    """

    def __init__(
        self,
        sock: socket.socket,
        authenticate: Callable[[Any], str],
        choose_place: Callable[[], Choice],
        server: ForkServer | None,
    ) -> None:
        self._reactor = Reactor()
        self._link = Link(
            self._reactor,
            sock,
            authenticate=authenticate,
            on_open=self._on_open,
            on_frame=self._on_frame,
            on_close=self._on_close,
        )
        self._welcome: HostWelcome | None = None
        self._choose_place = choose_place
        self._place: Choice | None = None
        self._log: HostLog | None = None
        self._server = server
        self._forks: ForkClient | None = None
        self._births: Births | None = None
        self._workspace: Workspace | None = None
        self._passing: Passing | None = None
        self._pairs: Pairs | None = None
        self._procs: dict[tuple[int, int], HostedProc] = {}
        self._gone: dict[tuple[int, int], ProcGone] = {}
        self._heard = self._reactor.clock()
        self._leaving = False
        self._farewell = ""
        self._code = 0

    def run(self) -> int:
        """Serve until told to leave; returns the exit code. Nothing is left running."""
        become_subreaper()
        read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: self._reactor.call_soon(self._terminated))
        self._reactor.watch(read, READ, lambda _events: self._signalled(read))
        self._reactor.call_soon(self._link.start)
        try:
            self._reactor.run()
        finally:
            signal.set_wakeup_fd(-1)
            if self._forks is not None:
                self._forks.close()
            sweep_children()
            if self._workspace is not None:
                self._workspace.close()
            os.close(read)
            os.close(write)
            if self._log is not None:
                self._log.close()
        return self._code

    # -- link to the controller ---------------------------------------------------------------

    def _on_open(self, _link: Link) -> None:
        self._tell(HostHello(os.getpid(), __version__), Kind.HELLO)

    def _on_frame(self, _link: Link, frame: Frame) -> None:
        self._heard = self._reactor.clock()
        if frame.mesh == HOSTS and frame.kind is Kind.CALL and self._workspace is not None:
            self._workspace.take(frame)
        elif frame.kind is Kind.CONTROL:
            message = loads(frame.body, frame.buffers)
            self._HANDLERS[type(message)](self, message)
        elif frame.kind is Kind.WELCOME:
            self._take_welcome(loads(frame.body, frame.buffers))
        elif frame.kind is Kind.PORT:
            self._to_port(frame)
        elif self._passing is not None:
            if frame.kind not in ANSWERS:
                self._passing.take(self._link, frame)
            else:
                self._passing.sending.answered(frame)

    def _on_close(self, _link: Link, reason: str) -> None:
        if not self._leaving:
            say(f"slurmmesh host: the controller is gone ({reason})")
            self._code = EXIT_LOST_CONTROLLER
        self._end_now()

    def _tell(self, message: Any, kind: Kind = Kind.CONTROL) -> None:
        body, buffers = dumps(message)
        self._post(Frame(kind, body, buffers))

    def _tell_with(self, message: Any, *fds: int) -> None:
        with contextlib.suppress(LinkClosed):
            self._link.post(Frame(Kind.CONTROL, dumps(message)[0]), fds)

    def _post(self, frame: Frame) -> None:
        with contextlib.suppress(LinkClosed):
            self._link.post(frame)

    def _take_welcome(self, welcome: HostWelcome) -> None:
        self._welcome = welcome
        try:
            self._place = self._choose_place()
            self._log = HostLog(self._reactor, welcome, self._link)
            server_output = self._log.stream(2, "slurmmesh ")
        except (OSError, SetupError) as error:
            self._code = 1
            is_ours = isinstance(error, SetupError)
            self._farewell = str(error) if is_ours else f"its log cannot be written: {error}"
            self._leave(0.0)
            return
        self._forks = ForkClient(
            self._reactor, server_output, welcome.log or welcome.name, self._server
        )
        self._births = Births(self._reactor, self._forks)
        self._workspace = Workspace(
            welcome.name, self._reactor.call_soon, self._post, self._forks.renew
        )
        self._pairs = Pairs(
            self._procs, self._tell_with, self._place.address, welcome.credentials.name
        )
        self._passing = Passing(
            self._reactor,
            welcome,
            self._place.address,
            self._procs,
            self._gone,
            self._post,
            self._tell,
        )
        self._heartbeat()
        self._tell(HostReady(self._place), Kind.HELLO)

    def _heartbeat(self) -> None:
        assert self._welcome is not None
        silent = self._reactor.clock() - self._heard
        if silent > self._welcome.lease_s:
            say(f"slurmmesh host: no controller for {silent:.1f} s")
            self._code = EXIT_LOST_CONTROLLER
            self._end_now()
            return
        with contextlib.suppress(LinkClosed):
            self._link.post(Frame(Kind.PING))
        self._reactor.call_later(self._welcome.heartbeat_s, self._heartbeat)

    # -- procs --------------------------------------------------------------------------------

    def _spawn(self, message: SpawnProcs) -> None:
        assert self._welcome is not None
        assert self._births is not None
        assert self._place is not None
        assert self._workspace is not None
        assert self._passing is not None
        self._passing.spawned(message)
        given = socket_variables(self._place, {**os.environ, **message.env})
        request = ForkRequest(
            local_ranks=(),
            env={**given, **message.env},
            preload=message.preload,
            sys_path=self._workspace.import_path(self._welcome.sys_path),
            cwd=self._workspace.working_folder(self._welcome.cwd),
            host_pid=os.getpid(),
        )
        procs = []
        refused: list[ProcGone] = []
        for rank in message.ranks:
            try:
                procs.append((rank % message.per_host, self._host(message, rank)))
            except (OSError, SupervisionError) as error:
                refused.append(not_started(message, rank, self._welcome.name, str(error)))
        self._births.order(message.mesh, request, procs, message.imports)
        for gone in refused:  # together: they are one failure
            self._tell_gone(gone)

    def _host(self, message: SpawnProcs, rank: int) -> HostedProc:
        """Make all that a proc needs but its process.

        Raises:
            OSError: there is no room for it.
            SupervisionError: the host is being stopped.
        """
        assert self._welcome is not None
        assert self._log is not None
        assert self._place is not None
        host = self._welcome
        if self._leaving:
            raise SupervisionError("its host is being stopped")
        proc = HostedProc(
            self._reactor,
            self._log,
            message,
            rank,
            host.name,
            on_frame=self._from_proc,
            on_gone=self._on_gone,
        )
        self._procs[message.mesh, rank] = proc
        proc.welcome(
            ProcWelcome(
                job=message.job,
                mesh_id=message.mesh,
                mesh=message.name,
                rank=rank,
                region=message.region,
                host=host.name,
                host_address=self._place.address,
                incarnation=message.incarnation,
                job_folder=host.job_folder,
                credentials=host.credentials,
                bootstrap=message.bootstrap,
            )
        )
        return proc

    def _told_imports(self, message: Imports) -> None:
        assert self._births is not None
        self._births.told(message)

    def _stop(self, message: StopProcs) -> None:
        for proc in self._select(message.mesh, message.ranks):
            proc.stop(message.grace_s)

    def _signal(self, message: SignalProcs) -> None:
        for proc in self._select(message.mesh, message.ranks):
            if message.ordered:
                proc.kill()
            else:
                proc.signal(message.signum)

    def _revoke(self, revoked: Revoked) -> None:
        if self._welcome is None:
            return  # it will come with them
        self._welcome.credentials.revoked.add(revoked)
        cut_off(self._welcome.credentials.revoked)
        body, _ = dumps(revoked)
        for proc in self._procs.values():
            proc.send(Frame(Kind.CONTROL, body))

    def _connect(self, message: Connect) -> None:
        assert self._pairs is not None
        self._pairs.connect(message)

    def _open_door(self, message: OpenDoor) -> None:
        assert self._pairs is not None
        self._pairs.open_door(message)

    def _stream_logs(self, message: StreamLogs) -> None:
        assert self._log is not None
        self._log.order(message)
        for proc in self._select(message.mesh, message.ranks):
            proc.write_logs(message.level)
        self._tell(LogsStream(message.order))

    def _logs_taken(self, _message: LogsTaken) -> None:
        assert self._log is not None
        self._log.taken()

    def _listen(self, _message: Listen) -> None:
        assert self._passing is not None
        self._passing.neighbours.listen()

    def _mesh_found(self, message: MeshFound) -> None:
        assert self._passing is not None
        self._passing.sending.found(message)

    def _forget_mesh(self, message: ForgetMesh) -> None:
        assert self._passing is not None
        assert self._log is not None
        for key in [key for key in self._gone if key[0] == message.mesh]:
            del self._gone[key]
        self._passing.forget(message.mesh)
        self._log.forget(message.mesh)

    def _hosts_found(self, message: HostsFound) -> None:
        assert self._passing is not None
        self._passing.neighbours.found(message)

    def _select(self, mesh: int, ranks: tuple[int, ...]) -> list[HostedProc]:
        found = (self._procs.get((mesh, rank)) for rank in ranks)
        return [proc for proc in found if proc is not None]

    def _from_proc(self, proc: HostedProc, frame: Frame) -> None:
        if frame.kind is Kind.HELLO:
            # It tells its pid itself: the fork server's answer may come later than this.
            pid, now = frame.call, time.time()
            self._tell(ProcStarted(proc.mesh, proc.rank, proc.incarnation, pid, now))
        elif frame.kind in ANSWERS:
            assert self._passing is not None
            frame.ranks = (proc.rank,)
            self._passing.answered(frame)
        elif frame.kind is Kind.CONTROL:
            message = loads(frame.body)
            if isinstance(message, DoorOpened) and self._pairs is not None:
                self._pairs.door_opened(proc, message.port)
        elif frame.kind in (Kind.CALL, Kind.CAST, Kind.ASK):
            assert self._passing is not None
            self._passing.sending.send(proc, frame)
        elif frame.kind is Kind.PORT:
            self._to_port(frame)
        else:
            self._post(frame)

    def _to_port(self, frame: Frame) -> None:
        """A message for a port of a proc that runs here, or else of another process."""
        owner = self._procs.get((frame.mesh, frame.ranks[0]))
        if owner is not None:
            owner.send(frame)
        elif frame.mesh == CONTROLLER.mesh or (frame.mesh, frame.ranks[0]) not in self._gone:
            self._post(frame)

    def _on_gone(self, proc: HostedProc, gone: ProcGone) -> None:
        del self._procs[proc.mesh, proc.rank]
        if self._passing is not None:
            self._passing.sending.forget(proc)
        self._tell_gone(gone)
        self._reap()
        if self._leaving and not self._procs:
            self._say_goodbye()

    def _tell_gone(self, gone: ProcGone) -> None:
        self._gone[gone.mesh, gone.rank] = gone
        self._tell(gone)
        if self._passing is not None:
            self._passing.proc_gone(gone)

    # -- the end ------------------------------------------------------------------------------

    def _shutdown(self, message: Shutdown) -> None:
        self._leave(message.grace_s)

    def _terminated(self) -> None:
        """If the whole job is being ended, the controller was told as well and says how."""
        for proc in self._procs.values():
            proc.expected = True

        def leave() -> None:
            if not self._leaving:
                self._farewell = "it was ended by SIGTERM"
                self._leave(_TERM_GRACE_S)

        self._reactor.call_later(_TERM_NEWS_S, leave)

    def _leave(self, grace_s: float) -> None:
        self._leaving = True
        for proc in list(self._procs.values()):
            proc.stop(grace_s)
        if not self._procs:
            self._say_goodbye()

    def _say_goodbye(self) -> None:
        """The controller hangs up when it has read all that we said."""
        if self._log is not None:
            self._log.flush()
        if self._farewell:
            self._tell(HostFailed(self._farewell), Kind.HELLO)
        self._link.finish()
        self._reactor.call_later(_GOODBYE_S, self._reactor.stop)

    def _end_now(self) -> None:
        self._leaving = True
        for proc in list(self._procs.values()):
            proc.kill()
        self._reactor.stop()

    def _signalled(self, read: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(read, 4096)
        self._reap()

    def _reap(self) -> None:
        """Reap orphans. Not while a fork is under way: its child is ours, under a pid not known."""
        if self._forks is None or self._forks.busy:
            return
        reap_strangers({self._forks.pid, *(proc.pid for proc in self._procs.values())})

    _HANDLERS: dict[type, Callable[[HostAgent, Any], None]] = {
        SpawnProcs: _spawn,
        Imports: _told_imports,
        StopProcs: _stop,
        SignalProcs: _signal,
        ForgetMesh: _forget_mesh,
        Revoked: _revoke,
        Connect: _connect,
        OpenDoor: _open_door,
        StreamLogs: _stream_logs,
        LogsTaken: _logs_taken,
        Listen: _listen,
        HostsFound: _hosts_found,
        MeshFound: _mesh_found,
        Shutdown: _shutdown,
    }


def main() -> None:
    """Entry of an agent on the controller's own machine.

    Its end of a socket pair is the first argument; the second tells who looks at processes
    which host it is.
    """
    server = fork_here()
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.set_inheritable(False)
    place = alone("all hosts of the job are on this machine")
    sys.exit(HostAgent(sock, lambda _sock: "controller", lambda: place, server).run())


if __name__ == "__main__":
    main()
