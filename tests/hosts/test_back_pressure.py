"""Procs that do not read: who sends to them waits, no memory fills up, others go on."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import slurmmesh as sm
from slurmmesh.actors import backlog
from slurmmesh.errors import CallTimeout, ProcDied
from slurmmesh.wire import batches, links, sharing

ROOM = 1 << 20
LARGE = bytes(100_000)
"""Goes in a frame of its own."""
SMALL = 1000
"""Bytes of what goes many in one frame."""

pytestmark = pytest.mark.slow


def small(number: int) -> bytes:
    """Others in each message: what comes again in one frame takes no room there."""
    return number.to_bytes(4, "big") * (SMALL // 4)


def limit_room() -> None:
    """Of this process, so that little has to be sent until somebody waits."""
    batches.HIGH_WATER = backlog.HIGH_WATER = ROOM


def waits_in(thread: int | None, code: Any) -> bool:
    """Whether a thread of this process is in that function now."""
    frame = sys._current_frames().get(thread or 0)
    while frame is not None and frame.f_code is not code.__code__:
        frame = frame.f_back
    return frame is not None


def queued() -> int:
    """The most bytes that wait to be sent on one link of this process."""
    return max((link._out.end - link._out.sent for link in list(links._open_links)), default=0)


def waits_for_room(thread: int | None) -> bool:
    """Whether a thread of this process waits for a link, rather than just looks if it must."""
    return queued() > ROOM and waits_in(thread, batches.BatchLink.make_room)


def send_large(mesh: Any, ways: str, number: int) -> Any:
    """What goes by the hosts; returns what will have an answer of each rank."""
    if ways == "broadcasts":
        return mesh.tell.broadcast(number, LARGE)
    return mesh.hear.call(number, LARGE) if ways == "calls" else mesh.hear.stream(number, LARGE)


class Told(sm.Actor):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[int] = []

    @sm.endpoint
    def tell(self, number: int, payload: bytes = b"") -> bytes:
        self.told.append(number)
        return payload

    @sm.endpoint
    def hear(self, number: int, payload: bytes) -> int:
        self.told.append(number)
        return number

    @sm.endpoint
    def all(self) -> list[int]:
        return self.told

    @sm.endpoint
    def pid(self) -> int:
        return os.getpid()

    @sm.endpoint
    def wait_for(self, path: str) -> None:
        limit_room()
        with open(path):  # a pipe, which another opens
            pass


class Teller(sm.Actor):
    """Calls others and broadcasts to them."""

    def __init__(self) -> None:
        limit_room()
        self.answers: list[Any] = []

    @sm.endpoint
    def send(self, mesh: Any, ways: str, number: int) -> None:
        backlog.MAILBOX = ROOM
        self.answers = [send_large(mesh, ways, index) for index in range(number)]

    @sm.endpoint
    def call(self, one: Any, number: int) -> None:
        self.answers = [one.tell.call_one(index, small(index)) for index in range(number)]

    @sm.endpoint
    def send_to(self, port: Any, number: int, size: int) -> None:
        for index in range(number):
            port.send((index, bytes(size)))

    @sm.endpoint
    def hold(self, one: Any, path: str) -> None:
        """Until it has a direct link, and then have it wait there."""
        while one.tell._place is None or one.tell._place.direct is None:
            one.pid.call_one().get(60)
        one.wait_for.call_one(path)

    @sm.endpoint
    def count(self) -> int:
        return sum(len(answer.get(60)) == SMALL for answer in self.answers)

    @sm.endpoint
    def pid(self) -> int:
        return os.getpid()


class Listener(sm.Actor):
    """Has a port."""

    @sm.endpoint
    def open(self) -> sm.Port[Any]:
        port, self.receiver = sm.Channel.open()
        return port

    @sm.endpoint
    def hear(self, number: int) -> list[int]:
        return [self.receiver.recv().get(60)[0] for _ in range(number)]

    @sm.endpoint
    def pid(self) -> int:
        return os.getpid()


class Watcher(sm.Actor):
    """Beside another actor in its proc, in a thread of its own."""

    @sm.endpoint
    def waits_for_room(self) -> bool:
        return waits_for_room(threading.main_thread().ident)

    @sm.endpoint
    def waits_for_arrival(self) -> bool:
        return waits_in(threading.main_thread().ident, backlog.Backlog.wait)

    @sm.endpoint
    def queued(self) -> int:
        return queued()


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[sm.HostMesh]:
    monkeypatch.setattr(batches, "HIGH_WATER", ROOM)
    monkeypatch.setattr(backlog, "HIGH_WATER", ROOM)
    hosts = sm.local_hosts(1, tmp_path)
    yield hosts
    hosts.stop()


@pytest.fixture
def small_mailboxes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes by the hosts is counted by mailbox, and looked after each eighth of its room."""
    monkeypatch.setattr(backlog, "MAILBOX", ROOM)


