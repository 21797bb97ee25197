"""Strangers at every door of a running job: no effect, one line, and the job goes on.

The doors are found, not listed: whatever socket of the job's processes listens is knocked at.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import ssl
import stat
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import slurmmesh as sm
from slurmmesh.hosts.messages import Listen
from slurmmesh.wire import Frame, Kind
from slurmmesh.wire.frames import HEADER
from slurmmesh.wire.identity import Credentials, JobAuthority, client_context

pytestmark = pytest.mark.slow

NOBODY = 65534


class Witness(sm.Actor):
    """What a rank of the job is asked, and what it opens."""

    @sm.endpoint
    def pid(self) -> int:
        return os.getpid()

    @sm.endpoint
    def ask(self, others: sm.ActorMesh) -> bool:
        """Call each of the others from here, so that they listen to ranks of other hosts."""
        return all(
            others.slice(hosts=i).pid.call_one().get(60) for i in range(others.sizes["hosts"])
        )

    @sm.endpoint
    def serve_state(self) -> int:
        from slurmmesh.recovery.transport import SecureTransport

        credentials = sm.context().credentials
        assert credentials is not None
        self.transport = SecureTransport("127.0.0.1", credentials, 20.0)
        return int(self.transport.metadata().rpartition(":")[2])

    @sm.endpoint
    def key(self) -> bytes:
        credentials = sm.context().credentials
        assert credentials is not None
        return credentials.cert_key_pem

    @sm.endpoint
    def refuses(self, name: str) -> bool:
        credentials = sm.context().credentials
        assert credentials is not None
        return name in credentials.revoked


def listening(pids: list[int]) -> dict[int, int]:
    """The TCP ports at which these processes listen, with the pid. They have no other doors."""
    sockets = {}
    for pid in pids:
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                sockets[os.readlink(fd)] = pid
    doors = {}
    for table, state, inode in (("tcp", "0A", 9), ("tcp6", "0A", 9), ("unix", "00010000", 6)):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            pid = sockets.get(f"socket:[{fields[inode]}]")
            if pid is not None and fields[3] == state:
                assert table == "tcp", line
                doors[int(fields[1].rpartition(":")[2], 16)] = pid
    return doors


class Job:
    """A controller and hosts that came to it over TLS, as in an allocation, with all doors open."""

    def __init__(self, folder: Path, dialled: Any, elsewhere: Collection[int]) -> None:
        self.folder = folder
        self.elsewhere = elsewhere  # where other jobs of this process listen
        self.controller, self.hosts = dialled.controller, dialled.hosts
        self.records, self.agents = dialled.records, dialled.agents
        self.authority = self.controller.roster.authority
        procs = self.hosts.spawn_procs(name="w")
        self.witnesses, askers = procs.spawn("witness", Witness), procs.spawn("asker", Witness)
        for record in self.records:
            self.controller.roster.tell(record, Listen())  # as a job of many hosts does
        assert all(askers.ask.call(self.witnesses).get(60).values())
        self.state_ports = list(self.witnesses.serve_state.call().get(60).values())

    def answers(self) -> bool:
        """Whether all ranks that are left answer a call."""
        return all(self.witnesses.pid.call().get(60).values())

    def pids(self) -> list[int]:
        """All processes of the job."""
        children: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    children.setdefault(int(fields[1]), []).append(int(entry.name))
        found = [os.getpid()]
        waiting = [agent.pid for agent in self.agents]
        while waiting:
            found.append(waiting.pop())
            waiting += children.get(found[-1], [])
        return found

    def doors(self) -> dict[int, int]:
        """The TCP ports at which a process of the job listens, with its pid."""
        found = listening(self.pids())
        return {port: pid for port, pid in found.items() if port not in self.elsewhere}


@pytest.fixture(scope="module")
def dial(dial_hosts) -> Callable[[Path], AbstractContextManager[Job]]:
    @contextlib.contextmanager
    def dialled_job(folder: Path) -> Iterator[Job]:
        elsewhere = listening([os.getpid()])
        with dial_hosts(folder, 2) as dialled:
            yield Job(folder, dialled, elsewhere)

    return dialled_job


@pytest.fixture(scope="module")
def job(outlives_tests, tmp_path_factory, dial) -> Iterator[Job]:
    pytest.importorskip("torchft")
    folder = tmp_path_factory.mktemp("job")
    folder.chmod(0o700)
    with outlives_tests(folder), dial(folder) as made:
        yield made


# ------------------------------------------------------------------ who comes


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@dataclass
class Stranger:
    """What a stranger has to hand when it knocks at a port."""

    authority: JobAuthority
    bomb: bytes
    port: int

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def shout(self, words: bytes) -> bytes:
        """Say words in the clear; what is answered, but for what TLS says by itself."""
        heard = b""
        with self.connect() as sock, contextlib.suppress(OSError):
            sock.sendall(words)
            sock.shutdown(socket.SHUT_WR)
            while part := sock.recv(4096):
                heard += part
        return b"" if heard[:1] in (b"\x15", b"\x16") else heard

    def speak(self, context: ssl.SSLContext) -> bytes:
        """Say the bomb under TLS as soon as that is possible; what is answered."""
        with self.connect() as raw, contextlib.suppress(OSError), context.wrap_socket(raw) as sock:
            sock.sendall(self.bomb)
            return sock.recv(4096)
        return b""

    def certified(self, name: str = "host-0", age_days: int = 0) -> Credentials:
        """Credentials by the job's own authority, which no stranger has but a thief may."""
        clock = self.authority._clock
        self.authority._clock = lambda: clock() - 86400 * age_days
        try:
            return self.authority.issue(name)
        finally:
            self.authority._clock = clock


