"""Who dies, who is told, who is started again: real processes, real kills."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import slurmmesh as sm
from slurmmesh.actors import ProcEvent
from slurmmesh.errors import HostLost, ProcDied, RestartBudgetSpent, SupervisionError
from slurmmesh.hosts import roster


class Victim(sm.Actor):
    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.count = 0

    @sm.endpoint
    def pid(self):
        return os.getpid()

    @sm.endpoint
    def count_up(self):
        self.count += 1
        return self.count, sm.context().incarnation

    @sm.endpoint
    def last_words(self, words, signum):
        print(words, file=sys.stderr)
        os.kill(os.getpid(), signum)
        time.sleep(60)

    @sm.endpoint
    def wait_for_ever(self):
        time.sleep(3600)

    @sm.endpoint
    def leave_a_child(self):
        """A grandchild in the proc's process group, as a data loader is."""
        return subprocess.Popen(["sleep", "3600"]).pid

    @sm.endpoint
    def fill_stdout(self, size):
        sys.stdout.write("x" * size)
        sys.stdout.flush()
        return True


def wait_until(condition: Callable[[], bool], what: str, timeout: float = 20) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
        time.sleep(0.005)


def exists(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[sm.HostMesh]:
    made = sm.local_hosts(2, tmp_path)
    yield made
    made.stop()


def events_of(folder: Path, kind: str) -> list[dict]:
    sm.telemetry.emit("test_reads")  # written after all that was told so far, which is then there
    lines = (folder / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["kind"] == kind]


def next_event(events: queue.Queue[ProcEvent], kind: str) -> ProcEvent:
    while True:
        event = events.get(timeout=20)
        if event.kind == kind:
            return event


@pytest.mark.slow
def test_a_death_names_rank_host_signal_and_last_words_and_the_rest_goes_on(hosts, tmp_path):
    procs = hosts.spawn_procs({"gpus": 2}, name="victims")
    actors = procs.spawn("victim", Victim, str(tmp_path))
    one = actors.slice(hosts=1, gpus=0)
    with pytest.raises(ProcDied, match="my last words") as caught:
        one.last_words.call_one("my last words", signal.SIGSEGV).get(20)
    cause = caught.value.cause
    assert (cause.mesh, cause.rank, cause.host) == ("victims", 2, "local1")
    assert (cause.signal_name, cause.stderr_tail[-1]) == ("SIGSEGV", "my last words")
    with pytest.raises(ProcDied, match="SIGSEGV"):
        one.pid.call_one().get(20)
    assert len(actors.slice(hosts=0).pid.call().get(20)) == 2
    [event] = events_of(tmp_path, "proc_exited")
    assert (event["rank"], event["signal"], event["expected"]) == (2, "SIGSEGV", False)
    assert event["stderr"] == ["my last words"]


@pytest.mark.slow
def test_every_rank_of_a_host_writes_to_one_file_with_its_rank(hosts, tmp_path):
    procs = hosts.spawn_procs({"gpus": 2}, name="talkers")
    actors = procs.spawn("talker", Victim, str(tmp_path))
    assert actors.fill_stdout.call(200_000).get(20)
    procs.stop().get(20)
    for host, ranks in {"local0": (0, 1), "local1": (2, 3)}.items():
        lines = (tmp_path / "logs" / f"{host}.log").read_text().splitlines()
        for rank in ranks:
            said = [line.split("| ", 1)[1] for line in lines if f"talkers[{rank}] |" in line]
            assert sum(map(len, said)) == 200_000


@pytest.mark.parametrize("strategy", ["one_for_one", "one_for_all"])
def test_a_supervised_rank_comes_back_under_the_same_reference(hosts, tmp_path, strategy):
    rule = sm.Supervision(strategy, max_restarts=3, within_s=60)
    procs = hosts.spawn_procs(name="kept", supervise=rule)
    actors = procs.spawn("kept", Victim, str(tmp_path))
    other = procs.spawn("other", Victim, str(tmp_path))
    events: queue.Queue[ProcEvent] = queue.Queue()
    procs.on_event(events.put)
    for _ in range(2):
        assert {value[0] for value in actors.count_up.call().get(20).values()} >= {1}
        procs.send_signal(signal.SIGKILL, rank=1)
        exited = next_event(events, "exited")
        assert (exited.rank, exited.cause.signal_name) == (1, "SIGKILL")
        back = {
            next_event(events, "restarted").rank for _ in range(1 + (strategy == "one_for_all"))
        }
        assert back == ({1} if strategy == "one_for_one" else {0, 1})
    counts = actors.count_up.call().get(20)
    assert counts.item(hosts=1) == (1, 2)
    assert counts.item(hosts=0) == ((3, 0) if strategy == "one_for_one" else (1, 2))
    assert len(other.pid.call().get(20)) == 2
    assert len(events_of(tmp_path, "proc_restarted")) == (2 if strategy == "one_for_one" else 4)


@pytest.mark.slow
def test_a_mesh_that_fails_too_often_is_given_up_with_its_last_cause(hosts, tmp_path):
    rule = sm.Supervision("one_for_one", max_restarts=1, within_s=60)
    procs = hosts.spawn_procs(name="unlucky", supervise=rule)
    actors = procs.spawn("unlucky", Victim, str(tmp_path))
    events: queue.Queue[ProcEvent] = queue.Queue()
    procs.on_event(events.put)
    waiting = actors.slice(hosts=0).wait_for_ever.call_one()
    actors.slice(hosts=1).last_words.call_one("again", signal.SIGABRT)
    next_event(events, "restarted")
    actors.slice(hosts=1).last_words.call_one("again", signal.SIGABRT)
    given_up = next_event(events, "given_up")
    assert given_up.cause.signal_name == "SIGABRT"
    with pytest.raises(SupervisionError):
        waiting.get(20)
    with pytest.raises(RestartBudgetSpent, match="failed 2 times"):
        actors.pid.call().get(20)


def test_what_a_proc_started_goes_with_it(hosts, tmp_path):
    procs = hosts.spawn_procs(name="parents")
    actors = procs.spawn("parent", Victim, str(tmp_path))
    children = list(actors.leave_a_child.call().get(20).values())
    assert all(exists(child) for child in children)
    procs.send_signal(signal.SIGKILL, rank=0)
    wait_until(lambda: not exists(children[0]), "the killed rank's child ends")
    assert exists(children[1])
    procs.stop().get(20)
    wait_until(lambda: not exists(children[1]), "the stopped rank's child ends")


def test_a_lost_host_ends_its_procs_and_names_itself(hosts, tmp_path):
    procs = hosts.spawn_procs(name="housed")
    actors = procs.spawn("housed", Victim, str(tmp_path))
    pids = list(actors.pid.call().get(20).values())
    agent = next(event["pid"] for event in events_of(tmp_path, "host_up") if event["host"] == 1)
    waiting = actors.slice(hosts=1).wait_for_ever.call_one()
    os.kill(agent, signal.SIGKILL)
    with pytest.raises(ProcDied, match="its host is lost"):
        waiting.get(20)
    with pytest.raises(HostLost, match=r"local1 .*; its log: .*/logs/local1\.log"):
        actors.slice(hosts=1).pid.call_one().get(20)
    wait_until(lambda: not exists(pids[1]), "the lost host's proc ends")
    assert actors.slice(hosts=0).pid.call_one().get(20) == pids[0]
    assert [event["name"] for event in events_of(tmp_path, "host_lost")] == ["local1"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "max_restarts"), [("one_for_one", 2), ("one_for_one", 0), ("one_for_all", 2)]
)
def test_a_supervised_mesh_loses_with_a_host_what_the_strategy_says(
    hosts, tmp_path, strategy, max_restarts
):
    rule = sm.Supervision(strategy, max_restarts, within_s=60)
    procs = hosts.spawn_procs({"gpus": 2}, name="housed", supervise=rule)
    actors = procs.spawn("housed", Victim, str(tmp_path))
    events: queue.Queue[ProcEvent] = queue.Queue()
    procs.on_event(events.put)
    assert len(actors.pid.call().get(20)) == 4
    agent = next(event["pid"] for event in events_of(tmp_path, "host_up") if event["host"] == 1)
    os.kill(agent, signal.SIGKILL)
    given_up = [next_event(events, "given_up") for _ in range(2)]
    assert [(event.rank, event.host) for event in given_up] == [(2, "local1"), (3, "local1")]
    assert {event.cause.kind for event in given_up} == {"host_lost"}
    with pytest.raises(HostLost, match="local1"):
        actors.pid.call().get(20)
    on_the_other_host = actors.slice(hosts=0)
    if strategy == "one_for_all":
        with pytest.raises(HostLost, match="local1"):
            on_the_other_host.pid.call().get(20)
        return
    assert len(on_the_other_host.pid.call().get(20)) == 2
    if max_restarts:
        procs.send_signal(signal.SIGKILL, rank=0)
        assert next_event(events, "restarted").rank == 0
        assert len(on_the_other_host.pid.call().get(20)) == 2
    procs.stop().get(20)


