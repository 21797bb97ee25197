"""Channels within one process: who gets which message, and that none is lost or kept."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import pickle
import threading
import weakref
from collections import deque
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from slurmmesh.actors import Channel, Future, Port, PortReceiver
from slurmmesh.actors.context import ActorInstance, context, enter_context
from slurmmesh.actors.ports import PORTS
from slurmmesh.actors.receipts import Arrival, Receipts
from slurmmesh.errors import ActorError, CallTimeout, SupervisionError, UsageError
from slurmmesh.shape import Extent

LOADED: list[str] = []


class _TellsWhenLoaded:
    def __reduce__(self) -> Any:
        return LOADED.append, ("loaded",)


class _RaisesWhenLoaded:
    def __init__(self, error: str) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        return exec, (f"raise {self.error}",)


def test_what_is_sent_is_received_in_order():
    port, receiver = Channel.open()
    for value in range(100):
        port.send(value)
    assert [receiver.recv().get(0) for _ in range(100)] == list(range(100))


def test_futures_asked_for_first_get_the_first_messages():
    port, receiver = Channel.open()
    futures = [receiver.recv() for _ in range(3)]
    for value in "abc":
        port.send(value)
    assert [future.get(0) for future in reversed(futures)] == ["c", "b", "a"]
    assert [future.get(0) for future in futures] == ["a", "b", "c"]  # as often as one likes


def test_a_recv_that_timed_out_takes_no_message():
    port, receiver = Channel.open()
    kept = receiver.recv()
    with pytest.raises(CallTimeout) as caught:
        kept.get(0)
    assert isinstance(receiver.recv().exception(0), CallTimeout)
    port.send(1)
    port.send(2)
    assert receiver.recv().get(0) == 1
    assert kept.get(0) == 2  # it is asked again
    assert caught.value.__traceback__ is not None  # kept its future alive all the time


def test_a_recv_that_was_dropped_takes_no_message():
    port, receiver = Channel.open()
    receiver.recv()
    port.send(1)
    receiver.recv()  # has the message, and nobody reads it
    assert receiver.recv().get(0) == 1


def test_a_cancelled_task_takes_no_message():
    port, receiver = Channel.open()

    async def cancelled_while_it_awaits(recv: Future[Any], send: Any = None) -> None:
        task = asyncio.create_task(_await(recv))
        await asyncio.sleep(0)
        if send is not None:
            port.send(send)  # the task has it, but does not run any more
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def run() -> list[int]:
        kept = receiver.recv()
        await cancelled_while_it_awaits(kept)
        await cancelled_while_it_awaits(receiver.recv())
        await cancelled_while_it_awaits(receiver.recv(), send=1)
        await asyncio.sleep(0)  # until now the loop keeps the task that was cancelled
        port.send(2)
        return [await asyncio.wait_for(recv, 60) for recv in (receiver.recv(), kept)]

    assert asyncio.run(run()) == [1, 2]


async def _await(future: Future[Any]) -> Any:
    return await future


def test_a_callback_waits_for_its_message_though_nobody_has_the_future():
    port, receiver = Channel.open()
    seen: list[int] = []
    receiver.recv().add_done_callback(lambda future: seen.append(future.get()))
    gc.collect()
    port.send(5)
    assert seen == [5]
    port.send(6)
    assert receiver.recv().get(0) == 6


def test_a_message_wakes_a_thread_and_a_task_that_wait():
    port, receiver = Channel.open()
    got: list[int] = []
    thread = threading.Thread(target=lambda: got.append(receiver.recv().get(60)))
    thread.start()
    port.send(1)
    thread.join()

    async def run() -> int:
        task = asyncio.create_task(_await(receiver.recv()))
        await asyncio.sleep(0)
        other = threading.Thread(target=port.send, args=(2,))
        other.start()
        value = await task
        other.join()
        return value

    assert [*got, asyncio.run(run())] == [1, 2]


def test_threads_that_give_up_all_the_time_lose_no_message():
    port, receiver = Channel.open()
    total, got = 2000, []

    def read() -> None:
        while True:
            with contextlib.suppress(CallTimeout):
                value = receiver.recv().get(0.0001)
                if value is None:
                    return
                got.append(value)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for thread in readers:
        thread.start()
    for value in range(1, total + 1):
        port.send(value)
    for _ in readers:
        port.send(None)
    for thread in readers:
        thread.join()
    assert sorted(got) == list(range(1, total + 1))


class Matching(RuleBasedStateMachine):
    """Against a model: a message goes to the oldest wanted future, none is lost or read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.receipts = Receipts(False, lambda message: message.value)
        self.sent = 0
        self.read: list[int] = []
        self.futures: dict[int, Any] = {}
        self.asked = 0
        # The model: messages nobody has, who is wanted, who has which message and has read it.
        self.unread: deque[int] = deque()
        self.wanted: set[int] = set()
        self.has: dict[int, int] = {}
        self.was_read: set[int] = set()

    def match(self) -> None:
        while self.unread and self.wanted:
            oldest = min(self.wanted)
            self.wanted.remove(oldest)
            self.has[oldest] = self.unread.popleft()

    @rule()
    def put(self) -> None:
        self.receipts.put(Arrival(self.sent, None, False))
        self.unread.append(self.sent)
        self.sent += 1
        self.match()

    @rule()
    def recv(self) -> None:
        self.futures[self.asked] = self.receipts.next(None)
        self.wanted.add(self.asked)
        self.asked += 1
        self.match()

    @precondition(lambda self: self.futures)
    @rule(data=st.data())
    def get(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.futures)))
        if number not in self.has:
            self.wanted.add(number)
            self.match()
        if number in self.has:
            assert self.futures[number].get(0) == self.has[number]
            self.was_read.add(number)
        else:
            with pytest.raises(CallTimeout):
                self.futures[number].get(0)
            self.wanted.remove(number)

    @precondition(lambda self: self.futures)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.futures)))
        del self.futures[number]
        self.wanted.discard(number)
        if number in self.has:
            value = self.has.pop(number)
            if number in self.was_read:
                self.read.append(value)
            else:
                self.unread.appendleft(value)
                self.match()

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        everything = [*self.read, *self.unread, *self.has.values()]
        assert sorted(everything) == list(range(self.sent))
        for number, future in self.futures.items():
            assert future.done() == (number in self.has)


