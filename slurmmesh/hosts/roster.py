"""The hosts of a job as the controller holds them: records, links, and signs of life."""

from __future__ import annotations

import functools
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from slurmmesh._version import __version__
from slurmmesh.errors import HostLost, IdentityError, LinkClosed, SetupError, SlurmmeshError
from slurmmesh.hosts.fabric import warnings_about
from slurmmesh.hosts.masks import Visible
from slurmmesh.hosts.messages import HostFailed, HostHello, HostReady, HostWelcome, Shutdown
from slurmmesh.hosts.rotation import log_limits
from slurmmesh.slurm.addresses import Choice
from slurmmesh.wire.codec import dumps, loads
from slurmmesh.wire.frames import Frame, Kind
from slurmmesh.wire.identity import Credentials, JobAuthority
from slurmmesh.wire.links import Link, cut_off
from slurmmesh.wire.listener import Listener
from slurmmesh.wire.reactor import Reactor, say

HEARTBEAT_S = 1.0
HOST_SILENCE_S = 15.0
"""A host that gives no sign of life for so long is lost."""
LEASE_S = 10.0
"""A host that hears nothing for so long ends its procs.

Shorter than HOST_SILENCE_S by more than it takes to notice and to kill: when a host is given up,
nothing of it may still run beside what takes its place.
"""
AGENT_GRACE_S = 3.0
"""How long agents may take to be gone after the job's end, all together."""
_LAST_WORDS_S = 1.0