@pytest.mark.slow
def test_a_stalled_file_system_does_not_end_the_job(tmp_path, monkeypatch):
    """Pipes that nobody reads from take the place of the logs and of the event log."""
    for name in ("HOST_SILENCE_S", "LEASE_S"):
        monkeypatch.setattr(f"slurmmesh.hosts.roster.{name}", 0.6)
    monkeypatch.setattr("slurmmesh.hosts.roster.HEARTBEAT_S", 0.1)
    (tmp_path / "logs").mkdir()
    readers = [full_pipe(tmp_path / name) for name in ("events.jsonl", "logs/local0.log")]
    host = sm.local_hosts(1, tmp_path)
    actors = host.spawn_procs(name="loud").spawn("loud", Loud)
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        assert actors.write.call_one(b"a line\n" * 100).get(20)
    assert not host._controller.hosts[0].lost
    for reader in readers:
        os.close(reader)  # what was stalled fails
    host.stop()


def full_pipe(path: Path) -> int:
    os.mkfifo(path)
    reader = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(reader, b"x" * 4096)
    return reader


@pytest.mark.slow
def test_a_host_that_was_given_up_and_comes_back_ends_its_procs(hosts, tmp_path, monkeypatch):
    actors = hosts.spawn_procs(name="housed").spawn("housed", Victim, str(tmp_path))
    pids = list(actors.pid.call().get(20).values())
    agent = next(event["pid"] for event in events_of(tmp_path, "host_up") if event["host"] == 1)
    os.kill(agent, signal.SIGSTOP)
    unanswered = actors.slice(hosts=1).pid.call_one()
    monkeypatch.setattr("slurmmesh.hosts.roster.HOST_SILENCE_S", 2.5)
    monkeypatch.setattr("slurmmesh.hosts.roster.HEARTBEAT_S", 0.1)
    with pytest.raises(ProcDied, match="no sign of life"):
        unanswered.get(20)
    assert exists(pids[1])
    os.kill(agent, signal.SIGCONT)
    wait_until(lambda: not exists(pids[1]), "its proc ends")
    wait_until(lambda: not exists(agent), "it ends")