TestMatching = Matching.TestCase
TestMatching.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_once_port_takes_one_message_and_gives_it_to_one_recv():
    port, receiver = Channel.open(once=True)
    twin = pickle.loads(pickle.dumps(port))
    future = receiver.recv()
    with pytest.raises(UsageError, match="one recv"):
        receiver.recv()
    assert isinstance(future.exception(0), CallTimeout)
    again = receiver.recv()  # the first is not wanted any more
    port.send(1)
    for used in (port, pickle.loads(pickle.dumps(port))):
        with pytest.raises(UsageError, match="takes one message"):
            used.send(2)
    with pytest.raises(UsageError, match="takes one message"):
        port.exception(ValueError())
    twin.send(3)  # a copy cannot know; the receiver does
    assert again.get(0) == 1
    with pytest.raises(UsageError, match="one recv"):
        receiver.recv()


def test_a_value_that_cannot_be_sent_does_not_use_up_a_once_port():
    port, receiver = Channel.open(once=True)
    with pytest.raises(UsageError, match="cannot be sent"):
        port.send(threading.Lock())
    port.send(1)
    assert receiver.recv().get(0) == 1


def test_what_arrives_is_a_copy():
    port, receiver = Channel.open()
    array, items = np.zeros(4), [1]
    port.send((array, items))
    array[:] = 1
    items.append(2)
    got_array, got_items = receiver.recv().get(0)
    assert not got_array.any()
    assert got_items == [1]
    got_array[0] = 3  # and its reader's own