@contextlib.contextmanager
def in_thread(work: Callable[[], Any]) -> Iterator[threading.Thread]:
    """Afterwards it has ended."""
    thread = threading.Thread(target=work)
    thread.start()
    yield thread
    thread.join(60)
    assert not thread.is_alive()


def resident(pid: int) -> int:
    [line] = [
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmRSS" in line
    ]
    return int(line.split()[1]) << 10


def agent_of(pid: int) -> int:
    """Procs are children of the agent's fork server, or of the agent."""
    text = Path(f"/proc/{pid}/stat").read_text()
    return int(text[text.rindex(")") + 2 :].split()[1])


@pytest.mark.parametrize("ways", ["calls", "broadcasts"])
def test_small_messages_to_a_proc_that_does_not_read_wait(hosts, wait_until, ways, stopped):
    one = hosts.spawn_procs(name="deaf").spawn("told", Told)
    other = hosts.spawn_procs(name="other").spawn("other", Told)
    pid = one.pid.call_one().get(60)
    wait_until(lambda: one.pid.call_one().get(60) and one.pid._place.direct is not None)
    number, sent, futures = 5000, [], []

    def send() -> None:
        for index in range(number):
            if ways == "calls":
                futures.append(one.tell.call_one(index, small(index)))
            else:
                one.tell.broadcast(index, small(index))
            sent.append(index)

    with in_thread(send) as thread, stopped(pid):
        wait_until(lambda: waits_for_room(thread.ident))
        assert queued() < ROOM + 100 * SMALL
        assert other.tell.call_one(1, small(1)).get(60) == small(1)
        assert len(sent) < number
    assert one.all.call_one().get(60) == list(range(number))
    assert [len(each.get(60)) for each in futures] == [SMALL] * len(futures)


@pytest.mark.parametrize("ways", ["calls", "streams", "broadcasts"])
@pytest.mark.parametrize("sender", ["controller", "proc"])
def test_messages_to_a_mesh_wait_for_the_rank_that_does_not_read(
    hosts, wait_until, sender, ways, stopped, small_mailboxes
):
    mesh = hosts.spawn_procs({"gpus": 4}, name="deaf").spawn("told", Told)
    procs = hosts.spawn_procs(name="other")
    teller = procs.spawn("teller", Teller)
    watcher = procs.spawn("watcher", Watcher)
    pids = mesh.pid.call().get(60).values()
    agent = agent_of(pids[1])
    teller.pid.call_one().get(60)
    number, sent = 400, []

    def send() -> None:
        if sender == "proc":
            teller.send.call_one(mesh, ways, number).get(60)
            return
        for index in range(number):
            sent.append(send_large(mesh, ways, index))

    with in_thread(send) as thread, stopped(pids[1]):
        before = resident(agent)
        if sender == "proc":
            wait_until(lambda: watcher.waits_for_arrival.call_one().get(60))
            assert watcher.queued.call_one().get(60) < 2 * ROOM
        else:
            wait_until(lambda: waits_in(thread.ident, backlog.Backlog.wait))
            assert ROOM < len(sent) * len(LARGE) < 2 * ROOM
            assert teller.pid.call_one().get(60)
        assert resident(agent) - before < 16 * ROOM < number * len(LARGE)
        assert mesh.slice(gpus=0).pid.call_one().get(60) == pids[0]
        others = mesh.slice(gpus=slice(2, 4))
        for index in range(number):
            answers = send_large(others, "calls", -index)
        assert answers.get(60).values() == [1 - number] * 2
    numbers = list(range(number))
    wait_until(lambda: mesh.slice(gpus=0).all.call_one().get(60) == numbers)
    told = mesh.all.call().get(60).values()
    assert told[1] == numbers
    assert [[each for each in one if each > 0] for one in told[2:]] == [numbers[1:]] * 2
    if ways == "calls" and sender == "controller":
        assert [each.get(60).values() for each in sent] == [[index] * 4 for index in numbers]