def test_a_host_ends_its_procs_before_it_is_given_up():
    assert roster.LEASE_S + 2 * roster.HEARTBEAT_S < roster.HOST_SILENCE_S


@pytest.mark.slow
def test_procs_outlive_the_fork_server_and_a_new_one_is_started(hosts, tmp_path):
    procs = hosts.spawn_procs(name="outliving")
    actors = procs.spawn("outliving", Victim, str(tmp_path))
    pids = list(actors.pid.call().get(20).values())
    agent = next(event["pid"] for event in events_of(tmp_path, "host_up") if event["host"] == 0)
    children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    [server] = [int(pid) for pid in children if int(pid) not in pids]
    os.kill(server, signal.SIGKILL)
    wait_until(lambda: not exists(server), "the fork server ends")
    assert list(actors.pid.call().get(20).values()) == pids
    more = hosts.spawn_procs(name="more")
    assert len(more.spawn("more", Victim, str(tmp_path)).pid.call().get(20)) == 2


def test_a_module_that_cannot_be_preloaded_fails_the_procs_with_its_name(hosts, tmp_path):
    procs = hosts.spawn_procs(name="loaded", preload=["no_such_module_anywhere"])
    actors = procs.spawn("loaded", Victim, str(tmp_path))
    with pytest.raises(ProcDied, match=r"^rank \d of 'loaded' on \S+ .*'no_such_.*' of preload"):
        actors.pid.call().get(20)