def test_an_error_is_raised_as_it_is():
    port, receiver = Channel.open()
    port.exception(KeyError("k"))
    with pytest.raises(KeyError, match="k"):
        receiver.recv().get(0)
    error = RuntimeError("holds a lock")
    error.lock = threading.Lock()  # type: ignore[attr-defined]
    port.exception(error)
    with pytest.raises(ActorError, match="holds a lock"):
        receiver.recv().get(0)
    port.exception(CallTimeout("of somebody else"))
    future = receiver.recv()
    assert isinstance(future.exception(0), CallTimeout)
    with pytest.raises(CallTimeout, match="of somebody else"):
        future.get(0)
    port.send(1)
    assert receiver.recv().get(0) == 1
    with pytest.raises(TypeError, match="takes an exception"):
        port.exception("no exception")  # type: ignore[arg-type]


@pytest.mark.parametrize("error", ["ValueError(3)", "SystemExit(3)"])
def test_a_message_that_cannot_be_loaded_is_an_error_of_its_recv_alone(error):
    port, receiver = Channel.open()
    port.send(_RaisesWhenLoaded(error))
    port.send(1)
    assert type(receiver.recv().exception(0)) in (ValueError, RuntimeError)
    assert receiver.recv().get(0) == 1


def test_ports_are_values():
    port, receiver = Channel.open()
    other, _ = Channel.open()
    twin = pickle.loads(pickle.dumps(port))
    assert twin == port
    assert len({port, twin, other}) == 2
    assert port != "port"
    assert "the controller" in repr(port)
    twin.send(1)
    assert receiver.recv().get(0) == 1
    with pytest.raises(TypeError, match="send its Port"):
        pickle.dumps(receiver)


def test_a_port_can_be_sent_through_a_port():
    port, receiver = Channel.open()
    reply, answers = Channel.open()
    port.send(reply)
    receiver.recv().get(0).send("hello")
    assert answers.recv().get(0) == "hello"


def test_a_receiver_that_was_dropped_leaves_nothing_and_messages_to_it_are_not_loaded():
    gc.collect()
    before = len(PORTS)
    port, receiver = Channel.open()
    assert len(PORTS) == before + 1
    pending = receiver.recv()
    gone = weakref.ref(receiver)
    del receiver
    port.send(1)
    assert pending.get(0) == 1  # the future keeps the receiver
    del pending
    gc.collect()
    assert gone() is None
    assert len(PORTS) == before
    LOADED.clear()
    port.send(_TellsWhenLoaded())
    assert LOADED == []


def test_a_reader_that_polls_leaves_nothing():
    _, receiver = Channel.open()
    for _ in range(1000):
        receiver.recv().exception(0)
        receiver.recv()
    receipts = receiver._receipts
    assert not receipts._waiting
    assert not receipts._wanted


def test_ranks_are_those_of_the_endpoints_that_sent():
    port, receiver = Channel.open_ranked()
    port.send("from outside")
    outside = context()
    point = Extent.of({"gpus": 4}).point(3)
    sender = ActorInstance("sender", point)
    enter_context(replace(outside, actor_instance=sender, message_rank=point))
    try:
        port.send("from rank 3")
        port.exception(ValueError("from rank 3"))
    finally:
        enter_context(outside)
    assert receiver.recv().get(0) == (None, "from outside")
    assert receiver.recv().get(0) == (3, "from rank 3")
    assert isinstance(receiver.recv().exception(0), ValueError)


def test_a_fork_cannot_receive():
    _, receiver = Channel.open()
    pid = os.fork()
    if pid == 0:
        try:
            receiver.recv()
        except SupervisionError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_the_public_names():
    assert Port.__name__ == "Port"
    assert isinstance(Channel.open()[1], PortReceiver)
