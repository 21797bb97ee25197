"""Which way a message goes: over a direct link to one rank, or by the hosts to any number.

Used by every process that calls: the controller, and each proc for what its actors call.
Messages of one process to one rank keep their order: all go one way while any that went the
other may not have arrived.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import threading
import weakref
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from typing import Any

from slurmmesh.actors.backlog import Backlog, MeshBacklog, is_counted, marker, read, taken
from slurmmesh.actors.calls import CallBook, in_order, settle
from slurmmesh.actors.deadlines import Deadlines
from slurmmesh.actors.direct import DirectLink, Leg, Place, Sending, Sink, any_left
from slurmmesh.actors.future import Future
from slurmmesh.errors import ExitCause, LinkClosed, SlurmmeshError, SupervisionError
from slurmmesh.wire.driver import Driver
from slurmmesh.wire.frames import BROKEN, SOON, STREAM, Frame, Kind
from slurmmesh.wire.identity import same_user
from slurmmesh.wire.links import Link
from slurmmesh.wire.reactor import in_loop_thread

MAX_LINKS = 512
"""So many direct links a process keeps as a caller; to further ranks it speaks by the hosts."""
MANY_MESHES = 256
"""From so many meshes on, a process looks for those that it may forget."""
_NEWS_S = 5.0
"""How long the news of a death may come after the end of the link to its proc."""
_ASK_AGAIN_S = 5.0
"""A direct link that was asked for and has not come for so long is asked for again."""
_UNREACHABLE_S = 60.0
"""The same for one that came and did not get as far as to be used."""
_SHORT_S = 0.25
"""Of a call with so short a deadline no answer waits for another on the way, not for a moment."""

Over = Callable[[], "BaseException | None"]


class Caller:
    """Sends calls and casts, and has their answers.

    Attributes:
        book: of the calls that went by the hosts.
        deaths: of ranks of a mesh since a time of the loop's clock, for the text of timeouts.
        on_broken: told a mesh, a rank and its incarnation when the link to it broke while it owed
            answers. For those who do not hear of deaths by themselves; see ``explain``.

    Args:
        driver: of the loop of the direct links, run by the threads that wait for answers.
        lock: guards the places.
        by_hosts: sends a frame by the hosts; waits for room, and so is called without the lock.
        ask: asks for a direct link to a rank of a mesh; whether one may come. Also called without
            the lock; it must not wait for answers.
        answers_by: the driver of the loop by which the hosts' answers come, if it is run likewise.
    """

    def __init__(
        self,
        driver: Driver,
        lock: threading.RLock,
        by_hosts: Callable[[Frame], Any],
        ask: Callable[[int, int], bool],
        answers_by: Driver | None = None,
    ) -> None:
        self.driver = driver
        self.book = CallBook(lock, answers_by)
        self._lock = lock
        self._by_hosts = by_hosts
        self._ask = ask
        self._places: dict[int, dict[int, Place]] = {}
        self._many = MANY_MESHES
        self._backlogs: dict[int, MeshBacklog] = {}
        self._broken: dict[tuple[int, int], list[DirectLink]] = {}
        self._count = 0
        self._leaving: weakref.WeakSet[Sending] = weakref.WeakSet()
        self._deadlines = Deadlines(driver.reactor)
        self.deaths: Callable[[int, float], Sequence[ExitCause]] = lambda mesh, since: ()
        self.on_broken: Callable[[int, int, int], Any] = lambda mesh, rank, incarnation: None

    def place(self, mesh: int, rank: int) -> Place:
        """The place of a rank, made when it is first asked for."""
        with self._lock:
            places = self._places.get(mesh)
            if places is None:
                self._forget_idle()
                places = self._places[mesh] = {}
            place = places.get(rank)
            if place is None:
                place = places[rank] = Place()
            return place

    def _backlog(self, mesh: int) -> MeshBacklog:
        """What goes by the hosts to a mesh."""
        backlog = self._backlogs.get(mesh)
        if backlog is None:
            with self._lock:
                self._forget_idle()
                backlog = self._backlogs.setdefault(mesh, MeshBacklog(self.book.driver))
        return backlog

    def _forget_idle(self) -> None:
        """Forget meshes to which there is no link and nothing under way, once they are many.

        Nobody tells a proc of the end of meshes that it has called. One that is called again is
        found anew.
        """
        meshes = {*self._places, *self._backlogs}
        if len(meshes) < self._many:
            return
        for mesh in meshes:
            backlog, places = self._backlogs.get(mesh), self._places.get(mesh, {})
            if (backlog is None or backlog.is_idle) and all(map(_is_idle, places.values())):
                self.forget(mesh)
        self._many = max(MANY_MESHES, 2 * len({*self._places, *self._backlogs}))

    def call(
        self,
        frame: Frame,
        finish: Callable[[list[Any]], Any],
        what: str,
        over: Over = lambda: None,
        timeout: float | None = None,
    ) -> Future[Any]:
        """Send a CALL to its ranks.

        Args:
            finish: makes the future's value of the answers, in the order of the ranks.
            over: why nothing can be called there any more.
            timeout: seconds from now after which the future fails with CallTimeout.
        """
        direct = self._direct(frame)
        if direct is not None:
            future: Future[Any] = Future(what, direct.driver)
            with contextlib.suppress(LinkClosed):  # its rank is gone: the long way tells why
                self._limit(timeout, what, frame, lambda: frame.ranks, future.set_exception, future)
                sink = lambda value, error: settle(future, finish, [value], error)  # noqa: E731
                _send(direct, frame, sink, timeout)
                return future
        if timeout is not None:
            # Answers that wait for each other on the way count as missing.
            frame = replace(frame, flags=frame.flags | (SOON if timeout > _SHORT_S else STREAM))
        sending = self._divide(frame)
        call, future = self.book.open(frame.mesh, frame.ranks, finish, what, sending.placed)
        self._limit(
            timeout,
            what,
            frame,
            lambda: self.book.missing(call),
            lambda error: self.book.fail(call, error),
            future,
        )
        self._dispatch(frame, call, sending, over, timeout)
        return future

    def stream(
        self, frame: Frame, what: str, over: Over = lambda: None, timeout: float | None = None
    ) -> list[Future[Any]]:
        """Send a CALL to its ranks; futures of the answers in the order in which they come.

        An error is the answer of its rank alone. For the arguments see ``call``.
        """
        direct = self._direct(frame)
        if direct is not None:
            return [self.call(frame, lambda values: values[0], what, over, timeout)]
        frame = replace(frame, flags=frame.flags | STREAM)
        futures: list[Future[Any]] = [Future(what, self.book.driver) for _ in frame.ranks]
        sending = self._divide(frame)
        call = self.book.open_stream(frame.mesh, frame.ranks, in_order(futures), sending.placed)
        self._limit(
            timeout,
            what,
            frame,
            lambda: self.book.missing(call),
            lambda error: self.book.fail(call, error),
            futures[-1],
        )
        self._dispatch(frame, call, sending, over, timeout)
        return futures

    def _dispatch(
        self,
        frame: Frame,
        call: int,
        sending: Sending,
        over: Over = lambda: None,
        timeout: float | None = None,
    ) -> None:
        """Send a call or a cast that is in the book, divided as ``_divide`` says."""
        placed, apart = sending.placed, sending.apart
        try:
            # Open first, then look: who ends the mesh says so first and then fails what is open.
            error = over()
            if error is not None:
                self.book.fail(call, error, frame.ranks)
                return
            if len(frame.ranks) == 1 and placed:
                self._want_link(frame.mesh, frame.ranks[0], placed[frame.ranks[0]].place)
            for rank, link in list(apart.items()):
                if not self._send_apart(link, frame, call, rank, timeout):
                    del apart[rank]
                    self._depart(frame.mesh, rank, placed)
            if any(leg.place.broke for leg in placed.values()):
                frame = replace(frame, flags=frame.flags | BROKEN)
            if len(apart) < len(frame.ranks):
                self._send_by_hosts(_without(frame, apart, call), timeout)
        except SlurmmeshError as failed:  # a frame over the limits: it was not sent
            self.book.fail(call, failed, frame.ranks)
            raise
        except BaseException as failed:  # an interrupt: nobody but a later marker knows whether
            placed.clear()
            self.book.fail(call, failed, frame.ranks)
            raise
        finally:
            marked = self._left(sending)
        if marked is not None:
            self._follow(marker(frame.mesh, tuple(placed)), lambda _ranks: self._passed(marked))

    def _left(self, sending: Sending) -> Leg | None:
        """A message has been sent on. What a marker should follow if it went by the hosts though
        there is a direct link: an answer of before may be long in coming.

        Not while any is yet to be sent that is counted already: markers come behind all that is.
        """
        with self._lock:
            for link in sending.apart.values():
                link.promised.discard(sending)
            self._leaving.discard(sending)
            if any_left(self._leaving) or len(sending.placed) != 1:
                return None
            [leg] = sending.placed.values()
            return leg.place.mark() if leg.place.wants_marker else None

    def _passed(self, marked: Leg) -> None:
        """Such a marker has arrived."""
        with self._lock:
            marked.place.passed(marked)

    def _send_by_hosts(self, frame: Frame, timeout: float | None) -> None:
        """Waits while much that went to these ranks has not arrived.

        That is because a proc does not read, or its actor is busy. Not in a loop's thread, nor in
        a signal handler that came while this was at work; nor longer than ``timeout`` seconds.
        """
        mesh, actor, ranks = frame.mesh, frame.actor, frame.ranks
        backlog = self._backlog(mesh)
        mailboxes = backlog.mailboxes(actor)
        sizes = mailboxes.count(frame) if is_counted(frame) else {}
        if sizes and self._may_wait:
            backlog.wait_for(frame, timeout)
        self._by_hosts(frame)
        if sizes:
            self._mark(backlog, sizes, marker(mesh, ranks))
            self._mark(mailboxes, sizes, taken(mesh, actor, ranks))

    def send_to_port(self, frame: Frame) -> None:
        """Send a PORT frame to its rank. Waits while much that went to ports there is not read."""
        ports = self._backlog(frame.mesh).ports
        sizes = ports.count(frame)
        if sizes and self._may_wait:
            ports.wait(frame.ranks)
        self._by_hosts(frame)
        if sizes:
            self._mark(ports, sizes, read(frame.mesh, frame.ranks))

    @property
    def _may_wait(self) -> bool:
        return not (in_loop_thread() or self._lock._is_owned())  # type: ignore[attr-defined]

    def _mark(self, backlog: Backlog, sizes: dict[int, int], marker: Frame) -> None:
        """Send a marker of a backlog."""
        backlog.mark(sizes)
        left = sizes.copy()
        try:
            self._follow(marker, functools.partial(backlog.arrived, left))
        except BaseException:
            backlog.arrived(left, list(left))
            raise

    def _follow(self, marker: Frame, arrived: Callable[[list[int]], Any]) -> None:
        """Send a marker by the hosts; ``arrived`` is told where it is, or never will be."""
        call = self.book.open_marker(marker.mesh, marker.ranks, arrived)
        try:
            self._by_hosts(replace(marker, call=call))
        except BaseException:  # it may not be on its way
            self.book.drop(call)
            raise

    def _limit(
        self,
        timeout: float | None,
        what: str,
        frame: Frame,
        missing: Callable[[], Sequence[int]],
        fail: Callable[[BaseException], Any],
        last: Future[Any],
    ) -> None:
        """Fail a call in ``timeout`` seconds unless its last future is done by then."""
        if timeout is None:
            return
        deaths = functools.partial(self.deaths, frame.mesh)
        self._deadlines.limit(last, timeout, what, len(frame.ranks), missing, fail, deaths)

    def cast(self, frame: Frame) -> None:
        """Send a CAST to its ranks."""
        direct = self._direct(frame)
        if direct is not None:
            with contextlib.suppress(LinkClosed):
                _send(direct, frame, None)
                return
        sending = self._divide(frame)
        ranks = [*sending.placed, *sending.apart]
        call = self.book.open_cast(frame.mesh, ranks, sending.placed) if ranks else 0
        self._dispatch(frame, call, sending)

    def connected(
        self,
        mesh: int,
        rank: int,
        incarnation: int,
        sock: socket.socket,
        authenticate: Callable[[socket.socket], str] = same_user,
    ) -> None:
        """Take our end of a new direct link."""
        with self._lock:
            place = self._places.get(mesh, {}).get(rank)
            # Forgotten since it was asked for: nobody knows what is under way by the hosts.
            if place is None or place.link is not None:
                sock.close()
                return
            self._count += 1
            up = functools.partial(self._up, place)
            down = functools.partial(self._down, place, mesh, rank, incarnation)
            place.link = DirectLink(self.driver, sock, authenticate, on_down=down, on_up=up)
            place.link.target = place
            self.driver.reactor.call_soon(place.link.start)

    def lost(self, mesh: int, rank: int, error: BaseException, but: Container[int] = ()) -> None:
        """A rank is gone: what it said before still counts, other calls to it fail.

        Args:
            but: calls by the hosts of which the hosts will tell.
        """
        with self._lock:
            place = self._places.get(mesh, {}).get(rank)
            link = place.disconnect() if place is not None else None
        self.book.fail_ranks(mesh, (rank,), error, but)
        self.explain(mesh, rank, error)
        if link is None:
            return

        def end() -> None:
            link.drain()
            link.fail_all(error)
            link.close()

        self.driver.reactor.call_soon(end)

    def forget(self, mesh: int) -> None:
        """A mesh is over, and gone: nothing more is sent there."""
        with self._lock:
            self._places.pop(mesh, None)
            self._backlogs.pop(mesh, None)

    def explain(self, mesh: int, rank: int, error: BaseException) -> None:
        """Why links to a rank broke: calls that they owe answers to fail."""
        with self._lock:
            links = self._broken.pop((mesh, rank), ())
        for link in links:
            self.driver.reactor.call_soon(link.fail_all, error)

    def _direct(self, frame: Frame) -> DirectLink | None:
        return self.place(frame.mesh, frame.ranks[0]).direct if len(frame.ranks) == 1 else None

    def _divide(self, frame: Frame) -> Sending:
        """Before a message goes by the hosts: where it goes, and where it must not go."""
        sending = Sending()
        ranks = frame.ranks
        with self._lock:
            self._leaving.add(sending)
            if len(ranks) == 1:
                self.place(frame.mesh, ranks[0])  # it may have been forgotten since it was found
            known = self._places.get(frame.mesh, {})
            if len(ranks) > len(known):
                wanted = set(ranks)
                ranks = [rank for rank in known if rank in wanted]
            for rank in ranks:
                place = known.get(rank)
                if place is None:
                    continue
                if (link := place.promise(sending)) is not None:
                    sending.apart[rank] = link
                else:
                    sending.placed[rank] = place.depart()
        return sending

    def _depart(self, mesh: int, rank: int, placed: dict[int, Leg]) -> None:
        """To one rank more a message goes by the hosts, because its link has just broken."""
        with self._lock:
            place = self.place(mesh, rank)
            place.broke = True
            placed[rank] = place.depart()

    def _want_link(self, mesh: int, rank: int, place: Place) -> None:
        """Ask for a direct link to a rank, from time to time, unless there are too many.

        One that is there already is not asked for again, though it may not be used yet.
        """
        with self._lock:
            now = self.driver.reactor.clock()
            if place.link is not None or now < place.ask_at or self._count >= MAX_LINKS:
                return
            place.ask_at = now + _ASK_AGAIN_S
        if not self._ask(mesh, rank):
            place.ask_at = 0.0

    def _send_apart(
        self, link: DirectLink, frame: Frame, call: int, rank: int, timeout: float | None
    ) -> bool:
        """One rank's part of a message goes over its direct link; false if that is broken."""

        def sink(value: Any, error: BaseException | None) -> None:
            if error is None:
                self.book.answer_ranks(call, (rank,), value)
            else:
                self.book.fail(call, error, (rank,))

        is_cast = frame.kind is Kind.CAST
        try:
            _send(link, frame, None if is_cast else sink, timeout, promised=True)
        except LinkClosed:
            return False
        if is_cast:
            self.book.answer_ranks(call, (rank,), None)
        return True

    def _up(self, place: Place, link: Link) -> None:
        """A direct link may be used."""
        with self._lock:
            if place.link is link:
                place.connect(place.link)

    def _down(
        self, place: Place, mesh: int, rank: int, incarnation: int, link: DirectLink, reason: str
    ) -> None:
        """A direct link is closed. If its rank died, the news of it says how, and comes soon."""
        with self._lock:
            self._count -= 1
            if place.link is link:
                place.disconnect()
                if not link.peer:
                    place.ask_at = self.driver.reactor.clock() + _UNREACHABLE_S
            if link.is_quiet:
                return
            place.broke = True
            self._broken.setdefault((mesh, rank), []).append(link)
        error = SupervisionError(f"the link to rank {rank} broke: {reason}")
        self.driver.reactor.call_later(_NEWS_S, lambda: self._no_news(mesh, rank, link, error))
        self.on_broken(mesh, rank, incarnation)

    def _no_news(self, mesh: int, rank: int, link: DirectLink, error: SupervisionError) -> None:
        with self._lock:
            links = [each for each in self._broken.pop((mesh, rank), ()) if each is not link]
            if links:
                self._broken[mesh, rank] = links
        link.fail_all(error)


def _send(
    link: DirectLink,
    frame: Frame,
    sink: Sink | None,
    timeout: float | None = None,
    promised: bool = False,
) -> None:
    """Send a message over a direct link. Raises LinkClosed."""
    frame = replace(frame, ranks=())
    link.wait_for_room(frame, link.send_message(frame, sink, promised))
    link.sent(frame, timeout)


def _is_idle(place: Place) -> bool:
    return place.link is None and not place.under_way


def _without(frame: Frame, apart: dict[int, DirectLink], call: int) -> Frame:
    ranks: Sequence[int] = frame.ranks
    if apart:
        ranks = tuple(rank for rank in ranks if rank not in apart)
    return replace(frame, call=call, ranks=ranks)
