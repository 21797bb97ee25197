"""The leak check of conftest.py: what it finds, what it lets pass, and that it cleans up."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LEAKS = """
import os, signal, socket, subprocess, sys, tempfile, threading
import pytest

kept = []

def test_orphan():
    subprocess.run(["sh", "-c", "sleep 1000 & echo $! > orphan.pid"], check=True)

def test_child_with_a_port():
    child = subprocess.Popen([sys.executable, "-c", '''
import socket, sys
with socket.create_server(("127.0.0.1", 0)) as server:
    print(flush=True)
    sys.stdin.read()
'''], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.stdout.readline()
    kept.append(child)

def test_zombie():
    if os.fork() == 0:
        os._exit(0)

def test_listening_socket():
    kept.append(socket.create_server(("127.0.0.1", 0)))

def test_thread():
    threading.Thread(target=threading.Event().wait, name="stays", daemon=True).start()

def test_file():
    tempfile.mkstemp(prefix="forgotten")

def test_only_a_cycle_holds_it():
    cycle = [open(__file__)]
    cycle.append(cycle)

def test_closing(tmp_path):
    subprocess.Popen(["sh", "-c", "sleep 0.3 & exit 0"]).wait()
    (tmp_path / "file").touch()

@pytest.fixture(scope="module")
def shared(outlives_tests, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared")
    with outlives_tests(folder):
        service = subprocess.Popen(["sleep", "1000"], cwd=folder)
        yield folder
        service.kill()
        service.wait()
        os.kill(int((folder / "pid").read_text()), signal.SIGKILL)

def test_shared_service(shared):
    (shared / "log").touch()
    subprocess.Popen(["sh", "-c", f"tail -f {shared}/log & echo $! > {shared}/pid"]).wait()

@pytest.fixture(scope="session")
def lasting(outlives_modules, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lasting")
    with outlives_modules(folder):
        service = subprocess.Popen(["sleep", "1000"], cwd=folder)
        yield folder
        service.kill()
        service.wait()

def test_lasting_service(lasting):
    subprocess.Popen(["sh", "-c", "sleep 1000 & echo $! > left.pid"]).wait()

def test_last():
    pass
"""

CRASH = """
import os, subprocess

def test_crash():
    subprocess.run(["sh", "-c", "sleep 1000 & echo $! > orphan.pid"], check=True)
    os.abort()
"""

SKIPPED = """
import pytest

@pytest.mark.slurm
def test_needs_slurm():
    pytest.skip("no slurmctld")

@pytest.mark.requires_cuda
def test_needs_a_gpu():
    pytest.skip("no GPU")
"""


def run_pytest(folder: Path, program: str, *options: str) -> tuple[int, str]:
    """Run a program of tests under the check; return pytest's exit code and what it printed."""
    here = Path(__file__).parent
    shutil.copy(here / "conftest.py", folder)
    shutil.copy(here.parent / "pyproject.toml", folder)
    (folder / "test_program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, "test_program.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(here.parent)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["-n0", "-n1"])
def test_each_leak_fails_its_own_test_by_name(tmp_path: Path, workers: str) -> None:
    code, printed = run_pytest(tmp_path, LEAKS, "--closing-time=0.5", workers)
    assert code == 1, printed
    found = dict(re.findall(r"::(\w+) left behind:\n((?:  .*\n)+)", printed))
    assert set(found) == {
        "test_orphan",
        "test_child_with_a_port",
        "test_zombie",
        "test_listening_socket",
        "test_thread",
        "test_file",
        "test_lasting_service",
    }, printed
    assert "sleep 1000" in found["test_orphan"]
    assert re.search(
        r"process \d+: .*listening tcp 127\.0\.0\.1:\d+", found["test_child_with_a_port"]
    )
    assert "nobody waited for it" in found["test_zombie"]
    assert re.search(
        r"descriptor \d+ -> listening tcp 127\.0\.0\.1:\d+", found["test_listening_socket"]
    )
    assert "stays" in found["test_thread"]
    assert "/forgotten" in found["test_file"]
    assert "11 passed, 7 errors" in printed
    assert not is_running(tmp_path / "orphan.pid")


def test_a_crash_of_pytest_leaves_no_process(tmp_path: Path) -> None:
    code, printed = run_pytest(tmp_path, CRASH)
    assert code == 134, printed
    assert not is_running(tmp_path / "orphan.pid")


@pytest.mark.slow
def test_a_crash_of_a_worker_leaves_no_process(tmp_path: Path) -> None:
    code, printed = run_pytest(tmp_path, CRASH, "-n1")
    assert code == 1, printed
    assert "crashed while running 'test_program.py::test_crash'" in printed
    assert not is_running(tmp_path / "orphan.pid")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--require-slurm", "skipped, but this run requires Slurm: Skipped: no slurmctld"),
        ("--require-cuda", "skipped, but this run requires an NVIDIA GPU: Skipped: no GPU"),
    ],
)
def test_a_skipped_test_fails_where_what_it_needs_is_required(
    tmp_path: Path, option: str, told: str
) -> None:
    assert run_pytest(tmp_path, SKIPPED)[0] == 0
    code, printed = run_pytest(tmp_path, SKIPPED, option)
    assert code == 1
    assert told in printed
    assert "1 failed, 1 skipped" in printed


def is_running(pid_file: Path) -> bool:
    try:
        os.kill(int(pid_file.read_text()), 0)
    except ProcessLookupError:
        return False
    return True
