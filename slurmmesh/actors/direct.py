"""Direct links: from a caller's process straight to one proc, past the host agents.

A place is where one rank of a mesh is found. Messages to it go over its direct link when there
is one, and by the hosts otherwise; never over both at a time, so that they keep their order.
"""

from __future__ import annotations

import pickle
import socket
import threading
import weakref
from collections.abc import Callable
from typing import Any

from slurmmesh.actors.backlog import Mailboxes, is_counted, size_of, taken
from slurmmesh.actors.failure import Failure
from slurmmesh.actors.future import Future
from slurmmesh.errors import LinkClosed, SupervisionError
from slurmmesh.wire.batches import BatchLink
from slurmmesh.wire.codec import loads
from slurmmesh.wire.driver import Driver
from slurmmesh.wire.frames import Frame, Kind
from slurmmesh.wire.links import Link
from slurmmesh.wire.reactor import in_loop_thread
from slurmmesh.wire.sharing import Placed

_PLAIN = 1 << 10
"""About so many bytes a plain message takes in a mailbox."""

_AGAIN = 64
"""So many messages go by the hosts before there is another marker though one has not arrived."""

Sink = Callable[[Any, BaseException | None], Any]
"""Takes a value, or an error."""


class DirectLink(BatchLink):
    """The caller's end. Knows which calls are open and settles them as answers come.

    Calls are numbered in the order they are sent; a cast has its number negative. The proc
    ignores what it has seen already, so a message may be sent twice without harm.

    Args:
        driver: of the loop it belongs to.
        authenticate: see ``Link``.
        on_down: told once when it is closed, with the reason; open calls stay open until
            ``fail_all``, because another may know better why.

    Attributes:
        target: where it leads to, if messages may go there by the hosts, too.
        promised: messages that are being sent and go this way, whatever comes between.
    """

    def __init__(
        self,
        driver: Driver,
        sock: socket.socket,
        authenticate: Callable[[socket.socket], str],
        on_down: Callable[[DirectLink, str], Any],
        on_up: Callable[[Link], Any] = lambda link: None,
    ) -> None:
        super().__init__(
            driver.reactor,
            sock,
            authenticate=authenticate,
            on_open=on_up,
            on_frame=self._answered,
            on_batch=self._all_answered,
            on_close=lambda _link, reason: on_down(self, reason),
            driver=driver,
        )
        self.driver = driver
        self._open: dict[int, Future[Any] | Sink] = {}
        self._number = 0
        self._last_cast = 0
        self._last_answer = 0
        self._mailboxes = Mailboxes(driver)
        self.target: Place | None = None
        self.promised: weakref.WeakSet[Sending] = weakref.WeakSet()

    @property
    def is_quiet(self) -> bool:
        """Whether all that was sent, or is promised to be, is known to have arrived."""
        if self._open or self._last_cast > self._last_answer:
            return False
        return not any_left(self.promised)

    def _look_again(self) -> None:
        """Raises LinkClosed if this is not the way to its place any more.

        Who sends looks once the link is not quiet any more, who sends by the hosts looks whether
        it is once it is not the way: one of the two sees the other, without a lock of both.
        """
        if self.target is not None and self.target.direct is not self:
            raise LinkClosed("something is under way by the hosts")

    def call_plain(
        self, actor: int, method: str, args: tuple[Any, ...], where: Any, future: Future[Any]
    ) -> None:
        """Call with plain arguments only (``wire/batches.py``). Raises LinkClosed.

        Waits while the proc does not read, see ``make_room``, and while the actor does not take
        what it has; so does ``cast_plain``.
        """
        with self._lock:
            self._number = number = self._number + 1
            self._open[number] = future
            call = (number, actor, method, args, where)
            try:
                self._look_again()
                self.add(Kind.CALLS, call if future.asked is None else (*call, future.asked.mark))
            except BaseException:
                self._open.pop(number, None)
                raise
        if self._out.queue and not self._batch:  # is_full, in fewer steps
            self.make_room()
        if size := self._mailboxes.count_one(actor, _PLAIN):
            self._mark(actor, size)

    def cast_plain(self, actor: int, method: str, args: tuple[Any, ...], where: Any) -> None:
        """Cast with plain arguments only. Raises LinkClosed."""
        with self._lock:
            self._number = number = self._number + 1
            self._announce_cast(number)
            self.add(Kind.CALLS, (-number, actor, method, args, where))
        if self._out.queue and not self._batch:  # is_full, in fewer steps
            self.make_room()
        if size := self._mailboxes.count_one(actor, _PLAIN):
            self._mark(actor, size)

    def _announce_cast(self, number: int) -> None:
        before, self._last_cast = self._last_cast, number
        try:
            self._look_again()
        except LinkClosed:
            self._last_cast = before
            raise

    def sent(self, frame: Frame, timeout: float | None = None) -> None:
        """A message was sent: wait while its actor does not take what it has, at most so long."""
        if is_counted(frame):
            size = self._mailboxes.count_one(frame.actor, size_of(frame))
            if size:
                self._mark(frame.actor, size, timeout)

    def _mark(self, actor: int, size: int, timeout: float | None = None) -> None:
        """Send a marker, and wait as ``make_room`` does while too much before such is not taken."""
        sizes = {actor: size}
        self._mailboxes.mark(sizes)

        def arrived(_value: Any = None, _error: BaseException | None = None) -> None:
            self._mailboxes.arrived(sizes, (actor,))

        try:
            self.send_message(taken(0, actor, ()), arrived, promised=True)
        except LinkClosed:
            arrived()
        if not (in_loop_thread() or self._lock._is_owned()):  # type: ignore[attr-defined]
            self._mailboxes.wait((actor,), timeout)

    def send_message(self, frame: Frame, sink: Sink | None, promised: bool = False) -> int:
        """Send a CALL with the sink of its answer, or a CAST, without waiting; see ``Link.post``.

        Args:
            promised: whatever the way to its place is now.

        Raises LinkClosed, FrameError: then the sink gets nothing.
        """
        placed = self.place(frame)
        if self._posting == threading.get_ident():
            # In a signal handler: what is sent meanwhile has smaller numbers, see Link.post.
            self._reactor.call_soon(self._send_late, frame, placed, sink)
            return 0
        return self._send_placed(frame, placed, sink, promised)

    def _send_placed(
        self, frame: Frame, placed: Placed | None, sink: Sink | None, promised: bool
    ) -> int:
        with self._lock:
            self._number = frame.call = number = self._number + 1
            if placed is not None:
                placed.frame.call = number
            if sink is None:
                if promised:
                    self._last_cast = number
                else:
                    self._announce_cast(number)
                return self.post_placed(frame, placed)
            self._open[number] = sink
            try:
                if not promised:
                    self._look_again()
                return self.post_placed(frame, placed)
            except BaseException:
                self._open.pop(number, None)
                raise

    def _send_late(self, frame: Frame, placed: Placed | None, sink: Sink | None) -> None:
        try:
            self._send_placed(frame, placed, sink, promised=True)
        except LinkClosed as error:
            if sink is not None:
                sink(None, SupervisionError(str(error)))

    def fail_all(self, error: BaseException) -> None:
        """End every open call with an error."""
        while self._open:
            try:
                _, waiting = self._open.popitem()
            except KeyError:
                return
            if isinstance(waiting, Future):
                waiting.set_exception(error)
            else:
                waiting(None, error)

    def _all_answered(self, _link: DirectLink, kind: Kind, body: bytes) -> None:
        if kind is not Kind.RESULTS:
            return
        opened = self._open
        number = 0
        for number, value in pickle.loads(body):
            waiting = opened.get(number)
            if waiting is None:
                continue
            if type(waiting) is Future:
                waiting.set_result(value)
            else:
                waiting(value, None)  # type: ignore[operator]
            opened.pop(number, None)
        if number > self._last_answer:
            self._last_answer = number

    def _answered(self, _link: Link, frame: Frame) -> None:
        # May come twice, see Link: what is settled already stays as it is.
        waiting: Future[Any] | Sink | None
        if frame.kind is Kind.RESULTS:
            self._all_answered(self, frame.kind, bytes(frame.body))
        elif frame.kind in (Kind.RESULT, Kind.ERROR):
            waiting = self._open.get(frame.call)
            if waiting is not None:
                value, error = answer_of(frame)
                if not isinstance(waiting, Future):
                    waiting(value, error)
                elif error is not None:
                    waiting.set_exception(error)
                else:
                    waiting.set_result(value)
                self._open.pop(frame.call, None)
            self._last_answer = max(self._last_answer, frame.call)


