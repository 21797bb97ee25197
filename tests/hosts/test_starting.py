"""Hosts that do not come up, what nobody should be able to give, and who is not let in."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import slurmmesh as sm
from slurmmesh.errors import ProcDied, SetupError, SupervisionError, UsageError
from slurmmesh.hosts.controller import Controller
from slurmmesh.hosts.job import Job
from slurmmesh.hosts.mesh import HostMesh
from slurmmesh.hosts.roster import HostRecord
from slurmmesh.shape import Extent, Region
from slurmmesh.wire import Frame, Kind, wrap
from slurmmesh.wire.identity import Credentials, JobAuthority, client_context

ROOT = Path(__file__).parents[2]


class Plain(sm.Actor):
    @sm.endpoint
    def pid(self):
        return os.getpid()


def events_of(folder: Path, kind: str) -> list[dict]:
    sm.telemetry.emit("test_reads")  # written after all that was told so far, which is then there
    lines = (folder / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["kind"] == kind]


def run(code: str, *args: str, before: str = "", cwd: Path = ROOT) -> subprocess.CompletedProcess:
    """A program of its own, in a shell that says ``before`` first."""
    command = f'{before} exec "$0" -c "$@"'
    return subprocess.run(
        ["sh", "-c", command, sys.executable, code, *args],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_log_that_cannot_be_written_is_told_at_once(tmp_path):
    (tmp_path / "logs" / "local1.log").mkdir(parents=True)
    with pytest.raises(SetupError, match=r"local1: its log cannot be written: .*local1\.log"):
        sm.local_hosts(2, tmp_path)


class Launched:
    """Stands for an agent of another node, which only Slurm could start."""

    def __init__(self) -> None:
        self.terminated = False

    def poll(self) -> str | None:
        return None

    def terminate(self) -> None:
        self.terminated = True

    def wait(self, timeout_s: float) -> bool:
        return self.terminated

    def kill(self) -> None:
        raise AssertionError("it was asked to end before")


def test_a_host_that_cannot_be_launched_is_told_and_no_further_one_is_tried(tmp_path, capfd):
    tried = []

    def start(host: HostRecord) -> Launched:
        tried.append(host.name)
        if host.name == "node2":
            raise OSError(28, "No space left on device")
        return Launched()

    controller = Controller("job", tmp_path)
    hosts = [controller.roster.add_host(name) for name in ("node1", "node2", "node3")]
    controller.roster.launch(hosts, start)
    with pytest.raises(SetupError, match=r"node2: it cannot be started: .*No space left"):
        controller.roster.wait_ready(hosts, 30)
    controller.close()
    assert tried == ["node1", "node2"]
    assert hosts[0].launched.terminated
    assert "node2" in capfd.readouterr().err


def test_a_close_waits_for_the_launch_that_is_under_way_and_begins_no_other(tmp_path):
    under_way, go_on = threading.Event(), threading.Event()

    def start(host: HostRecord) -> Launched:
        under_way.set()
        assert go_on.wait(30)
        return Launched()

    controller = Controller("job", tmp_path)
    first, second = (controller.roster.add_host(name) for name in ("node1", "node2"))
    controller.roster.launch([first, second], start)
    assert under_way.wait(30)
    controller.expect_end()
    go_on.set()
    controller.close()
    assert first.launched.terminated
    assert second.launched is None


def test_a_folder_that_cannot_be_used_is_a_setup_error(tmp_path):
    (tmp_path / "logs").touch()
    with pytest.raises(SetupError, match="logs"):
        sm.local_hosts(1, tmp_path)


def test_an_agent_that_breaks_at_import_is_told_with_its_exit_code(tmp_path, monkeypatch):
    (tmp_path / "cloudpickle.py").write_text("raise ImportError('a broken node')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SetupError, match=r"local0: .*exited with code 1"):
        sm.local_hosts(1, tmp_path)


@pytest.mark.slow
def test_files_of_the_working_folder_do_not_take_the_place_of_pythons(tmp_path):
    for name in ("queue.py", "socket.py", "random.py"):
        (tmp_path / name).write_text("raise SystemExit('the wrong module')")
    code = (
        "import sys; sys.path.remove(''); import slurmmesh as sm; from tests.hosts import "
        "test_starting as t\n"
        "hosts = sm.local_hosts(1)\n"
        "print(len(hosts.spawn_procs().spawn('a', t.Plain).pid.call().get(30)))"
    )
    done = run(code, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_a_host_of_another_version_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("slurmmesh.hosts.roster.__version__", "99.0")
    with pytest.raises(SetupError, match=r"it runs slurmmesh .*, the controller 99\.0"):
        sm.local_hosts(1, tmp_path)


@pytest.mark.slow
def test_out_of_descriptors_some_procs_fail_and_the_others_work():
    code = """