def test_an_environment_that_is_too_large_fails_the_procs_and_nothing_else(hosts, tmp_path):
    procs = hosts.spawn_procs(name="large", env={"LARGE": "x" * 300_000})
    with pytest.raises(ProcDied, match="too many"):
        procs.spawn("large", Victim, str(tmp_path)).pid.call().get(20)
    fine = hosts.spawn_procs(name="fine").spawn("fine", Victim, str(tmp_path))
    assert len(fine.pid.call().get(20)) == 2


class Moody(sm.Actor):
    """Its constructor fails in the incarnations it is told."""

    def __init__(self, bad: tuple[int, ...]) -> None:
        if sm.context().incarnation in bad:
            raise ValueError(f"not in incarnation {sm.context().incarnation}")

    @sm.endpoint
    def incarnation(self):
        return sm.context().incarnation


@pytest.mark.slow
def test_a_constructor_that_fails_in_a_restart_is_one_more_failure(hosts, tmp_path):
    rule = sm.Supervision("one_for_one", max_restarts=4, within_s=60)
    procs = hosts.slice(hosts=0).spawn_procs(name="moody", supervise=rule)
    actors = procs.spawn("moody", Moody, (1, 2, 4, 5, 6))
    events: queue.Queue[ProcEvent] = queue.Queue()
    procs.on_event(events.put)
    assert actors.incarnation.call_one().get(20) == 0
    procs.send_signal(signal.SIGKILL)
    assert next_event(events, "restarted").incarnation == 3
    assert actors.incarnation.call_one().get(20) == 3
    procs.send_signal(signal.SIGKILL)
    last = next_event(events, "given_up").cause
    assert last.stderr_tail[-1] == "ValueError: not in incarnation 4"
    with pytest.raises(RestartBudgetSpent):
        actors.incarnation.call_one().get(20)


@pytest.mark.slow
def test_a_stop_wins_over_a_restart_at_any_moment(hosts, tmp_path):
    agents = [event["pid"] for event in events_of(tmp_path, "host_up")]
    events: queue.Queue[ProcEvent] = queue.Queue()
    rule = sm.Supervision("one_for_all", max_restarts=9, within_s=60)
    for until in (None, "exited", "up", "restarted"):
        procs = hosts.spawn_procs({"gpus": 2}, name="racing", supervise=rule)
        actors = procs.spawn("racing", Victim, str(tmp_path))
        assert len(actors.pid.call().get(20)) == 4
        procs.on_event(events.put)
        procs.send_signal(signal.SIGKILL, rank=1)
        if until:
            next_event(events, until)
        procs.stop(0.5).get(20)
        assert not procs._runtime._life.meshes[procs._mesh].created

    def only_the_fork_server_is_left() -> bool:
        left = [Path(f"/proc/{pid}/task/{pid}/children").read_text().split() for pid in agents]
        return all(len(pids) == 1 for pids in left)

    wait_until(only_the_fork_server_is_left, "no proc is started after its mesh was stopped")


def test_a_call_to_a_dead_rank_ends_when_its_host_is_lost_before_it_answers(hosts, tmp_path):
    procs = hosts.slice(hosts=1).spawn_procs(name="gone")
    actors = procs.spawn("gone", Victim, str(tmp_path))
    with pytest.raises(ProcDied):
        actors.last_words.call_one("now", signal.SIGKILL).get(20)
    agent = next(event["pid"] for event in events_of(tmp_path, "host_up") if event["host"] == 1)
    os.kill(agent, signal.SIGSTOP)
    unanswered = actors.pid.call_one()
    os.kill(agent, signal.SIGKILL)
    with pytest.raises(HostLost, match="local1"):
        unanswered.get(20)


@pytest.mark.slow
def test_an_agent_that_hangs_does_not_hold_up_the_end(hosts, tmp_path, monkeypatch):
    monkeypatch.setattr("slurmmesh.hosts.roster.AGENT_GRACE_S", 0.1)
    procs = hosts.spawn_procs(name="frozen")
    pids = list(procs.spawn("frozen", Victim, str(tmp_path)).pid.call().get(20).values())
    agent = next(event["pid"] for event in events_of(tmp_path, "host_up") if event["host"] == 0)
    os.kill(agent, signal.SIGSTOP)
    hosts._controller.close(grace_s=0.1)
    wait_until(lambda: not any(map(exists, [agent, *pids])), "the agent and its procs end")


