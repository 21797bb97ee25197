"""Standard output that is closed, full, or read by nobody."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurmmesh.lab import Lab

LATER = "--begin=now+1hour"
CASES = [(">&-", 6), (">/dev/full", 6), ("| true", 141)]


def shell(command: Any, words: str, to: str) -> subprocess.CompletedProcess[str]:
    """The command with its output led elsewhere."""
    # Its reader is gone before it starts.
    wait = "until ! [ -e alive ]; do sleep 0.01; done; " if to.startswith("|") else ""
    to = to.replace("| true", "| { exec <&-; rm alive; }")
    line = f"touch alive; ({wait}exec {command.python} {words}) {to}; exit ${{PIPESTATUS[0]}}"
    return subprocess.run(
        ["bash", "-c", line],
        cwd=command.folder,
        env=command.environ,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(("to", "code"), CASES)
def test_a_job_here_that_cannot_tell_its_id_is_not_started(local: Any, to: str, code: int) -> None:
    local.script("open('ran', 'w')")
    done = shell(local, "--cluster local program.py", to)
    assert done.returncode == code, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("slurmmesh: error: standard output cannot be written: ")
    assert line.endswith("; nothing was started")
    assert list(local.jobs.iterdir()) == []
    assert not (local.folder / "ran").exists()


@pytest.mark.slow
@pytest.mark.slurm
@pytest.mark.parametrize(("to", "code"), CASES)
def test_a_submitted_job_stays_and_is_named(slurm: Any, lab: Lab, to: str, code: int) -> None:
    slurm.script("")
    done = shell(slurm, f"--cluster slurm {LATER} program.py", to)
    assert done.returncode == code, done.stderr
    (job_id,) = lab.run("squeue", "-h", "-o", "%i").stdout.split()
    (line,) = done.stderr.splitlines()
    assert f"job {job_id} was submitted, but standard output cannot be written" in line
    assert str(slurm.jobs / job_id) in line


@pytest.mark.slow
@pytest.mark.slurm
@pytest.mark.parametrize("to", [to for to, _ in CASES])
def test_wait_needs_no_output(slurm: Any, to: str) -> None:
    slurm.script("raise SystemExit(7)")
    done = shell(slurm, "--cluster slurm --wait program.py", to)
    assert done.returncode == 7, done.stderr
    assert "was submitted, but standard output cannot be written" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.slurm
@pytest.mark.parametrize(("to", "code"), [(">&-", 7), (">/dev/full", 7), ("| true", 141)])
def test_follow_without_output(slurm: Any, to: str, code: int) -> None:
    slurm.script("raise SystemExit(7)")
    done = shell(slurm, "--cluster slurm --follow program.py", to)
    assert done.returncode == code, done.stderr
    assert "was submitted, but standard output cannot be written" in done.stderr
    assert "Traceback" not in done.stderr


COUNT = "import time\nfor n in range(600):\n    print(n, flush=True)\n    time.sleep(0.1)\n"


def show_three_lines(command: Any, words: str) -> subprocess.CompletedProcess[str]:
    line = f"{command.python} {words} | head -n 3; exit ${{PIPESTATUS[0]}}"
    return subprocess.run(
        ["bash", "-c", line],
        cwd=command.folder,
        env=command.environ,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.slurm
def test_a_followed_job_goes_on_when_the_reader_goes(slurm: Any, lab: Lab) -> None:
    slurm.script(COUNT)
    done = show_three_lines(slurm, "--cluster slurm --follow program.py")
    assert done.returncode == 141, done.stderr
    (job_id,) = lab.run("squeue", "-h", "-o", "%i").stdout.split()
    assert f"job {job_id} goes on, but standard output cannot be written" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_job_here_ends_when_its_reader_goes(local: Any) -> None:
    local.script(COUNT)
    done = show_three_lines(local, "--cluster local program.py")
    assert done.returncode == 141, done.stderr
    assert "was stopped: standard output cannot be written" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("to", "code", "lines"), [(">/dev/full", 6, 1), ("| true", 141, 0)])
def test_a_script_that_cannot_be_shown(local: Any, to: str, code: int, lines: int) -> None:
    local.script("")
    done = shell(local, "--dry-run program.py", to)
    assert (done.returncode, len(done.stderr.splitlines())) == (code, lines), done.stderr


@pytest.mark.slow
def test_with_stderr_closed_stdout_has_the_id_alone(local: Any) -> None:
    local.script("raise SystemExit(3)")
    done = subprocess.run(
        ["sh", "-c", f"{local.python} --parsable --cluster local program.py 2>&-"],
        cwd=local.folder,
        env=local.environ,
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
    )
    assert done.returncode == 3
    (job_id,) = done.stdout.split()
    assert (local.jobs / job_id).is_dir()


SHOUT = """
import time
for n in range(20000):
    print("x" * 100, flush=True)
open("all said", "w").close()
time.sleep(600)
"""


def two_interrupts(
    command: Any,
    wait_until: Callable[[Callable[[], object]], None],
    *words: str,
    script: str = SHOUT,
) -> tuple[int, str]:
    """Exit code and stderr of a command whose output is not read, interrupted twice."""
    command.script(script)
    process = command.start(*words, "program.py")
    wait_until(lambda: (command.folder / "all said").exists())
    wait_until(lambda: unread(process.stdout.fileno()) > 50_000)  # of the 64 KiB of a pipe
    wait_until(lambda: waits_to_write(process.pid))
    waits = waits_to_write(process.pid)
    process.send_signal(signal.SIGINT)
    # Two at once are one: it must be back from the handler of the first.
    wait_until(lambda: waits_to_write(process.pid) > waits)
    process.send_signal(signal.SIGINT)
    code = process.wait(60)
    return code, process.stderr.read()


def unread(fd: int) -> int:
    """Bytes in a pipe."""
    return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), sys.byteorder)


def waits_to_write(pid: int) -> int:
    """How often a process has begun to wait for something; 0 while that is no reader of a pipe."""
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    writes = Path(f"/proc/{pid}/wchan").read_text().endswith("pipe_write")
    return int(fields["voluntary_ctxt_switches"]) if writes else 0


@pytest.mark.slow
def test_a_second_interrupt_ends_a_job_here_whose_output_is_not_read(
    local: Any, wait_until: Any
) -> None:
    code, told = two_interrupts(local, wait_until, "--cluster=local")
    assert code == 130, told
    assert "not all output could be shown" in told


DEAF = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
"""


@pytest.mark.slow
def test_a_job_here_that_heeds_no_signal_is_killed_though_its_output_is_not_read(
    local: Any, wait_until: Any
) -> None:
    code, told = two_interrupts(local, wait_until, "--cluster=local", script=DEAF + SHOUT)
    assert code == 130, told
    assert "sending it SIGTERM" in told
    assert "killing it" in told
    assert "not all output could be shown" in told


@pytest.mark.slow
@pytest.mark.slurm
def test_a_second_interrupt_cancels_a_followed_job_whose_output_is_not_read(
    slurm: Any, lab: Lab, wait_until: Any
) -> None:
    code, told = two_interrupts(slurm, wait_until, "--cluster=slurm", "--follow")
    assert code == 130, told
    assert "cancelling job" in told
    assert "not all output could be shown" in told
    wait_until(lambda: not lab.run("squeue", "-h", "-o", "%i").stdout.split())
