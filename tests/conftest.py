"""Every test leaves the machine as it found it, and this file holds each test to that.

After a test there must be no process it started (orphans included), no open descriptor, no
listening socket, no thread and no file in the temp folder that was not there before. What is
still closing gets a few seconds; what then remains fails the test by name, and is ended and
removed so that later tests start clean.

A fixture wider than one test (a lab shared by a module) says ``outlives_tests(folder)``: what
works in that folder is checked when the module and the session end, not after each test. One of
the whole session says ``outlives_modules(folder)``.

The pytest process runs as the child of a small keeper (keeper.py). With ``-n`` each worker of
pytest-xdist has a keeper and a temp folder of its own.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import os
import re
import shlex
import shutil
import socket
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests import keeper

# Tests start Python thousands of times: what one process has compiled the others shall find.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# The machines are shared: how long an example takes says nothing.
settings.register_profile("shared-machine", deadline=None)
settings.load_profile("shared-machine")

# Pools that a library starts once in a process and keeps; they end with the process.
POOL_THREADS = ("OtelPeriodicExporting", "OtelBatch", "pymp-", "ThreadPoolExecutor-torch")
# Segments that links which live on keep warm for the next payload.
WARM_MEMORY = "/memfd:slurmmesh"
# Caches that libraries make in the temp folder once for all later runs.
CACHE_FILES = ("pytest-of-", "torchinductor_", "matplotlib-")

# Option, the mark of tests that then must not be skipped, and what they need.
REQUIRED = (
    ("--require-slurm", "slurm", "Slurm"),
    ("--require-cuda", "requires_cuda", "an NVIDIA GPU"),
)


# ------------------------------------------------------------------ what is there


@dataclass(frozen=True)
class Snapshot:
    """What exists now that a test could leave behind. The values describe it to a person."""

    processes: dict[tuple[int, str], str]
    descriptors: dict[tuple[str, str], str]
    threads: dict[threading.Thread, str]
    files: dict[Path, str]

    @classmethod
    def take(cls, temp: Path) -> Snapshot:
        me, parent = os.getpid(), os.getppid()
        are_others = keeper.has_children(me) or keeper.has_others(parent, me)
        tree = keeper.descendants(parent) if are_others else {}
        return cls(
            processes={key: state for key, state in tree.items() if key[0] != me},
            descriptors={key: key[1] for key in _open_descriptors(me)},
            threads={t: t.name for t in threading.enumerate()},
            files={path: path.name for path in temp.iterdir()},
        )

    def since(self, before: Snapshot) -> Snapshot:
        """Only what is here and was not there before."""
        return Snapshot(
            {k: v for k, v in self.processes.items() if k not in before.processes},
            {k: v for k, v in self.descriptors.items() if k not in before.descriptors},
            {
                k: v
                for k, v in self.threads.items()
                if k not in before.threads and not v.startswith(POOL_THREADS)
            },
            {
                k: v
                for k, v in self.files.items()
                if k not in before.files and not v.startswith(CACHE_FILES) and not _is_probe(k)
            },
        )

    def without(self, folders: list[Path]) -> Snapshot:
        """Leave out what works in one of these folders."""
        if not folders:
            return self
        return Snapshot(
            {k: v for k, v in self.processes.items() if not _works_in(k[0], folders)},
            {
                k: v
                for k, v in self.descriptors.items()
                if not _inside(k[1], folders) and not k[1].startswith(WARM_MEMORY)
            },
            self.threads,
            {k: v for k, v in self.files.items() if not _inside(str(k), folders)},
        )

    def plus(self, other: Snapshot) -> Snapshot:
        return Snapshot(
            {**self.processes, **other.processes},
            {**self.descriptors, **other.descriptors},
            {**self.threads, **other.threads},
            {**self.files, **other.files},
        )

    def __bool__(self) -> bool:
        return bool(self.processes or self.descriptors or self.threads or self.files)

    def describe(self) -> str:
        sockets = _socket_addresses()
        lines = [f"process {_describe_process(*item, sockets)}" for item in self.processes.items()]
        lines += [f"descriptor {fd} -> {sockets.get(t, t)}" for fd, t in self.descriptors]
        lines += [f"thread {thread!r}" for thread in self.threads]
        lines += [f"{_file_type(path)} {path}" for path in self.files]
        return "\n".join(f"  {line}" for line in lines)

    def remove(self) -> None:
        """End and delete it. Descriptors and threads cannot be taken away safely: they stay."""
        for pid, _started in self.processes:
            keeper.kill(pid)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        for path in self.files:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _open_descriptors(pid: int) -> Iterator[tuple[str, str]]:
    """(number, target) of each, but for the ones that read /proc just now."""
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for fd in os.listdir(folder):
            with contextlib.suppress(OSError):
                target = os.readlink(f"{folder}/{fd}").removesuffix(" (deleted)")
                if not target.startswith("/proc/"):
                    yield fd, target


def _inside(path: str, folders: list[Path]) -> bool:
    return any(path == str(f) or path.startswith(f"{f}/") for f in folders)


def _is_probe(path: Path) -> bool:
    """Whether it is what tempfile writes to try a folder; one that is killed then leaves it."""
    with contextlib.suppress(OSError):
        return re.fullmatch("[a-z0-9_]{8}", path.name) is not None and path.stat().st_size <= 4
    return True  # gone meanwhile


def _works_in(pid: int, folders: list[Path]) -> bool:
    """Whether a process runs in one of the folders, names it, or has a file of it open."""
    with contextlib.suppress(OSError):
        if _inside(os.readlink(f"/proc/{pid}/cwd"), folders):
            return True
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        if any(str(f) in command for f in folders):
            return True
    if any(_inside(target, folders) for _fd, target in _open_descriptors(pid)):
        return True
    parent = _parent(pid)  # the fork server of a host whose agent has its log open
    return parent > 1 and parent != os.getpid() and _works_in(parent, folders)


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _describe_process(key: tuple[int, str], state: str, sockets: dict[str, str]) -> str:
    pid = key[0]
    if state == "Z":
        return f"{pid}: ended, but nobody waited for it"
    command = ""
    with contextlib.suppress(OSError):
        raw = Path(f"/proc/{pid}/cmdline").read_bytes() or Path(f"/proc/{pid}/comm").read_bytes()
        command = " ".join(raw.replace(b"\0", b" ").decode(errors="replace").split())
    held = (sockets[t] for _fd, t in _open_descriptors(pid) if t in sockets)
    listening = sorted({s for s in held if "listening" in s})
    return f"{pid}: {command[:300]}" + (f" ({', '.join(listening)})" if listening else "")


def _socket_addresses() -> dict[str, str]:
    """``socket:[inode]`` -> what it is and where, for TCP, UDP and unix sockets."""
    found: dict[str, str] = {}
    for protocol in ("tcp", "tcp6", "udp", "udp6"):
        with contextlib.suppress(OSError):
            for line in Path("/proc/net", protocol).read_text().splitlines()[1:]:
                fields = line.split()
                word = "listening " if fields[3] == "0A" else ""
                found[f"socket:[{fields[9]}]"] = f"{word}{protocol} {_address(fields[1])}"
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
            fields = line.split(None, 7)
            word = "listening " if fields[3] == "00010000" else ""
            where = fields[7] if len(fields) > 7 else "without a name"
            found[f"socket:[{fields[6]}]"] = f"{word}unix socket {where}"
    return found


def _address(text: str) -> str:
    """``0100007F:1F90`` -> ``127.0.0.1:8080``: the kernel prints 32-bit words in host order."""
    address, port = text.split(":")
    words = bytes.fromhex(address)
    raw = b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4))
    family = socket.AF_INET if len(raw) == 4 else socket.AF_INET6
    return f"{socket.inet_ntop(family, raw)}:{int(port, 16)}"


def _file_type(path: Path) -> str:
    with contextlib.suppress(OSError):
        mode = path.lstat().st_mode
        return "socket file" if stat.S_ISSOCK(mode) else "folder" if stat.S_ISDIR(mode) else "file"
    return "file"


# ------------------------------------------------------------------ the check


@dataclass
class LeakCheck:
    """The check of one session."""

    temp: Path
    closing_time_s: float
    modules: list[Path] = field(default_factory=list)
    sessions: list[Path] = field(default_factory=list)
    told: Snapshot = Snapshot({}, {}, {}, {})

    @contextlib.contextmanager
    def leaves_nothing(self, who: str, *shared: list[Path]) -> Iterator[None]:
        """Fail if what runs inside leaves something behind, but what works in shared folders."""
        before = Snapshot.take(self.temp)
        yield
        left = self._left(before, shared)
        if not left:
            return
        gc.collect()  # what only a reference cycle keeps open is no leak of the test
        deadline = time.monotonic() + self.closing_time_s
        while left and time.monotonic() < deadline:
            time.sleep(0.02)
            left = self._left(before, shared)
        if left:
            description = left.describe()
            left.remove()
            self.told = self.told.plus(left)
            pytest.fail(f"{who} left behind:\n{description}", pytrace=False)

    def _left(self, before: Snapshot, shared: tuple[list[Path], ...]) -> Snapshot:
        left = Snapshot.take(self.temp).since(before).since(self.told)
        return left.without(list(itertools.chain(*shared)))


_CHECK = pytest.StashKey[LeakCheck]()


@pytest.fixture(scope="session")
def leak_check(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LeakCheck]:
    """The check, with the temp folder set to one of this run alone: what appears there is ours."""
    check = request.config.stash[_CHECK]
    tmp_path_factory.getbasetemp()  # settled first, so tmp_path stays short and where it always is
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(check.temp))
        patch.setattr(tempfile, "tempdir", str(check.temp))
        yield check


Outlives = Callable[[Path], AbstractContextManager[None]]


@pytest.fixture(scope="session")
def outlives_tests(leak_check: LeakCheck) -> Outlives:
    """For fixtures of a module: ``with outlives_tests(folder): yield ...``."""
    return functools.partial(_among, leak_check.modules)


@pytest.fixture(scope="session")
def outlives_modules(leak_check: LeakCheck) -> Outlives:
    """The same for fixtures of the session."""
    return functools.partial(_among, leak_check.sessions)


@contextlib.contextmanager
def _among(folders: list[Path], folder: Path) -> Iterator[None]:
    folders.append(folder)
    try:
        yield
    finally:
        folders.remove(folder)


@pytest.fixture(scope="session", autouse=True)
def _session_leaves_nothing(leak_check: LeakCheck) -> Iterator[None]:
    with leak_check.leaves_nothing("the test session"):
        yield


@pytest.fixture(scope="session", autouse=True)
def _index_of_jobs(
    tmp_path_factory: pytest.TempPathFactory, _session_leaves_nothing: None
) -> Iterator[None]:
    """Jobs of tests are not added to the index in the user's home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _faults_do_not_end_pytest() -> None:
    """A failure that nobody hears of ends the program, which here would be all the tests."""
    import slurmmesh

    slurmmesh.unhandled_fault_hook = lambda failure: print(failure.report(), file=sys.stderr)