def bare_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def old_context(credentials: Credentials) -> ssl.SSLContext:
    context = client_context(credentials)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


def with_our_ca(stranger: Stranger, theirs: Credentials) -> Credentials:
    """The authority's certificate is no secret: a stranger may know it."""
    return replace(theirs, ca_pem=stranger.certified().ca_pem)


def half_a_handshake() -> bytes:
    hello = ssl.MemoryBIO()
    client = bare_context().wrap_bio(ssl.MemoryBIO(), hello)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return hello.read()


STRANGERS: dict[str, Callable[[Stranger], bytes]] = {
    "one who hangs up at once": lambda s: s.shout(b""),
    "garbage": lambda s: s.shout(os.urandom(4096)),
    "a browser": lambda s: s.shout(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
    "a pickle bomb in a frame": lambda s: s.shout(s.bomb),
    "a bare pickle bomb": lambda s: s.shout(s.bomb[HEADER.size :]),
    "a frame that claims a terabyte": lambda s: s.shout(
        s.bomb[: HEADER.size - 8] + (1 << 40).to_bytes(8, "little")
    ),
    "a TLS record of 65,535 bytes": lambda s: s.shout(b"\x16\x03\x01\xff\xff" + bytes(70000)),
    "half a handshake": lambda s: s.shout(half_a_handshake()),
    "no certificate": lambda s: s.speak(bare_context()),
    "another job's member": lambda s: s.speak(client_context(JobAuthority("2").issue("host-0"))),
    "another job's, of the same names": lambda s: s.speak(
        client_context(with_our_ca(s, JobAuthority("job-1").issue("host-0")))
    ),
    "an expired certificate": lambda s: s.speak(client_context(s.certified(age_days=30))),
    "one not yet valid": lambda s: s.speak(client_context(s.certified(age_days=-30))),
    "a role that has no business here": lambda s: s.speak(client_context(s.certified("proc-1"))),
    "old TLS": lambda s: s.speak(old_context(s.certified())),
}


@pytest.fixture
def refusals_of(monkeypatch) -> Callable[[Job], Callable[[], list[str]]]:
    """``refusals_of(job)()``: the refusals that all processes of a job told of since then."""

    def begin(job: Job) -> Callable[[], list[str]]:
        def files() -> dict[Path, bytes]:
            paths = [*job.folder.glob("*.err"), *job.folder.glob("logs/*")]
            return {path: path.read_bytes() for path in paths}

        before = files()
        heard: list[str] = []  # of this process; reading stderr while others write loses lines
        monkeypatch.setattr("slurmmesh.wire.listener.say", heard.append)

        def told() -> list[str]:
            texts = [text[len(before.get(path, b"")) :] for path, text in files().items()]
            lines = [*heard, *b"".join(texts).decode().splitlines()]
            return [line for line in lines if "refused" in line]

        return told

    return begin


@pytest.fixture
def refusals(job: Job, refusals_of) -> Callable[[], list[str]]:
    return refusals_of(job)


@pytest.mark.parametrize("name", STRANGERS)
def test_a_stranger_at_any_door_has_no_effect_and_is_one_line(
    job, name, refusals, tmp_path, wait_until
):
    mark = tmp_path / "exploded"
    frame = Frame(Kind.HELLO, pickle.dumps(Bomb(mark)))
    bomb = b"".join(map(bytes, frame.parts()))
    doors = job.doors()
    owners = list(doors.values())
    assert owners.count(os.getpid()) == 1
    assert all(owners.count(agent.pid) == 1 for agent in job.agents)
    assert all(owners.count(pid) == 2 for pid in job.witnesses.pid.call().get(60).values())
    assert set(job.state_ports) < set(doors)
    for port in doors:
        assert STRANGERS[name](Stranger(job.authority, bomb, port)) == b""
    wait_until(lambda: len(refusals()) >= len(doors))
    assert job.answers()
    assert len(refusals()) == len(doors), refusals()
    assert not mark.exists()
    assert job.doors() == doors
    assert not any(record.lost for record in job.records)


def as_nobody(act: Callable[[], object]) -> str:
    """Run ``act`` in a process of another user; what it raised, as text."""
    "localhost".encode("idna")  # imported now: the other user may not see where Python lies
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            act()
        except BaseException:
            os.write(write, traceback.format_exc().encode()[-4000:])
        os._exit(0)
    os.close(write)
    with open(read, "rb") as file:
        said = file.read().decode()
    os.waitpid(pid, 0)
    return said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_of_the_node_gets_at_nothing(job, refusals, tmp_path, wait_until):
    doors = job.doors()
    pids = job.pids()
    folder = os.open(job.folder, os.O_PATH)  # past the folders above it, which may be closed too
    here = f"/proc/self/fd/{folder}"
    tries: list[Callable[[], object]] = [
        lambda: os.listdir(here),
        *(
            lambda path=path: open(os.path.join(here, path)).close()
            for path in ("events.jsonl", "identity/ca.pem", "identity/host-0.pem", "logs/node0.log")
        ),
        lambda: open(f"{here}/new", "w").close(),
    ]
    for pid in pids:
        tries += [
            lambda pid=pid: os.listdir(f"/proc/{pid}/fd"),
            lambda pid=pid: Path(f"/proc/{pid}/environ").read_bytes(),
            lambda pid=pid: os.open(f"/proc/{pid}/mem", os.O_RDONLY),
            lambda pid=pid: os.kill(pid, signal.SIGTERM),
        ]

    def act() -> None:
        for number, attempt in enumerate(tries):
            with contextlib.suppress(PermissionError):
                attempt()
                raise AssertionError(f"attempt {number} succeeded")
        for port in doors:
            assert Stranger(job.authority, b"", port).shout(b"SM" + bytes(100)) == b""

    assert as_nobody(act) == ""
    os.close(folder)
    wait_until(lambda: len(refusals()) >= len(doors))
    assert job.answers()
    assert len(refusals()) == len(doors)


def test_thousands_of_connections_cost_a_few_lines_and_the_job_goes_on(job, refusals):
    doors = job.doors()
    others = set(doors.values()) - {os.getpid()}
    for port in doors:
        stranger = Stranger(job.authority, b"", port)
        for _ in range(1000):
            stranger.connect().close()
        with contextlib.ExitStack() as held:
            for _ in range(300):
                held.enter_context(stranger.connect())
            assert job.answers()
            assert all(len(os.listdir(f"/proc/{pid}/fd")) < 300 for pid in others)
    assert job.answers()
    assert len(refusals()) <= 22 * len(doors)


def secrets_of(job: Job) -> list[bytes]:
    """Lines of every private key that is in use, and what marks one."""
    keys = [path.read_bytes() for path in (job.folder / "identity").glob("host-*.pem")]
    keys += job.witnesses.key.call().get(60).values()
    lines = [line for key in keys for line in key.partition(b"PRIVATE KEY")[2].splitlines()]
    return [b"PRIVATE KEY", *{line for line in lines if len(line) > 20 and b"-" not in line}]


def test_no_secret_is_in_an_argument_a_variable_a_log_or_a_file_others_may_read(job):
    secrets = secrets_of(job)
    assert len(secrets) > 6
    pids = job.pids()
    assert len(pids) >= 7
    for pid in pids:
        for what in ("cmdline", "environ"):
            text = Path(f"/proc/{pid}/{what}").read_bytes()
            assert not [secret for secret in secrets if secret in text]
    identity = job.folder / "identity"
    assert stat.S_IMODE(job.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(identity.stat().st_mode) == 0o700
    for path in job.folder.rglob("*"):
        if path.parent == identity:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        elif path.is_file():
            text = path.read_bytes()
            assert not [secret for secret in secrets if secret in text], path


def test_a_host_that_is_lost_is_refused_by_all_that_are_left(
    tmp_path, refusals_of, wait_until, dial
):
    pytest.importorskip("torchft")
    with dial(tmp_path / "job") as job:
        stolen = Credentials.read(job.folder / "identity", "host-1")
        first = job.witnesses.slice(hosts=0)
        assert not first.refuses.call_one("host-1").get(60)
        job.agents[1].kill()
        wait_until(lambda: first.refuses.call_one("host-1").get(60))
        new = job.hosts.slice(hosts=0).spawn_procs(name="later").spawn("witness", Witness)
        assert new.refuses.call_one("host-1").get(60)  # one that was started after the loss
        new.serve_state.call_one().get(60)
        refusals = refusals_of(job)
        doors = job.doors()
        assert len(doors) >= 3
        for port in doors:
            assert Stranger(job.authority, b"x" * 100, port).speak(client_context(stolen)) == b""
        words = "host-1, whose certificate is revoked"
        wait_until(lambda: sum(words in line for line in refusals()) == len(doors))
        assert first.pid.call_one().get(60)