def answer_of(frame: Frame) -> tuple[Any, BaseException | None]:
    """The value or the error of a RESULT or ERROR frame."""
    # Loading runs code of the user's classes, which may raise anything.
    try:
        value = loads(frame.body, frame.buffers)
        if frame.kind is not Kind.ERROR:
            return value, None
        return None, value.rebuild() if isinstance(value, Failure) else value
    except (Exception, SystemExit) as error:  # others are a signal handler's
        return None, not_loaded(error)


def not_loaded(error: BaseException) -> Exception:
    """An answer that came but cannot be used here; only an Exception may reach the caller."""
    if isinstance(error, Exception):
        return error
    return RuntimeError(f"an answer cannot be loaded: {type(error).__name__}: {error}")


class Leg:
    """Messages that go to a place by the hosts, up to the next marker behind them.

    Attributes:
        place: where they go.
        sent: how many there are.
        under_way: how many of them are not known to have arrived.
    """

    __slots__ = ("place", "sent", "under_way")

    def __init__(self, place: Place) -> None:
        self.place = place
        self.sent = 0
        self.under_way = 0

    def arrive(self) -> None:
        """One is known to have arrived, or never will."""
        self.under_way -= 1
        if not self.under_way:
            self.place.settle()


class Place:
    """Where one rank is found, as one caller knows it.

    Attributes:
        direct: the link to use now; None: by the hosts.
        link: the direct link there is, whether it may be used now or not.
        is_up: whether its peer is known.
        ask_at: time of the loop's clock before which no direct link is asked for.
        leg: of what goes by the hosts now.
        marked: the legs before, while the markers behind them have not arrived.
        broke: whether a direct link has broken of which not all may have been read yet.
    """

    __slots__ = ("ask_at", "broke", "direct", "is_up", "leg", "link", "marked")

    def __init__(self) -> None:
        self.direct: DirectLink | None = None
        self.link: DirectLink | None = None
        self.is_up = False
        self.ask_at = 0.0
        self.leg = Leg(self)
        self.marked: list[Leg] = []
        self.broke = False

    @property
    def under_way(self) -> int:
        """How many messages by the hosts are not known to have arrived."""
        return self.leg.under_way + sum(leg.under_way for leg in self.marked)

    def connect(self, link: DirectLink) -> None:
        """There is a direct link now."""
        self.link = link
        self.is_up = True
        if not self.under_way:
            self.direct = link

    def promise(self, message: Sending) -> DirectLink | None:
        """Have a message go over the direct link if something may not have arrived there.

        Until ``message`` is no more. Else it is to go by the hosts: so it is while anything does.
        """
        link = self.link
        if link is None or self.under_way:
            return None
        before, self.direct = self.direct, None
        if link.is_quiet:
            return None
        self.direct = before
        link.promised.add(message)
        return link

    def disconnect(self) -> DirectLink | None:
        """The direct link, if there was one, is of no use any more."""
        link, self.link, self.direct, self.ask_at = self.link, None, None, 0.0
        self.is_up = False
        return link

    def depart(self) -> Leg:
        """A message goes by the hosts; the leg is to be told when it has arrived."""
        self.leg.sent += 1
        self.leg.under_way += 1
        self.direct = None
        return self.leg

    @property
    def wants_marker(self) -> bool:
        """Whether a marker should follow what goes by the hosts though there is a direct link.

        What was sent before may be long in being answered. A marker may be lost, where a signal
        handler raises; then there is another after a while.
        """
        if not self.is_up or self.under_way < 2:
            return False
        return not self.marked or self.leg.sent >= _AGAIN

    def mark(self) -> Leg:
        """A marker is about to follow all that went by the hosts."""
        marked = self.leg
        self.marked.append(marked)
        self.leg = Leg(self)
        return marked

    def passed(self, marked: Leg) -> None:
        """That marker has arrived, and so has all before it; it may be told twice."""
        if marked in self.marked:
            del self.marked[: self.marked.index(marked) + 1]
            self.settle()

    def settle(self) -> None:
        """Use the direct link if nothing is under way by the hosts."""
        if not self.under_way:
            self.broke = False
            if self.is_up:
                self.direct = self.link


class Sending:
    """A message that is counted and yet to be sent.

    It is known by weak references only: where a signal handler raises, it is gone.

    Attributes:
        placed: the legs on which it departs, which are to be told when it arrives.
        apart: the ranks that must get it over their direct link, because something on there may
            not have arrived yet.
    """

    __slots__ = ("__weakref__", "apart", "placed")

    def __init__(self) -> None:
        self.placed: dict[int, Leg] = {}
        self.apart: dict[int, DirectLink] = {}


def any_left(sendings: weakref.WeakSet[Sending]) -> bool:
    """Whether one of these is yet to be sent.

    The set may count such as are gone: a signal handler may raise as it is told that they are.
    """
    return bool(sendings) and next(iter(sendings), None) is not None