@pytest.fixture(scope="module", autouse=True)
def _module_leaves_nothing(
    request: pytest.FixtureRequest, leak_check: LeakCheck, _session_leaves_nothing: None
) -> Iterator[None]:
    with leak_check.leaves_nothing(f"the module {request.node.nodeid}", leak_check.sessions):
        yield


@pytest.fixture(autouse=True)
def _test_leaves_nothing(
    request: pytest.FixtureRequest, leak_check: LeakCheck, _module_leaves_nothing: None
) -> Iterator[None]:
    shared = leak_check.modules, leak_check.sessions
    with leak_check.leaves_nothing(request.node.nodeid, *shared):
        yield


@pytest.fixture(scope="session")
def wait_until() -> Callable[[Callable[[], object]], None]:
    """``wait_until(condition)``: returns when it holds, fails after a minute."""

    def wait(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, "it did not come about"
            time.sleep(0.02)

    return wait


# ------------------------------------------------------------------ hooks


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-slurm",
        action="store_true",
        help="a test marked slurm that is skipped fails: a run with Slurm must not pass without it",
    )
    parser.addoption(
        "--require-cuda",
        action="store_true",
        help="a test marked requires_cuda that is skipped fails: a run on an NVIDIA GPU",
    )
    parser.addoption(
        "--closing-time",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="how long what a test leaves behind may take to close by itself (default 5)",
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(specs: list[Any]) -> None:
    """Workers are started by the keeper: they have threads when their hooks are called."""
    for spec in specs:
        spec.python = shlex.join([sys.executable, keeper.__file__])


def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")
    keeper.let_children_have_signals()
    temp = Path(os.environ.pop(keeper.WORKERS_TEMP) if is_worker else keeper.make_temp())
    config.stash[_CHECK] = LeakCheck(temp, config.getoption("--closing-time"))
    if not is_worker:
        keeper.become_child(temp)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    for option, marker, what in REQUIRED:
        required = item.config.getoption(option) and item.get_closest_marker(marker)
        if required and report.skipped and not hasattr(report, "wasxfail"):
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
            report.outcome = "failed"
            report.longrepr = f"skipped, but this run requires {what}: {reason}"
    return report
