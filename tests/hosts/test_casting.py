"""Requests by the hosts: the real routes and relays, over links in memory that may be cut.

The network is a double: FIFO queues whose heads arrive in any order, hosts that die, links that
break with any part of what is in them still arriving.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import defaultdict, deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import casting
from slurmmesh.errors import FrameError, LinkClosed
from slurmmesh.hosts.relay import MOMENT_S, Relay
from slurmmesh.hosts.routes import Routes
from slurmmesh.wire.frames import SOON, STREAM, Frame, Kind
from slurmmesh.wire.gather import unmerge

TOP = -1
REQUESTS = (Kind.CALL, Kind.CAST, Kind.CREATE)


class Pipe:
    """One direction of a link between two nodes."""

    def __init__(self, net: Net, source: int, target: int) -> None:
        self.net, self.source, self.target = net, source, target
        self.queue: deque[Frame | None] = deque()
        self.open = True

    def post(self, frame: Frame) -> None:
        if not self.open:
            raise LinkClosed("cut")
        self.queue.append(frame)


class Procs:
    """The procs of a host: they answer later, when the network gives them a turn."""

    def __init__(self, net: Net, host: int) -> None:
        self.net, self.host = net, host
        self.gone: set[int] = set()

    def deliver(self, frame: Frame, ranks: Any, sent: Any) -> list[int]:
        there = [rank for rank in ranks if rank not in self.gone]
        for rank in there:
            self.net.got[rank].append(frame.call)
            if frame.kind is not Kind.CAST:
                body = b"%d/%d" % (frame.call, rank)
                answer = Frame(Kind.RESULT, body, [body], frame.call, 1, 0, (rank,))
                self.net.working.append((rank, answer))
        self.net.written.append((self.host, sent, there))
        return [rank for rank in ranks if rank in self.gone]

    def refuse(self, frame: Frame, rank: int) -> Frame:
        return Frame(Kind.ERROR, b"dead", (), frame.call, frame.mesh, 0, (rank,))


class Net:
    """Hosts with relays, a sender at the top, and what happens between them."""

    def __init__(self, hosts: int, per_host: int, fan_out: int, chance: random.Random) -> None:
        self.chance = chance
        self.per_host = per_host
        self.alive = set(range(hosts))
        self.pipes: dict[tuple[int, int], Pipe] = {}
        self.cut_pairs: set[tuple[int, int]] = set()
        self.working: list[tuple[int, Frame]] = []
        self.written: list[tuple[int, Any, list[int]]] = []
        self.timers: list[Any] = []
        self.moments: list[Any] = []
        self.got: dict[int, list[int]] = defaultdict(list)
        self.answers: dict[int, list[Frame]] = defaultdict(list)
        self.handled_at_top = 0
        self.procs = [Procs(self, host) for host in range(hosts)]
        self.relays = [
            Relay(
                host,
                self.procs[host],
                self.locate,
                lambda other, host=host: self.pipe(host, other),
                self.call_later,
                fan_out,
            )
            for host in range(hosts)
        ]
        self.top = Routes(
            self.locate,
            lambda host: self.pipe(TOP, host),
            self.procs[0].refuse,
            self.answered,
            self.call_later,
            lambda: False,
            fan_out,
        )

    def locate(self, _mesh: int, ranks: Any) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for rank in ranks:
            found.setdefault(rank // self.per_host, []).append(rank)
        return found

    def call_later(self, delay: float, callback: Any) -> None:
        (self.moments if delay == MOMENT_S else self.timers).append(callback)

    def pipe(self, source: int, target: int) -> Pipe:
        pair = (source, target)
        dead = {source, target} - self.alive - {TOP}
        if dead or (min(pair), max(pair)) in self.cut_pairs:
            raise LinkClosed("no way")
        back = (target, source)
        old = [self.pipes[key] for key in (pair, back) if key in self.pipes]
        if any(not pipe.open and pipe.queue for pipe in old):
            raise LinkClosed("its end has not been noticed everywhere")
        if not old or not old[0].open:
            self.pipes[pair] = Pipe(self, source, target)
            self.pipes[back] = Pipe(self, target, source)
        return self.pipes[pair]

    def answered(self, frame: Frame) -> None:
        self.answers[frame.call].append(frame)

    # -- what may happen ----------------------------------------------------------------------

    def cut(self, one: int, other: int) -> None:
        """Of what is on its way some may still arrive; then both sides learn of it."""
        for pair in ((one, other), (other, one)):
            if (pipe := self.pipes.get(pair)) and pipe.open:
                pipe.open = False
                arriving = self.chance.randint(0, len(pipe.queue))
                pipe.queue = deque([*itertools.islice(pipe.queue, arriving), None])

    def kill(self, host: int) -> None:
        self.alive.discard(host)
        for pair in list(self.pipes):
            if host in pair:
                self.cut(*pair)
        self.working = [work for work in self.working if work[0] // self.per_host != host]
        self.written = [entry for entry in self.written if entry[0] != host]

    def kill_proc(self, rank: int) -> None:
        host = rank // self.per_host
        if host in self.alive and rank not in self.procs[host].gone:
            self.procs[host].gone.add(rank)
            self.working = [work for work in self.working if work[0] != rank]
            self.relays[host].proc_gone(1, rank)

    def step(self) -> bool:
        """One thing happens, drawn from all that may; false if there is nothing."""
        ready = [pipe for pipe in self.pipes.values() if pipe.queue]
        ready = [pipe for pipe in ready if pipe.target in self.alive or pipe.target == TOP]
        choices = len(ready) + len(self.working) + len(self.written) + len(self.moments)
        if not choices:
            return False
        pick = self.chance.randrange(choices)
        if pick < len(ready):
            pipe = ready[pick]
            self.arrive(pipe, pipe.queue.popleft())
        elif (pick := pick - len(ready)) < len(self.working):
            rank, answer = self.working.pop(pick)
            host = rank // self.per_host
            self.relays[host].reply(answer, host)
        elif (pick := pick - len(self.working)) < len(self.written):
            _, sent, ranks = self.written.pop(pick)
            sent(ranks)
        else:
            self.moments.pop(pick - len(self.written))()
        return True

    def arrive(self, pipe: Pipe, frame: Frame | None) -> None:
        if pipe.target == TOP:
            self.handled_at_top += 1
            if frame is None:
                self.top.host_lost(pipe.source)
            else:
                self.top.take(pipe.source, frame)
            return
        relay = self.relays[pipe.target]
        back = self.pipes.get((pipe.target, pipe.source))
        if frame is None:
            relay.host_lost(pipe.source)
            relay.up_lost(back)
        elif frame.kind in REQUESTS:
            relay.request(back, frame, keep=pipe.source != TOP)
        elif frame.kind is Kind.CLOSED:
            relay.closed(frame)
        elif frame.kind is Kind.AFRESH:
            relay.afresh(frame)
        else:
            relay.reply(frame, pipe.source)

    def settle(self) -> None:
        while self.step():
            pass

    def run_timers(self) -> None:
        while self.timers:
            timers, self.timers = self.timers, []
            for timer in timers:
                timer()
            self.settle()


def replies(frames: list[Frame]) -> list[tuple[int, bytes, bytes]]:
    """Rank, body and buffers of every answer; of errors the body alone."""
    found = []
    for frame in frames:
        if frame.kind is Kind.MERGED:
            found += [(r, bytes(body), b"".join(parts)) for r, body, parts in unmerge(frame)]
        elif frame.kind in (Kind.RESULT, Kind.ERROR):
            found += [(r, bytes(frame.body), b"".join(frame.buffers)) for r in frame.ranks]
    return found


def check(net: Net, sent: dict[int, Frame]) -> None:
    for call, frame in sent.items():
        answers = replies(net.answers[call])
        ranks = [rank for rank, _, _ in answers]
        wanted = [] if frame.kind is Kind.CAST else sorted(frame.ranks)
        assert sorted(ranks) == wanted
        for rank, body, buffer in answers:
            assert body == b"dead" or body == buffer == b"%d/%d" % (call, rank)
            if body == b"dead":
                host = rank // net.per_host
                assert host not in net.alive or rank in net.procs[host].gone
        told = [answer for answer in net.answers[call] if answer.kind is Kind.DELIVERED]
        delivered = sorted(rank for answer in told for rank in answer.ranks)
        assert delivered == (sorted(frame.ranks) if frame.kind is Kind.CAST else [])
        assert call not in net.top
    for host in net.alive:
        for rank in range(host * net.per_host, (host + 1) * net.per_host):
            wanted = [call for call, frame in sent.items() if rank in frame.ranks]
            if rank in net.procs[host].gone:
                wanted = wanted[: len(net.got[rank])]
            assert net.got[rank] == wanted, f"rank {rank}"


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    hosts=st.integers(1, 40),
    per_host=st.integers(1, 3),
    fan_out=st.integers(2, 5),
    requests=st.integers(1, 6),
    deaths=st.integers(0, 4),
    cuts=st.integers(0, 4),
)
def test_each_rank_gets_each_request_once_in_order_and_answers_once(
    seed, hosts, per_host, fan_out, requests, deaths, cuts
):
    chance = random.Random(seed)  # drawing each step from hypothesis would take minutes
    net = Net(hosts, per_host, fan_out, chance)
    everyone = range(hosts * per_host)
    sent: dict[int, Frame] = {}
    plans = ["send"] * requests + ["kill", "kill proc"] * deaths + ["cut"] * cuts
    chance.shuffle(plans)
    for what in plans:
        for _ in range(chance.choice([0, 1, 10, 100])):
            net.step()
        if what == "send":
            first, last = sorted(chance.choices(range(len(everyone) + 1), k=2))
            ranks = tuple(everyone) if chance.random() < 0.5 else tuple(everyone[first:last])
            kind = chance.choice([Kind.CALL, Kind.CAST, Kind.CREATE])
            flags = chance.choice([0, SOON, STREAM])
            call = len(sent) + 1
            sent[call] = Frame(kind, b"do", [b"it"], call, 1, 0, ranks, flags)
            if ranks:
                net.top.send(sent[call], straight=kind is Kind.CREATE)
            else:
                del sent[call]
        elif what == "kill":
            net.kill(chance.randrange(hosts))
        elif what == "kill proc":
            net.kill_proc(chance.choice(everyone))
        elif hosts > 1:
            one, other = chance.sample(range(hosts), 2)
            if chance.random() < 0.5:
                net.cut_pairs.add((min(one, other), max(one, other)))
            net.cut(one, other)
    net.settle()
    check(net, sent)
    net.run_timers()
    assert all(not net.relays[host]._passed for host in net.alive)


def test_the_top_sends_and_takes_few_messages():
    net = Net(256, 2, 16, random.Random(1))
    net.top.send(Frame(Kind.CALL, b"do", [b"it"], 1, 1, 0, tuple(range(512))))
    assert sum(len(pipe.queue) for pipe in net.pipes.values()) == 16
    net.settle()
    assert len(replies(net.answers[1])) == 512
    assert net.handled_at_top == 2 * 16  # delivered, and answered
    assert len([pair for pair in net.pipes if pair[0] == TOP]) == 16


def test_answers_that_are_wanted_soon_do_not_wait_for_one_that_is_late():
    net = Net(64, 2, 4, random.Random(1))
    net.top.send(Frame(Kind.CALL, b"do", [b"it"], 1, 1, 0, tuple(range(128)), SOON))
    while 127 not in [rank for rank, _ in net.working]:
        assert net.step()
    late = next(work for work in net.working if work[0] == 127)
    net.working.remove(late)
    net.settle()
    assert sorted(rank for rank, _, _ in replies(net.answers[1])) == list(range(127))
    assert len(net.answers[1]) < 64  # merged all the same
    net.working.append(late)
    net.settle()
    assert len(replies(net.answers[1])) == 128


def test_an_answer_that_comes_before_the_news_of_its_delivery_does_not_wait_either():
    net = Net(1, 2, 4, random.Random(1))
    net.top.send(Frame(Kind.CALL, b"do", [b"it"], 1, 1, 0, (0, 1), SOON))
    while not net.written:
        assert net.step()
    [(host, sent, _)], net.written = net.written, []
    sent([0])
    late, soon = net.working
    net.working.clear()
    net.relays[host].reply(soon[1], host)
    net.settle()
    assert [rank for rank, _, _ in replies(net.answers[1])] == [1]
    net.relays[host].reply(late[1], host)
    net.settle()
    assert [rank for rank, _, _ in replies(net.answers[1])] == [1, 0]


def test_the_benchmark_counts_frames_that_do_not_grow_with_the_hosts(tmp_path):
    out = tmp_path / "out.json"
    assert casting.main(["--rounds", "1", "--hosts", "17", "40", "--json", str(out)]) == 0
    rows = json.loads(out.read_text())["rows"]
    frames = [row for row in rows if row["unit"] == "frames"]
    assert [row["ours"]["median"] for row in frames] == [48, 48]
    assert [row["peers"]["flat"]["median"] for row in frames] == [34, 80]


def test_a_slice_touches_no_other_host():
    net = Net(64, 2, 16, random.Random(1))
    net.top.send(Frame(Kind.CALL, b"do", [b"it"], 1, 1, 0, tuple(range(20, 62))))
    net.settle()
    assert {host for pair in net.pipes for host in pair} == {TOP, *range(10, 31)}


@pytest.mark.parametrize("body", [b"", b"x" * 11, b"\xff" * 40])
def test_a_merged_frame_that_is_none_is_refused(body):
    with pytest.raises(FrameError, match="does not fit"):
        list(unmerge(Frame(Kind.MERGED, body, (), ranks=(1, 2))))