class Launched(Protocol):
    """A started host agent, as its launcher can watch and end it."""

    def poll(self) -> str | None:
        """None while it runs, else how it ended."""

    def terminate(self) -> None:
        """Ask it to end, without waiting."""

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is gone; false if it is not within the time."""

    def kill(self) -> None:
        """End it the hard way and wait until it is gone."""


@dataclass
class HostRecord:
    """One host.

    Attributes:
        name: of the machine, for people.
        identity: as certified, unique in the job.
        credentials: for it, if they were issued before it said its name.
        place: the address under which the other hosts reach it, and why; None until it is up.
        gpus: what is seen there.
        lost: set when it is gone; its procs count as dead.
    """

    index: int
    name: str
    identity: str
    launched: Launched | None = None
    link: Link | None = None
    place: Choice | None = None
    gpus: Visible = field(default_factory=Visible)
    credentials: Credentials | None = None
    pid: int = 0
    heard: float = 0.0
    ready: bool = False
    lost: HostLost | None = None
    meshes: set[int] = field(default_factory=set)

    @property
    def address(self) -> str:
        """Where the other hosts reach it; empty until it is up."""
        return self.place.address if self.place else ""


class Roster:
    """Accepts and greets hosts, notices when one is lost, and carries messages to them.

    Its callbacks run in the reactor's thread.

    Attributes:
        leaving: the job is being ended; hosts that go are no news.

    Args:
        lock: guards the records; shared with who keeps books on what runs on the hosts.
        on_frame: takes what a host sends that is not about the host itself.
        on_lost: told once for each host that is lost.
        emit: writes an event of the job.
    """

    def __init__(
        self,
        reactor: Reactor,
        lock: threading.RLock,
        authority: JobAuthority,
        job_folder: Path | None,
        on_frame: Callable[[HostRecord, Frame], Any],
        on_lost: Callable[[HostRecord, str], Any],
        emit: Callable[..., Any],
    ) -> None:
        self.authority = authority
        self.job_folder = job_folder
        self._log_limits = log_limits() if job_folder is not None else (0, 0)
        self.hosts: list[HostRecord] = []
        self._by_identity: dict[str, HostRecord] = {}
        self._reactor = reactor
        self._changed = threading.Condition(lock)
        self._on_host_frame = on_frame
        self._on_lost = on_lost
        self._emit = emit
        self._listeners: list[Listener] = []
        self._warned: set[str] = set()
        self._launching: threading.Thread | None = None
        self._revoked_is_news = False
        self.leaving = False
        reactor.call_later(HEARTBEAT_S, self._check_hosts)

    def listen(self, address: str) -> int:
        """Accept hosts of other nodes over TLS on this address too; returns the port.

        Raises:
            SetupError: the address is not one of this machine.
        """
        try:
            listener = Listener(
                self._reactor,
                self.authority.issue("controller"),
                ("host",),
                address,
                admit=self._admit,
                on_open=self._host_opened,
                on_frame=self._on_frame,
                on_close=self._on_close,
            )
        except OSError as error:
            raise SetupError(f"cannot listen on {address or 'any address'}: {error}") from error
        self._listeners.append(listener)
        self._reactor.call_soon(listener.start)
        return listener.port

    @functools.cached_property
    def own_credentials(self) -> Credentials:
        """With which the controller reaches procs of other hosts."""
        return self.authority.issue("controller")

    def add_host(self, name: str, launched: Launched | None = None) -> HostRecord:
        """Note a host that is about to be started, or has been."""
        with self._changed:
            index = len(self.hosts)
            host = HostRecord(index, name, f"host-{index}", launched)
            self.hosts.append(host)
            self._by_identity[host.identity] = host
            return host

    def launch(self, hosts: Sequence[HostRecord], start: Callable[[HostRecord], Launched]) -> None:
        """Start the agents of these hosts, one after the other; returns at once.

        The first that cannot be started is lost, and no further one is tried.
        """

        def launch_all() -> None:
            for host in hosts:
                if self.leaving:
                    return
                try:
                    host.launched = start(host)
                except (OSError, SlurmmeshError) as error:
                    reason = f"it cannot be started: {error}"
                    self._reactor.call_soon(functools.partial(self._lose, host, reason))
                    return

        self._launching = threading.Thread(target=launch_all, name="slurmmesh-launch", daemon=True)
        self._launching.start()

    def attach(self, host: HostRecord, sock: socket.socket) -> None:
        """Take our end of a socket pair whose other end a host of this machine was given."""
        host.credentials = self.authority.issue(host.identity)  # while it starts
        link = Link(
            self._reactor,
            sock,
            authenticate=lambda _sock: host.identity,
            on_open=self._host_opened,
            on_frame=self._on_frame,
            on_close=self._on_close,
        )
        self._reactor.call_soon(link.start)

    def wait_ready(self, hosts: Iterable[HostRecord], timeout: float) -> None:
        """Wait until these hosts are up; warns if their addresses look wrong.

        Raises:
            SetupError: one ended or did not come in time; names each, with what is known.
        """
        missing = hosts = list(hosts)
        deadline = time.monotonic() + timeout
        with self._changed:
            while missing := [host for host in missing if not host.ready]:
                if failed := [host for host in missing if _has_failed(host)]:
                    break
                left = deadline - time.monotonic()
                if left <= 0:
                    names = ", ".join(host.name for host in missing)
                    raise SetupError(f"hosts gave no sign of life within {timeout:g} s: {names}")
                self._changed.wait(min(left, 0.2))
        if missing:
            words = "; ".join(f"{host.name}: {_last_words(host)}" for host in failed)
            raise SetupError(f"hosts did not start. {words}")
        for line in warnings_about({host.name: host.place for host in hosts if host.place}):
            if line not in self._warned:
                self._warned.add(line)
                say(f"slurmmesh: {line}")

    def tell(self, host: HostRecord, message: Any, kind: Kind = Kind.CONTROL) -> bool:
        """Send a message to a host, without waiting; False if it is gone."""
        body, buffers = dumps(message)
        try:
            self.link_to(host).post(Frame(kind, body, buffers))
        except LinkClosed:
            return False
        return True

    def link_to(self, host: HostRecord) -> Link:
        """The link to a host.

        Raises:
            LinkClosed: there is none yet.
        """
        if host.link is None:
            raise LinkClosed(f"host {host.name} is not connected")
        return host.link

    def close(self, grace_s: float) -> None:
        """Have all hosts end what they run and leave; end by force those that do not."""
        self.leaving = True
        for listener in self._listeners:
            self._reactor.call_soon(listener.close)
        if self._launching is not None:
            self._launching.join()
        with self._changed:
            for host in self.hosts:
                reached = host.lost is None and self.tell(host, Shutdown(grace_s))
                if not reached and host.launched is not None:
                    host.launched.terminate()
            self._changed.wait_for(
                lambda: all(host.lost or host.link is None for host in self.hosts), grace_s + 2.0
            )
        for host in self.hosts:
            if host.link is not None:
                host.link.close()
        agents = [host.launched for host in self.hosts if host.launched is not None]
        deadline = time.monotonic() + AGENT_GRACE_S
        late = [agent for agent in agents if not agent.wait(max(0, deadline - time.monotonic()))]
        for agent in late:
            agent.kill()

    # -- in the reactor's thread ---------------------------------------------------------------

    def _admit(self, name: str) -> None:
        host = self._by_identity.get(name)
        if host is None or host.link is not None or self.leaving:
            raise IdentityError(f"the peer is {name}, but no host of that name is awaited")

    def _host_opened(self, link: Link) -> None:
        host = self._by_identity[link.peer]
        host.link = link
        host.heard = self._reactor.clock()

    def _on_frame(self, link: Link, frame: Frame) -> None:
        host = self._by_identity[link.peer]
        host.heard = self._reactor.clock()
        if frame.kind is Kind.PING:
            link.send(Frame(Kind.PONG))
        elif frame.kind is Kind.HELLO:
            try:
                self._take_hello(host, loads(frame.body))
            except Exception as error:  # no answer would leave it, and us, waiting
                self._lose(host, f"it cannot be greeted: {type(error).__name__}: {error}")
        else:
            self._on_host_frame(host, frame)

    def _take_hello(self, host: HostRecord, message: HostHello | HostReady | HostFailed) -> None:
        if isinstance(message, HostFailed):
            self._lose(host, message.reason)
        elif isinstance(message, HostReady):
            self._host_ready(host, message)
        elif message.version != __version__:
            reason = f"it runs slurmmesh {message.version}, the controller {__version__}"
            self._lose(host, reason)
        else:
            host.pid = message.pid
            self._welcome(host)

    def _welcome(self, host: HostRecord) -> None:
        assert host.link is not None
        folder = self.job_folder
        welcome = HostWelcome(
            name=host.name,
            job_folder=str(folder) if folder else None,
            log=self._log_of(host),
            sys_path=tuple(os.path.abspath(entry) for entry in sys.path),
            cwd=os.getcwd(),
            credentials=host.credentials or self.authority.issue(host.identity),
            heartbeat_s=HEARTBEAT_S,
            lease_s=LEASE_S,
            log_max_bytes=self._log_limits[0],
            log_keep=self._log_limits[1],
        )
        self.tell(host, welcome, Kind.WELCOME)

    def _host_ready(self, host: HostRecord, message: HostReady) -> None:
        with self._changed:
            host.place = place = message.place
            host.gpus = message.gpus
            host.ready = True
            self._changed.notify_all()
        self._emit(
            "host_up",
            host=host.index,
            name=host.name,
            address=place.address,
            interface=place.interface,
            why=place.why,
            pid=host.pid,
        )

    def _on_close(self, link: Link, reason: str) -> None:
        self._lose(self._by_identity[link.peer], reason)

    def _lose(self, host: HostRecord, reason: str) -> None:
        with self._changed:
            if host.lost is not None:
                return
            log = self._log_of(host) if host.ready and not self.leaving else None
            told = f"{reason}; its log: {log}" if log else reason
            host.lost = HostLost(host.name, told)
            host.ready = False
            self._changed.notify_all()
            if host.link is not None:
                host.link.close(reason)
        if not self.leaving:
            self._emit("host_lost", host=host.index, name=host.name, cause=reason)
            say(f"slurmmesh: {host.lost}")
            self._revoke(host)
        self._on_lost(host, told)

    def _log_of(self, host: HostRecord) -> str | None:
        return str(self.job_folder / "logs" / f"{host.name}.log") if self.job_folder else None

    def _revoke(self, host: HostRecord) -> None:
        """Let no member believe what this host may still say; of hosts lost together at once."""
        self.authority.revoke(host.identity)
        if not self._revoked_is_news:
            self._revoked_is_news = True
            self._reactor.call_soon(self._tell_revoked)

    def _tell_revoked(self) -> None:
        self._revoked_is_news = False
        cut_off(self.authority.revoked)
        for host in self.hosts:
            if host.lost is None:
                self.tell(host, self.authority.revoked)

    def _check_hosts(self) -> None:
        now = self._reactor.clock()
        with self._changed:
            silent = [
                host
                for host in self.hosts
                if host.ready and not host.lost and now - host.heard > HOST_SILENCE_S
            ]
        for host in silent:
            self._lose(host, f"no sign of life for {now - host.heard:.1f} s")
        self._reactor.call_later(HEARTBEAT_S, self._check_hosts)


def _has_failed(host: HostRecord) -> bool:
    return host.lost is not None or (host.launched is not None and host.launched.poll() is not None)


def _last_words(host: HostRecord) -> str:
    """Why a host did not start: what its agent said, and how it ended."""
    words = [host.lost.detail] if host.lost else []
    if host.launched is not None:
        host.launched.wait(_LAST_WORDS_S)  # its link breaks a little before it has ended
        words.append(host.launched.poll() or "")
    return "; ".join(word for word in words if word)