@pytest.mark.parametrize("ways", ["calls", "broadcasts"])
def test_messages_to_other_hosts_wait_for_the_rank_that_does_not_read(
    dial_hosts, tmp_path, wait_until, stopped, ways
):
    with dial_hosts(tmp_path / "job", 3) as job:
        deaf = job.hosts.slice(hosts=slice(0, 2)).spawn_procs({"gpus": 2}, name="deaf")
        mesh = deaf.spawn("told", Told)
        procs = job.hosts.slice(hosts=2).spawn_procs(name="other")
        teller, watcher = procs.spawn("teller", Teller), procs.spawn("watcher", Watcher)
        pids = mesh.pid.call().get(60).values()
        teller.pid.call_one().get(60)
        number = 400
        with stopped(pids[3]):
            before = [resident(agent.pid) for agent in job.agents]
            sent = teller.send.call_one(mesh, ways, number)
            wait_until(lambda: watcher.waits_for_arrival.call_one().get(60))
            for agent, size in zip(job.agents, before, strict=True):
                assert resident(agent.pid) - size < 16 * ROOM < number * len(LARGE)
            assert mesh.slice(hosts=0).pid.call().get(60).values() == pids[:2]
        sent.get(60)
        numbers = list(range(number))
        wait_until(lambda: mesh.all.call().get(60).values() == [numbers] * 4)


def test_messages_that_pass_the_controller_wait_for_the_rank_that_does_not_read(
    tmp_path, wait_until, stopped
):
    hosts = sm.local_hosts(2, tmp_path)  # they do not reach each other
    try:
        mesh = hosts.slice(hosts=0).spawn_procs({"gpus": 2}, name="deaf").spawn("told", Told)
        procs = hosts.slice(hosts=1).spawn_procs(name="other")
        teller, watcher = procs.spawn("teller", Teller), procs.spawn("watcher", Watcher)
        pids = mesh.pid.call().get(60).values()
        agents = [agent_of(pids[0]), agent_of(teller.pid.call_one().get(60)), os.getpid()]
        number = 400
        with stopped(pids[1]):
            before = [resident(pid) for pid in agents]
            sent = teller.send.call_one(mesh, "calls", number)
            wait_until(lambda: watcher.waits_for_arrival.call_one().get(60))
            for pid, size in zip(agents, before, strict=True):
                assert resident(pid) - size < 16 * ROOM < number * len(LARGE)
        sent.get(60)
        wait_until(lambda: mesh.all.call().get(60).values() == [list(range(number))] * 2)
    finally:
        hosts.stop()