import slurmmesh as sm
from tests.hosts.test_starting import Plain
hosts = sm.local_hosts(1)
actors = hosts.spawn_procs({"gpus": 32}, name="many").spawn("a", Plain)
error = actors.pid.call().exception(30)
fine = [actors.slice(hosts=0, gpus=i).pid.call_one().exception(30) is None for i in range(32)]
print(type(error).__name__, "Too many open files" in str(error), fine.count(True) > 0)
few = hosts.spawn_procs(name="few").spawn("a", Plain).pid.call()
print(type(few.exception(30)).__name__)
hosts.stop()
"""
    done = run(code, before="ulimit -n 60;")
    assert done.stdout.split()[:3] == ["ProcDied", "True", "True"], done.stderr
    assert done.returncode == 0


@pytest.fixture(scope="module")
def host(outlives_tests, tmp_path_factory) -> Iterator[sm.HostMesh]:
    folder = tmp_path_factory.mktemp("job")
    made = sm.local_hosts(1, folder)
    with outlives_tests(folder):
        yield made
    made.stop()


@pytest.mark.parametrize(
    "bad",
    [
        {"name": ""},
        {"name": "two\nlines"},
        {"name": 7},
        {"preload": "torch"},
        {"env": {"": "x"}},
        {"env": {"A=B": "x"}},
        {"env": {"A": "x\0y"}},
        {"env": {"A": "\ud800"}},
        {"env": {"A": 1}},
    ],
)
def test_what_no_process_can_be_given_is_refused_before_it_starts(host, bad):
    with pytest.raises(UsageError):
        host.spawn_procs(**bad)


def test_odd_but_possible_names_and_variables_arrive(host):
    odd = {"A B": "=", "ÄÖ": "x\ny", "RAW": os.fsdecode(b"\xff\xfe")}
    procs = host.spawn_procs(name="a b'\"$[0] é|", env=odd)
    actors = procs.spawn("a\nb", Reader)
    assert actors.read.call_one(list(odd)).get(30) == odd
    procs.stop().get(20)


class Reader(sm.Actor):
    @sm.endpoint
    def read(self, names):
        return {name: os.environ[name] for name in names}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("raise SystemExit(0)", "SystemExit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("import os; os.kill(os.getpid(), 11)", "fork server died"),
    ],
)
def test_a_preload_that_leaves_fails_its_procs_and_no_others(tmp_path, monkeypatch, module, words):
    (tmp_path / "leaves.py").write_text(module)
    monkeypatch.syspath_prepend(str(tmp_path))
    host = sm.local_hosts(1, tmp_path / "job")
    procs = host.spawn_procs({"gpus": 3}, name="loaded", preload=["leaves"])
    with pytest.raises(ProcDied, match=words):
        procs.spawn("a", Plain).pid.call().get(30)
    assert host.spawn_procs(name="fine").spawn("a", Plain).pid.call().get(30)
    host.stop()


@pytest.mark.parametrize(("nodes", "spares"), [(0, 0), (-1, 0), (1, -1)])
def test_a_job_of_impossible_size_is_a_usage_error(tmp_path, nodes, spares):
    environment = {
        "SLURMMESH_JOB_FOLDER": str(tmp_path / "job"),
        "SLURMMESH_JOB_ID": "local-test",
        "SLURMMESH_CLUSTER": "local",
        "SLURMMESH_NODES": str(nodes),
        "SLURMMESH_SPARES": str(spares),
    }
    with pytest.raises(UsageError, match="no job has"):
        sm.hosts.job.start_job(environment)
    with pytest.raises(UsageError, match="at least one host"):
        sm.local_hosts(nodes and -1)


@pytest.mark.slow
def test_two_jobs_of_one_program_keep_their_events_apart(tmp_path):
    first = sm.local_hosts(1, tmp_path / "first")
    second = sm.local_hosts(1, tmp_path / "second")
    for hosts in (second, first):
        actors = hosts.spawn_procs(name="only").spawn("a", Plain)
        assert actors.pid.call().get(30)
    second.stop()
    sm.telemetry.emit("mine")
    assert first.spawn_procs(name="more").spawn("a", Plain).pid.call().get(30)
    first.stop()
    meshes = {
        name: [event["mesh"] for event in events_of(tmp_path / name, "procs_spawned")]
        for name in ("first", "second")
    }
    assert meshes == {"first": ["only", "more"], "second": ["only"]}
    assert len(events_of(tmp_path / "first", "mine")) == 1
    for name in meshes:
        assert all(event["exit_code"] == 0 for event in events_of(tmp_path / name, "proc_exited"))


class Listening:
    """A controller with a listener that awaits one host, as in an allocation."""

    def __init__(self, folder: Path) -> None:
        self.controller = Controller("job-1", None)
        roster = self.controller.roster
        self.port = roster.listen("127.0.0.1")
        self.record = roster.add_host("node1")
        self.credentials = roster.authority.issue(self.record.identity)
        self.identity = folder / "identity"
        self.credentials.write(self.identity)

    def start_agent(self) -> subprocess.Popen[bytes]:
        code = (
            "import sys; from slurmmesh.hosts.remote_agent import DialSpec, dial; "
            "targets = (('127.0.0.1', int(sys.argv[1])),); "
            "sys.exit(dial(DialSpec(targets, sys.argv[2], 'host-0')))"
        )
        agent = subprocess.Popen(
            [sys.executable, "-c", code, str(self.port), str(self.identity)], cwd=ROOT
        )
        self.controller.roster.wait_ready([self.record], 30)
        return agent

    def speak_as(self, credentials: Credentials, words: bytes) -> bytes:
        """What is answered to one who says ``words`` after the handshake."""
        raw = socket.create_connection(("127.0.0.1", self.port), timeout=20)
        with wrap(raw, client_context(credentials), server_side=False) as sock:
            try:
                sock.do_handshake()
                sock.sendall(words)
                return sock.recv(100)
            except OSError:
                return b""

    def hosts(self) -> sm.HostMesh:
        return HostMesh(self.controller.runtime, Region.from_ranks(Extent.of({"hosts": 1}), [0]))


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[Listening]:
    made = Listening(tmp_path)
    yield made
    made.controller.close()


class _Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.slow
def test_strangers_are_not_listened_to_and_hold_nobody_up(listening, tmp_path, capfd):
    mark = tmp_path / "exploded"
    frame = Frame(Kind.HELLO, pickle.dumps(_Bomb(mark)))
    bomb = b"".join(bytes(part) for part in frame.parts())
    address = ("127.0.0.1", listening.port)
    silent = [socket.create_connection(address, timeout=20) for _ in range(20)]
    with socket.create_connection(address, timeout=20) as stranger:
        stranger.sendall(bomb)
        with contextlib.suppress(ConnectionError):
            while stranger.recv(100):  # TLS may say in its own words that it did not understand
                pass
    roster = listening.controller.roster
    others = [
        JobAuthority("job-1").issue("host-0"),  # another authority of the same names
        roster.authority.issue("proc-1"),
        roster.authority.issue("host-7"),
    ]
    assert [listening.speak_as(each, bomb) for each in others] == [b""] * 3
    agent = listening.start_agent()
    assert listening.hosts().spawn_procs().spawn("a", Plain).pid.call().get(30)
    assert listening.speak_as(listening.credentials, bomb) == b""  # a certificate used twice
    assert listening.record.lost is None
    agent.send_signal(signal.SIGTERM)
    agent.wait(20)
    deadline = time.monotonic() + 20
    while listening.record.lost is None:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    assert "SIGTERM" in listening.record.lost.detail
    assert listening.speak_as(listening.credentials, bomb) == b""  # one that was lost
    assert not mark.exists()
    said = capfd.readouterr().err
    assert "127.0.0.1 did not prove that it belongs to this job" in said
    assert "it belongs to another job" in said
    assert "it is no member of a slurmmesh job" in said
    for sock in silent:
        sock.close()


@pytest.mark.slow
def test_closing_a_job_in_a_callback_is_refused_and_twice_is_once(tmp_path):
    job = Job("local-test", "local", tmp_path, 1)
    procs = job.hosts.spawn_procs(name="one")
    errors: list[BaseException] = []

    def stop_all(_event: object) -> None:
        try:
            job.close()
        except RuntimeError as error:
            errors.append(error)

    procs.on_event(stop_all)
    assert procs.spawn("a", Plain).pid.call().get(30)
    job.close()
    job.close()
    assert job.closed
    assert "callback" in str(errors[0])
    with pytest.raises(SupervisionError):
        job.hosts.spawn_procs(name="late")


@pytest.mark.slow
def test_a_close_that_was_interrupted_goes_on_when_called_again(tmp_path, monkeypatch):
    hosts = sm.local_hosts(1, tmp_path)
    assert hosts.spawn_procs().spawn("a", Plain).pid.call().get(30)
    roster = hosts._controller.roster
    with monkeypatch.context() as patch:

        def interrupted(_grace_s: float) -> None:
            raise KeyboardInterrupt

        patch.setattr(roster, "close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            hosts.stop()
    assert not hosts.stopped
    hosts.stop()
    assert hosts.stopped


@pytest.mark.slow
def test_this_host_is_started_anew_after_it_was_stopped():
    first = sm.this_host()
    assert sm.this_host() is first
    first.stop()
    second = sm.this_host()
    assert second.spawn_procs().spawn("a", Plain).pid.call_one().get(30)
    second.stop()
