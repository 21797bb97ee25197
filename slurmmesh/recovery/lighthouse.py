"""TorchFT's Lighthouse as a supervised process of its own, on a port that it keeps.

It decides the quorums. If it dies it is started again on the same address; the replicas go on
asking meanwhile and train on when it answers.
"""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from slurmmesh import telemetry
from slurmmesh.actors import Actor, Future, ProcEvent, context, endpoint
from slurmmesh.errors import ActorError, SupervisionError
from slurmmesh.hosts import HostMesh
from slurmmesh.recovery.requirements import PRELOAD
from slurmmesh.recovery.settings import RecoverySettings
from slurmmesh.supervision import Supervision
from slurmmesh.wire.addresses import family_of, in_url

PORTS = range(20000, 30000)
"""Below what Linux hands out by itself, so that nobody is given the port during a restart."""

_BIND_TRIES_S = 5.0
_CONNECT = timedelta(seconds=5)


def free_port(address: str, ports: range = PORTS, tries: int = 200) -> int:
    """A TCP port on which nobody listens at ``address``.

    Raises:
        OSError: none was found; the last reason.
    """
    for left in reversed(range(tries)):
        port = random.choice(ports)
        with socket.socket(family_of(address), socket.SOCK_STREAM) as probe:
            try:
                probe.bind((address, port))
                probe.listen(1)
            except OSError:
                if left == 0:
                    raise
                continue
        return port
    raise OSError("no tries left")


def url(address: str, port: int) -> str:
    """The Lighthouse's address as TorchFT wants it."""
    return f"http://{in_url(address)}:{port}"


class LighthouseActor(Actor):
    """Holds TorchFT's LighthouseServer, bound to the host's fabric address.

    Args:
        settings: heartbeat and quorum times, and the least number of replicas.
    """

    def __init__(self, settings: RecoverySettings) -> None:
        self._settings = settings
        self._server: Any = None

    @endpoint
    def serve(self, members: tuple[str, ...], place: str) -> tuple[int, str]:
        """Begin to decide; returns the process id and the URL.

        Args:
            place: the URL it had before; empty: any free port of this host.
            members: who is alive, as TorchFT names them. They count as alive for one heartbeat
                timeout: a Lighthouse that was started again knows nobody, and would make a
                quorum of whoever asks first.

        Raises:
            SupervisionError: somebody else has the port.
        """
        from torchft.coordination import LighthouseClient

        self._server, place = _bind(context().host_address, place, self._settings)
        if members:
            client = LighthouseClient(place, connect_timeout=_CONNECT)
            for member in members:
                client.heartbeat(member)
        return os.getpid(), place

    def __cleanup__(self, error: BaseException | None) -> None:
        """Stop deciding."""
        if self._server is not None:
            self._server.shutdown()


def _bind(address: str, fixed: str, settings: RecoverySettings) -> tuple[Any, str]:
    """A LighthouseServer and its URL: ``fixed``, or else one with any port that is free."""
    from torchft.coordination import LighthouseServer

    deadline = time.monotonic() + _BIND_TRIES_S
    while True:
        place = fixed or url(address, free_port(address))
        try:
            server = LighthouseServer(
                bind=place.removeprefix("http://"),
                min_replicas=settings.min_replicas,
                join_timeout_ms=round(1000 * settings.join_timeout_s),
                quorum_tick_ms=max(1, round(1000 * settings.quorum_tick_s)),
                heartbeat_timeout_ms=round(1000 * settings.heartbeat_timeout_s),
            )
        except RuntimeError as error:
            if time.monotonic() > deadline:
                raise SupervisionError(
                    f"the Lighthouse cannot listen on {place}: {error}. Another program may have "
                    "taken its port while it was being started again"
                ) from error
            time.sleep(0.05)
        else:
            return server, place


class LighthouseService:
    """Starts the Lighthouse on one host and keeps it running.

    Args:
        host: a host mesh of one.
        on_event: told what happens to its process; see ``ProcMesh.on_event``.
        on_failed: told, from any thread, why it cannot go on although its process runs.
        members: gives the names of the quorum's members that are alive, as TorchFT knows them.

    Raises:
        SupervisionError: it could not be started.
    """

    def __init__(
        self,
        host: HostMesh,
        settings: RecoverySettings,
        restarts: Supervision,
        on_event: Callable[[ProcEvent], object],
        on_failed: Callable[[BaseException], object],
        members: Callable[[], tuple[str, ...]],
    ) -> None:
        self._members = members
        self._on_failed = on_failed
        self.address = ""
        self._procs = host.spawn_procs(name="lighthouse", preload=(PRELOAD,), supervise=restarts)
        self._actor = self._procs.spawn("lighthouse", LighthouseActor, settings)
        self._procs.on_event(self._on_event)
        self._procs.on_event(on_event)
        try:
            _pid, self.address = self._serve(0).get()
        except ActorError as error:
            raise (error.exception or error) from None

    def _on_event(self, event: ProcEvent) -> None:
        """In the thread that drives the links."""
        if event.kind == "restarted":
            self._serve(event.incarnation)
        elif event.kind == "exited" and not event.expected:
            telemetry.emit(
                "lighthouse_exited",
                t=event.at,
                address=self.address,
                pid=event.pid,
                incarnation=event.incarnation,
            )

    def _serve(self, incarnation: int) -> Future[tuple[int, str]]:
        """Let a process that has just been started be the Lighthouse, and tell of it."""
        answer = self._actor.serve.call_one(self._members(), self.address)

        def up(future: Future[tuple[int, str]]) -> None:
            error = future.exception(0)
            if error is None:
                pid, address = future.get(0)
                telemetry.emit("lighthouse_up", address=address, pid=pid, incarnation=incarnation)
            elif isinstance(error, ActorError):  # else it died, and is started again
                self._on_failed(error.exception or error)

        answer.add_done_callback(up)
        return answer

    def stop(self, grace_s: float) -> Future[None]:
        """End it; done when it is gone."""
        return self._procs.stop(grace_s)