@pytest.mark.parametrize("ways", ["calls", "broadcasts"])
def test_who_waits_for_a_rank_that_dies_goes_on(hosts, wait_until, ways, stopped, small_mailboxes):
    mesh = hosts.spawn_procs({"gpus": 2}, name="deaf").spawn("told", Told)
    pids = mesh.pid.call().get(60).values()
    ends = threading.Event()

    def send() -> None:
        with contextlib.suppress(ProcDied):
            while not ends.is_set():
                send_large(mesh, ways, 0)

    with in_thread(send) as thread, stopped(pids[1]):
        wait_until(lambda: waits_in(thread.ident, backlog.Backlog.wait))
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(ProcDied):
            mesh.pid.call().get(60)
        ends.set()


def test_a_deadline_ends_the_wait_for_a_rank_that_does_not_read(hosts, stopped, small_mailboxes):
    mesh = hosts.spawn_procs({"gpus": 2}, name="deaf").spawn("told", Told)
    pids = mesh.pid.call().get(60).values()
    calls = []

    def send() -> None:
        for index in range(3 * ROOM // len(LARGE)):
            calls.append(mesh.hear.options(timeout=0.05).call(index, LARGE))

    with stopped(pids[1]):
        with in_thread(send):
            pass
        errors = [each.exception(60) for each in calls]
        assert {type(error) for error in errors} == {CallTimeout}
    assert mesh.all.call().get(60).values() == [list(range(len(calls)))] * 2


def test_answers_to_a_proc_that_does_not_read_wait(hosts, wait_until, tmp_path, stopped):
    procs = hosts.spawn_procs(name="answering")
    one, watcher = procs.spawn("told", Told), procs.spawn("watcher", Watcher)
    teller = hosts.spawn_procs(name="deaf").spawn("teller", Teller)
    path, number = tmp_path / "pipe", 5000
    os.mkfifo(path)
    pid = teller.pid.call_one().get(60)
    teller.hold.call_one(one, str(path)).get(60)
    teller.call.call_one(one, number).get(60)
    with stopped(pid):
        with path.open("w"):
            pass
        wait_until(lambda: watcher.waits_for_room.call_one().get(60))
        assert watcher.queued.call_one().get(60) < ROOM + 100 * SMALL
    assert teller.count.call_one().get(60) == number
    assert one.all.call_one().get(60) == list(range(number))


class Keeper(sm.Actor):
    """Keeps the first byte of what it gets."""

    def __init__(self) -> None:
        self.kept: list[int] = []

    @sm.endpoint
    def keep(self, payload: Any) -> None:
        self.kept.append(memoryview(payload)[0])

    @sm.endpoint
    def all(self) -> tuple[int, list[int]]:
        return os.getpid(), self.kept


def test_a_callback_that_sends_much_to_a_proc_that_does_not_read_holds_up_nobody(
    hosts, wait_until, stopped
):
    one = hosts.spawn_procs(name="deaf").spawn("keeper", Keeper)
    other = hosts.spawn_procs(name="other").spawn("told", Told)
    dying = hosts.spawn_procs(name="dying")
    pid, _ = one.all.call_one().get(60)
    wait_until(lambda: one.all.call_one().get(60) and one.all._place.direct is not None)
    payload, number = bytearray(len(LARGE)), 60
    done = threading.Event()

    def tell(event: sm.ProcEvent) -> None:
        if event.kind == "exited":
            for index in range(number):
                payload[0] = index
                one.keep.broadcast(pickle.PickleBuffer(payload))
            done.set()

    dying.on_event(tell)
    dying.initialized.get(60)
    with stopped(pid):
        dying.send_signal(signal.SIGKILL)
        assert done.wait(60)
        assert other.all.call_one().get(60) == []
        late = hosts.spawn_procs(name="late")
        assert late.initialized.get(60)
    assert one.all.call_one().get(60) == (pid, list(range(number)))


@pytest.mark.parametrize("size", [len(LARGE), 4 * sharing.THRESHOLD])
def test_messages_for_a_port_wait_for_the_proc_that_does_not_read(hosts, wait_until, stopped, size):
    listener = hosts.spawn_procs(name="deaf").spawn("listener", Listener)
    procs = hosts.spawn_procs(name="other")
    teller, watcher = procs.spawn("teller", Teller), procs.spawn("watcher", Watcher)
    port, pid = listener.open.call_one().get(60), listener.pid.call_one().get(60)
    number, sent = 100 * ROOM // size, []

    def send() -> None:
        for index in range(number):
            port.send((number + index, bytes(size)))
            sent.append(index)

    with stopped(pid):
        before = resident(agent_of(pid))
        told = teller.send_to.call_one(port, number, size)
        wait_until(lambda: watcher.waits_for_arrival.call_one().get(60))
        with in_thread(send) as thread:
            wait_until(lambda: waits_in(thread.ident, backlog.Backlog.wait))
            assert len(sent) * size < 2 * ROOM + size
            assert resident(agent_of(pid)) - before < 16 * ROOM < number * size
            os.kill(pid, signal.SIGCONT)
    told.get(60)
    heard = listener.hear.call_one(2 * number).get(60)
    assert [each for each in heard if each < number] == list(range(number))
    assert [each for each in heard if each >= number] == list(range(number, 2 * number))


@pytest.mark.parametrize("lost", [False, True])
def test_messages_for_a_port_on_another_host_wait_all_the_way(
    dial_hosts, tmp_path, wait_until, stopped, lost
):
    with dial_hosts(tmp_path / "job", 2) as job:
        listener = job.hosts.slice(hosts=0).spawn_procs(name="deaf").spawn("listener", Listener)
        procs = job.hosts.slice(hosts=1).spawn_procs(name="other")
        teller, watcher = procs.spawn("teller", Teller), procs.spawn("watcher", Watcher)
        port, pid = listener.open.call_one().get(60), listener.pid.call_one().get(60)
        agents = [*(agent.pid for agent in job.agents), os.getpid()]
        number = 400
        with stopped(pid):
            before = [resident(pid) for pid in agents]
            told = teller.send_to.call_one(port, number, len(LARGE))
            wait_until(lambda: watcher.waits_for_arrival.call_one().get(60))
            for agent, size in zip(agents, before, strict=True):
                assert resident(agent) - size < 16 * ROOM < number * len(LARGE)
            if lost:
                os.kill(job.agents[0].pid, signal.SIGKILL)
                told.get(60)
        if not lost:
            told.get(60)
            assert listener.hear.call_one(number).get(60) == list(range(number))


def test_messages_for_a_port_of_a_proc_that_dies_hold_up_nobody(hosts, wait_until, stopped):
    listener = hosts.spawn_procs(name="deaf").spawn("listener", Listener)
    procs = hosts.spawn_procs(name="other")
    teller, watcher = procs.spawn("teller", Teller), procs.spawn("watcher", Watcher)
    port, pid = listener.open.call_one().get(60), listener.pid.call_one().get(60)
    with stopped(pid):
        told = teller.send_to.call_one(port, 400, len(LARGE))
        wait_until(lambda: watcher.waits_for_arrival.call_one().get(60))
        os.kill(pid, signal.SIGKILL)
        told.get(60)


def test_messages_for_a_port_wait_for_the_program_when_that_does_not_read(hosts, wait_until):
    procs = hosts.spawn_procs(name="other")
    teller, watcher = procs.spawn("teller", Teller), procs.spawn("watcher", Watcher)
    teller.pid.call_one().get(60)
    wait_until(lambda: watcher.queued.call_one().get(60) >= 0 and watcher.queued._place.direct)
    port, receiver = sm.Channel.open()
    number, busy = 400, threading.Event()
    hosts._runtime.controller._reactor.call_soon(busy.wait, 60)
    try:
        told = teller.send_to.call_one(port, number, len(LARGE))
        wait_until(lambda: watcher.waits_for_arrival.call_one().get(60))
    finally:
        busy.set()
    told.get(60)
    assert [receiver.recv().get(60)[0] for _ in range(number)] == list(range(number))
