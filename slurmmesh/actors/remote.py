"""What meshes need, in a proc: its actors call others from here, past the controller.

Messages go over direct links or by the proc's own host. Only what changes the life of procs and
actors is asked of the controller.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

from slurmmesh.actors.addresses import CONTROLLER, ProcessId
from slurmmesh.actors.caller import Caller
from slurmmesh.actors.context import context
from slurmmesh.actors.direct import Place
from slurmmesh.actors.future import Future
from slurmmesh.actors.mesh import ProcMesh
from slurmmesh.actors.messages import Door
from slurmmesh.actors.owners import Owner
from slurmmesh.actors.runtime import ProcEvent, ProcOptions, home
from slurmmesh.actors.supervising import RankFailure
from slurmmesh.errors import LinkClosed, SupervisionError, UsageError
from slurmmesh.shape import Extent, Region
from slurmmesh.wire.batches import BatchLink
from slurmmesh.wire.codec import dumps
from slurmmesh.wire.dialing import Dialing
from slurmmesh.wire.driver import Driver
from slurmmesh.wire.frames import Buffer, Frame, Kind
from slurmmesh.wire.gather import unmerge
from slurmmesh.wire.identity import Credentials, client_context, peer_name
from slurmmesh.wire.listener import wrap


class ProcRuntime:
    """The runtime (``actors/runtime.py``) of a proc.

    Args:
        job: see ``Runtime.job``.
        link: to the host.
        credentials: with which callees on other hosts are reached.
    """

    def __init__(
        self,
        job: str,
        address: ProcessId,
        driver: Driver,
        link: BatchLink,
        credentials: Credentials | None,
    ) -> None:
        self._pid = os.getpid()
        self._driver = driver
        self._credentials = credentials
        self.job = job
        self.address = address
        self.region: Region | None = None
        self.driver: Driver | None = driver
        self._link = link
        self.caller = Caller(
            driver, threading.RLock(), self._by_hosts, self._ask_for_link, answers_by=driver
        )
        self.caller.on_broken = self._ask_for_end

    def this_proc(self) -> ProcMesh:
        """This proc alone, without dimensions."""
        assert self.region is not None
        alone = Region.from_ranks(Extent((), ()), [self.address.rank])
        return ProcMesh(self, self.address.mesh, context().mesh, self.region, alone)

    def host_index(self) -> int:
        """The index of this proc's host in the job."""
        index: int = self._asked("the host", "host_of", self.address)
        return index

    def ask(self, what: str, operation: str, *args: Any) -> Future[Any]:
        """Have the controller carry out an operation (``hosts/asks.py``); the answer to come."""
        self._check_process()
        call, future = self.caller.book.open(CONTROLLER.mesh, (0,), lambda values: values[0], what)
        body, buffers = dumps((operation, args))
        try:
            self._link.send(Frame(Kind.ASK, body, buffers, call))
        except LinkClosed as error:
            self.caller.book.fail(call, error)
        return future

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise SupervisionError(
                f"this process is a fork of the actor's (pid {self._pid}): it cannot use its "
                "meshes; make it an actor of its own"
            )

    def take(self, frame: Frame) -> None:
        """Take a frame from the host that answers something."""
        book = self.caller.book
        if frame.kind is Kind.DELIVERED:
            book.answer_ranks(frame.call, frame.ranks, None)
        elif frame.kind is Kind.MERGED:
            for rank, body, buffers in unmerge(frame):
                book.answer(Frame(Kind.RESULT, body, buffers, frame.call, ranks=(rank,)))
        else:
            book.answer(frame)

    # -- see ``Runtime`` for what these do -----------------------------------------------------

    def call(
        self,
        frame: Frame,
        finish: Callable[[list[Any]], Any],
        what: str,
        timeout: float | None = None,
    ) -> Future[Any]:
        self._check_process()
        return self.caller.call(frame, finish, what, timeout=timeout)

    def stream(self, frame: Frame, what: str, timeout: float | None = None) -> list[Future[Any]]:
        self._check_process()
        return self.caller.stream(frame, what, timeout=timeout)

    def cast(self, frame: Frame) -> None:
        self._check_process()
        self.caller.cast(frame)

    def place(self, mesh: int, rank: int) -> Place:
        return self.caller.place(mesh, rank)

    def send_to_port(
        self, owner: ProcessId, port: int, body: Buffer, buffers: Sequence[Buffer]
    ) -> None:
        frame = Frame(Kind.PORT, body, buffers, port, owner.mesh, owner.incarnation, (owner.rank,))
        with contextlib.suppress(LinkClosed):
            self.caller.send_to_port(frame)

    def new_actor(self, mesh: int) -> int:
        number: int = self._asked("spawning an actor", "new_actor", mesh)
        return number

    def create(self, frame: Frame, name: str, owner: Owner, home: str) -> Future[Any]:
        body, buffers = bytes(frame.body), [bytes(buffer) for buffer in frame.buffers]
        where = frame.mesh, frame.actor, tuple(frame.ranks)
        return self.ask(f"building {name!r}", "create", *where, body, buffers, name, owner, home)

    def spawn_procs(
        self,
        hosts: Sequence[int],
        region: Region,
        name: str,
        owner: Owner,
        options: ProcOptions,
    ) -> int:
        mesh: int = self._asked(
            f"spawning {name!r}", "spawn_procs", tuple(hosts), region, name, owner, options
        )
        return mesh

    def get_or_create(self, body: Buffer, buffers: Sequence[Buffer], name: str) -> Future[Any]:
        parts = bytes(body), [bytes(buffer) for buffer in buffers]
        return self.ask(f"building {name!r}", "get_or_create", *parts, name)

    def ready(self, mesh: int, ranks: Sequence[int]) -> Future[bool]:
        return self.ask("starting procs", "ready", mesh, tuple(ranks))

    def stop_actors(self, mesh: int, actor: int, ranks: Sequence[int]) -> Future[None]:
        return self.ask("stopping actors", "stop_actors", mesh, actor, tuple(ranks))

    def end_owned(self, owner: Owner, grace_s: float) -> Future[None]:
        return self.ask("ending what an actor spawned", "end_owned", owner, grace_s)

    def actor_failed(self, actor: int, failure: RankFailure) -> None:
        """Tell the owner of an actor of this proc."""
        self.ask("telling of a failure", "actor_failed", self.address, actor, failure)

    def describe_hosts(self, hosts: Sequence[int]) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = self._asked("hosts", "describe_hosts", tuple(hosts))
        return found

    def stop_procs(self, mesh: int, ranks: Sequence[int], grace_s: float) -> Future[None]:
        return self.ask("stopping procs", "stop_procs", mesh, tuple(ranks), grace_s)

    def signal_procs(self, mesh: int, ranks: Sequence[int], signum: int) -> None:
        self.ask("a signal", "signal_procs", mesh, tuple(ranks), signum)

    def subscribe(self, mesh: int, callback: Callable[[ProcEvent], Any]) -> None:
        raise UsageError("events of procs are for the program itself: use __supervise__ in actors")

    def stream_logs(
        self, mesh: int, ranks: Sequence[int], level: int | None, window_s: float
    ) -> Future[None]:
        return self.ask("streaming logs", "stream_logs", mesh, tuple(ranks), level, window_s)

    def reload(
        self,
        mesh: int,
        ranks: Sequence[int],
        modules: tuple[str, ...],
        finish: Callable[[list[Any]], Any],
    ) -> Future[Any]:
        raise UsageError("modules are reloaded from the program itself, not from an actor")

    def hosts_of(self, mesh: int, ranks: Sequence[int]) -> list[str]:
        names: list[str] = self._asked("names of hosts", "hosts_of", mesh, tuple(ranks))
        return names

    def _asked(self, what: str, operation: str, *args: Any) -> Any:
        """The same as ``ask``, and wait: it takes as long as a call."""
        answer = self.ask(what, operation, *args)
        answer.wait()
        return answer.get()

    def _by_hosts(self, frame: Frame) -> None:
        self._link.send(frame)

    def _ask_for_link(self, mesh: int, rank: int) -> bool:
        def found(future: Future[Door | None]) -> None:
            door = None if future.exception(0) else future.get(0)
            if door is not None:
                self._driver.reactor.call_soon(self._dial, door)

        asked = self.ask("a direct link", "introduce", self.address, mesh, rank)
        asked.add_done_callback(found)
        return True

    def _ask_for_end(self, mesh: int, rank: int, incarnation: int) -> None:
        """The link to a rank broke: did it die, and how?"""

        def told(future: Future[SupervisionError | None]) -> None:
            error = future.exception(0) or future.get(0)
            if error is not None:
                self.caller.explain(mesh, rank, error)

        self.ask("the end of a rank", "end_of", mesh, rank, incarnation).add_done_callback(told)

    def _dial(self, door: Door) -> None:
        """Reach a rank of another host."""

        def dialed(raw: socket.socket | None, _reason: str) -> None:
            if raw is not None and self._credentials is not None:
                sock = wrap(raw, client_context(self._credentials), server_side=False)

                def authenticate(peer: Any) -> str:
                    return peer_name(peer, door.identity)

                self.caller.connected(door.mesh, door.rank, door.incarnation, sock, authenticate)

        Dialing(self._driver.reactor, door.address, door.port, dialed)


def proc_here() -> ProcRuntime | None:
    """The runtime of the proc that this process is; None in the program itself."""
    here = home()
    return here if isinstance(here, ProcRuntime) else None
