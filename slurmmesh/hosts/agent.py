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
from collections.abc import Callable
from typing import Any

from slurmmesh._version import __version__
from slurmmesh.errors import LinkClosed, SetupError
from slurmmesh.hosts.forking import ForkServer, fork_here
from slurmmesh.hosts.hosting import Hosting
from slurmmesh.hosts.logs import HostLog
from slurmmesh.hosts.messages import (
    HostFailed,
    HostHello,
    HostReady,
    HostWelcome,
    Shutdown,
)
from slurmmesh.linux import become_subreaper, sweep_children
from slurmmesh.slurm.addresses import Choice, alone
from slurmmesh.wire.codec import dumps, loads
from slurmmesh.wire.frames import Frame, Kind
from slurmmesh.wire.links import Link
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
        self._choose_place = choose_place
        self._log: HostLog | None = None
        self._server = server
        self._hosting: Hosting | None = None
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
            if self._hosting is not None:
                self._hosting.close()
            sweep_children()
            os.close(read)
            os.close(write)
            if self._log is not None:
                self._log.close()
        return self._code

    # -- link to the controller ---------------------------------------------------------------

    def _on_open(self, _link: Link) -> None:
        self._tell(HostHello(os.getpid(), __version__), kind=Kind.HELLO)

    def _on_frame(self, _link: Link, frame: Frame) -> None:
        self._heard = self._reactor.clock()
        if frame.kind is Kind.WELCOME:
            self._take_welcome(loads(frame.body, frame.buffers))
        elif frame.kind is Kind.CONTROL:
            message = loads(frame.body, frame.buffers)
            if isinstance(message, Shutdown):
                self._leave(message.grace_s)
            elif self._hosting is not None:
                self._hosting.handle(message)
        elif self._hosting is not None:
            self._hosting.take(frame)

    def _on_close(self, _link: Link, reason: str) -> None:
        if not self._leaving:
            say(f"slurmmesh host: the controller is gone ({reason})")
            self._code = EXIT_LOST_CONTROLLER
        self._end_now()

    def _tell(self, message: Any, *fds: int, kind: Kind = Kind.CONTROL) -> None:
        body, buffers = dumps(message)
        with contextlib.suppress(LinkClosed):
            self._link.post(Frame(kind, body, buffers), fds)

    def _post(self, frame: Frame) -> None:
        with contextlib.suppress(LinkClosed):
            self._link.post(frame)

    def _take_welcome(self, welcome: HostWelcome) -> None:
        try:
            place = self._choose_place()
            self._log = HostLog(self._reactor, welcome, self._link)
            server_output = self._log.stream(2, "slurmmesh ")
        except (OSError, SetupError) as error:
            self._code = 1
            is_ours = isinstance(error, SetupError)
            self._farewell = str(error) if is_ours else f"its log cannot be written: {error}"
            self._leave(0.0)
            return
        self._hosting = Hosting(
            self._reactor,
            welcome,
            place,
            self._log,
            server_output,
            self._server,
            self._link,
            self._post,
            self._tell,
            self._say_goodbye,
        )
        self._heartbeat(welcome)
        self._tell(HostReady(place, self._hosting.gpus), kind=Kind.HELLO)

    def _heartbeat(self, welcome: HostWelcome) -> None:
        silent = self._reactor.clock() - self._heard
        if silent > welcome.lease_s:
            say(f"slurmmesh host: no controller for {silent:.1f} s")
            self._code = EXIT_LOST_CONTROLLER
            self._end_now()
            return
        with contextlib.suppress(LinkClosed):
            self._link.post(Frame(Kind.PING))
        self._reactor.call_later(welcome.heartbeat_s, lambda: self._heartbeat(welcome))

    # -- the end ------------------------------------------------------------------------------

    def _terminated(self) -> None:
        """If the whole job is being ended, the controller was told as well and says how."""
        if self._hosting is not None:
            self._hosting.expect_end()

        def leave() -> None:
            if not self._leaving:
                self._farewell = "it was ended by SIGTERM"
                self._leave(_TERM_GRACE_S)

        self._reactor.call_later(_TERM_NEWS_S, leave)

    def _leave(self, grace_s: float) -> None:
        self._leaving = True
        if self._hosting is not None:
            self._hosting.stop(grace_s)
        if self._hosting is None or self._hosting.is_empty:
            self._say_goodbye()

    def _say_goodbye(self) -> None:
        """The controller hangs up when it has read all that we said."""
        if self._log is not None:
            self._log.flush()
        if self._farewell:
            self._tell(HostFailed(self._farewell), kind=Kind.HELLO)
        self._link.finish()
        self._reactor.call_later(_GOODBYE_S, self._reactor.stop)

    def _end_now(self) -> None:
        self._leaving = True
        if self._hosting is not None:
            self._hosting.kill()
        self._reactor.stop()

    def _signalled(self, read: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(read, 4096)
        if self._hosting is not None:
            self._hosting.reap()


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