def test_callbacks_that_raise_change_nothing(hosts, tmp_path, capfd):
    procs = hosts.spawn_procs(name="watched")
    events: queue.Queue[ProcEvent] = queue.Queue()
    procs.on_event(lambda event: sys.exit(f"a callback leaves on {event.kind}"))
    procs.on_event(events.put)
    actors = procs.spawn("watched", Victim, str(tmp_path))
    assert len(actors.pid.call().get(20)) == 2
    procs.send_signal(signal.SIGTERM, rank=0)
    assert next_event(events, "exited").cause.signal_name == "SIGTERM"
    assert actors.slice(hosts=1).pid.call_one().get(20)
    assert "a callback leaves on exited" in capfd.readouterr().err


def test_a_forked_child_of_the_program_cannot_touch_the_job(hosts, tmp_path):
    actors = hosts.spawn_procs(name="parents").spawn("parent", Victim, str(tmp_path))
    pids = list(actors.pid.call().get(20).values())
    child = os.fork()
    if child == 0:
        code = 1
        try:
            actors.pid.call()
        except SupervisionError as error:
            code = 0 if "fork of the controller" in str(error) else 2
        hosts.stop()  # what an exit handler does
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert list(actors.pid.call().get(20).values()) == pids


def test_output_of_any_kind_and_a_closed_stdout_hurt_nobody(hosts, tmp_path):
    procs = hosts.slice(hosts=0).spawn_procs({"gpus": 2}, name="loud")
    actors = procs.spawn("loud", Loud)
    one, other = actors.slice(gpus=0), actors.slice(gpus=1)
    assert one.write.call_one(bytes(range(256)) * 300).get(20)
    assert one.write.call_one(b"\n" * 100_000).get(20)
    flood = one.flood.call_one(500)
    for _ in range(5):
        assert other.write.call_one(b"still here\n").get(20)
    assert flood.get(30)
    assert one.close_both.call_one().get(20)
    with pytest.raises(ProcDied) as caught:
        other.last_line.call_one(100_000).get(20)
    assert max(map(len, caught.value.cause.stderr_tail)) <= 1000
    assert one.close_both.call_one().get(20)
    procs.stop().get(20)
    log = (tmp_path / "logs" / "local0.log").read_bytes()
    assert bytes(range(11, 256)) in log
    assert log.count(b"still here") == 5


class Loud(sm.Actor):
    @sm.endpoint
    def write(self, data):
        while data:
            data = data[os.write(1, data) :]
        return True

    @sm.endpoint
    def flood(self, chunks):
        for _ in range(chunks):
            os.write(1, b"x" * 60_000)  # and never the end of a line
        return True

    @sm.endpoint
    def last_line(self, size):
        os.write(2, b"y" * size)
        os._exit(3)

    @sm.endpoint
    def close_both(self):
        for fd in (1, 2):
            with contextlib.suppress(OSError):
                os.close(fd)
        return True


CONTROLLER = """
import sys, time
import slurmmesh as sm
from tests.hosts.test_deaths import Victim

hosts = sm.local_hosts(2)
procs = hosts.spawn_procs({"gpus": 2}, name="orphans")
actors = procs.spawn("orphan", Victim, "")
pids = [*actors.pid.call().get(30).values(), *actors.leave_a_child.call().get(30).values()]
print(*pids, flush=True)
time.sleep(3600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_a_controller_that_dies(signum):
    with subprocess.Popen(
        [sys.executable, "-c", CONTROLLER],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parents[2],
        text=True,
    ) as controller:
        pids = [int(pid) for pid in controller.stdout.readline().split()]
        assert len(pids) == 8
        controller.send_signal(signum)
        controller.wait(20)
    wait_until(lambda: not any(map(exists, pids)), "all procs and their children end")


@pytest.mark.slow
def test_a_rank_that_is_up_has_its_pid_from_the_beginning(hosts, tmp_path):
    for number in range(5):
        procs = hosts.spawn_procs({"gpus": 2}, name=f"named{number}")
        pids = list(procs.spawn("named", Victim, str(tmp_path)).pid.call().get(20).values())
        ups = {e["rank"]: e["pid"] for e in events_of(tmp_path, "proc_up")[-4:]}
        assert [ups[rank] for rank in range(4)] == pids
        procs.stop().get(20)
