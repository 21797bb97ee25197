"""Jobs on this machine: in the foreground, and nothing left of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurmmesh.submit.gpus import has_gpus

WaitUntil = Callable[[Callable[[], object]], None]
CtrlC = Callable[[subprocess.Popen[str]], None]

# Ends in order on Ctrl-C or SIGTERM, and says so.
ORDERLY = """
import sys, time
import slurmmesh as sm
sm.this_job().hosts
print("up", flush=True)
try:
    time.sleep(600)
finally:
    print("stopped in order", flush=True)
"""
STUBBORN = """
import signal, time
import slurmmesh as sm
sm.this_job().hosts
for signum in (signal.SIGINT, signal.SIGTERM):
    signal.signal(signum, signal.SIG_IGN)
print("up", flush=True)
while True:
    time.sleep(600)
"""


def test_a_program_with_hosts(local: Any) -> None:
    name = local.script(
        """
import os, sys
import slurmmesh as sm
job = sm.this_job()
print(job.cluster, len(job.hosts.names), job.gpus_per_node, sys.argv, os.getcwd())
print(sorted(f"{k}={v}" for k, v in os.environ.items() if k.startswith("SLURMMESH_")))
""",
        "my program.py",
    )
    done = local.run("-N", "2", "--gpus-per-node=8", "--spares=1", name, "--", "a b", "--wait")
    assert done.returncode == 0, done.stderr
    assert "running on this machine: " in done.stderr
    (folder,) = local.jobs.iterdir()
    assert folder.name.startswith("local-")
    assert done.stdout.startswith(f"running job {folder.name}\nlogs: {folder}\n")
    assert f"local 2 8 ['{name}', 'a b', '--wait'] {local.folder}" in done.stdout
    assert f"'SLURMMESH_JOB_FOLDER={folder}'" in done.stdout
    for variable in ("CLUSTER=local", "NODES=2", "SPARES=1", "GPUS_PER_NODE=8"):
        assert f"'SLURMMESH_{variable}'" in done.stdout
    assert json.loads((folder / "job.json").read_text())["exit_code"] == 0
    assert [path.stat().st_mode & 0o777 for path in (local.jobs, folder)] == [0o700, 0o700]


def test_the_exit_code_is_the_programs(local: Any) -> None:
    done = local.run("--cluster=local", local.script("raise SystemExit(7)"))
    assert done.returncode == 7
    assert "failed with exit code 7" in done.stderr
    done = local.run("--cluster=local", local.script("1/0"))
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stdout
    assert "slurmmesh: its last line: ZeroDivisionError: division by zero\n" in done.stderr


@pytest.mark.slow
def test_options_that_only_slurm_uses_are_named(local: Any) -> None:
    name = local.script("")
    done = local.run("--cluster=local", "-t", "5", "-p", "gpu", "--gpus-per-node=8", name)
    assert done.returncode == 0
    assert "slurmmesh: not used on this machine: --time, --partition\n" in done.stderr
    assert ("no GPU was found" in done.stderr) == (not has_gpus())
    assert "not used" not in local.run("--cluster=local", "-N2", name).stderr


def test_a_gpu_is_known_by_its_device(tmp_path: Path) -> None:
    (tmp_path / "nvidiactl").touch()
    assert not has_gpus(tmp_path)
    (tmp_path / "nvidia0").touch()
    assert has_gpus(tmp_path)


@pytest.mark.slow
def test_a_module(local: Any) -> None:
    (local.folder / "pkg").mkdir()
    local.script("import sys; print('module', sys.argv[1:])", "pkg/mod.py")
    done = local.run("--cluster=local", "-m", "pkg.mod", "x")
    assert done.returncode == 0, done.stderr
    assert "module ['x']" in done.stdout


@pytest.mark.slow
def test_files_of_the_user_hide_no_module_of_pythons(local: Any) -> None:
    name = local.program_among_namesakes()
    for program in ([name], ["-m", "program"]):
        done = local.run("--cluster=local", "-N2", *program)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "found beside it ['found beside it', 'found beside it']" in done.stdout


def test_parsable_prints_the_id_alone(local: Any) -> None:
    done = local.run("--cluster=local", "--parsable", local.script("print('output')"))
    (folder,) = local.jobs.iterdir()
    assert done.stdout == f"{folder.name}\n"
    assert "output" in done.stderr


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_it_in_order(
    local: Any, wait_until: WaitUntil, signum: int, code: int
) -> None:
    process = local.start("--cluster=local", "-N2", local.script(ORDERLY))
    wait_until(lambda: "up" in local.log())
    os.killpg(process.pid, signum)
    done = local.finish(process)
    assert done.returncode == code
    assert "stopped in order" in local.log()
    assert "stopping the job" in done.stderr
    assert "was stopped" in done.stderr


def test_ctrl_c_while_it_starts(local: Any, wait_until: WaitUntil, press_ctrl_c: CtrlC) -> None:
    process = local.start("--cluster=local", "-N4", local.script(ORDERLY))
    wait_until(local.jobs.exists)
    press_ctrl_c(process)
    done = local.finish(process)
    assert done.returncode == 130


@pytest.mark.slow
def test_more_ctrl_c_makes_it_harder(
    local: Any, wait_until: WaitUntil, press_ctrl_c: CtrlC
) -> None:
    process = local.start("--cluster=local", local.script(STUBBORN))
    wait_until(lambda: "up" in local.log())
    assert process.stderr is not None
    said = []
    for word in ("stopping the job", "sending it SIGTERM", "killing it"):
        press_ctrl_c(process)
        while word not in (line := process.stderr.readline()):
            assert line
            said.append(line)
    assert local.finish(process).returncode == 130


@pytest.mark.slow
def test_a_program_that_does_not_stop_is_killed(
    local: Any, wait_until: WaitUntil, press_ctrl_c: CtrlC
) -> None:
    process = local.start("--cluster=local", local.script(STUBBORN), SLURMMESH_STOP_GRACE_S="0.2")
    wait_until(lambda: "up" in local.log())
    press_ctrl_c(process)
    done = local.finish(process)
    assert done.returncode == 130
    assert "sending it SIGTERM" in done.stderr
    assert "killing it" in done.stderr


@pytest.mark.slow
def test_the_job_ends_when_submit_is_killed(local: Any, wait_until: WaitUntil) -> None:
    process = local.start("--cluster=local", "-N2", local.script(ORDERLY))
    wait_until(lambda: "up" in local.log())
    process.kill()
    local.finish(process)
    wait_until(lambda: "stopped in order" in local.log())
    (folder,) = local.jobs.iterdir()
    wait_until(lambda: json.loads((folder / "job.json").read_text()).get("exit_code") == 143)


@pytest.mark.slow
def test_what_the_program_leaves_behind_is_ended(local: Any) -> None:
    name = local.script(
        """
import subprocess
for _ in range(2):
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    print("left", child.pid, flush=True)
"""
    )
    done = local.run("--cluster=local", name)
    assert done.returncode == 0
    pids = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("left")]
    assert len(pids) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["missing.py"], "there is no script 'missing.py' in "),
        (["."], "there is no script '.' in "),
        (["-m", "no_such_module"], "there is no module 'no_such_module' for "),
        (["-N", "0", "program.py"], "--nodes 0: a job needs at least one node"),
        (["-N", "-3", "program.py"], "--nodes -3: a job needs at least one node"),
        (["-N", "9" * 20, "program.py"], "65536 are the most"),
        (["-N", "512", "--spares=1", "--cluster=local", "program.py"], "512 are the most"),
        (["--nodes=2"], "what shall run?"),
        (["-t", "soon", "program.py"], "'soon' is no time"),
    ],
)
def test_bad_input_starts_nothing(local: Any, words: list[str], told: str) -> None:
    local.script("")
    done = local.run(*words)
    assert done.returncode == 2
    assert told in done.stderr
    assert done.stderr.startswith("slurmmesh: error: ")
    assert done.stdout == ""
    assert not local.jobs.exists()


def test_a_job_root_that_cannot_be(local: Any) -> None:
    name = local.script("")
    done = local.run("--cluster=local", name, SLURMMESH_JOB_ROOT=str(local.folder / name / "x"))
    assert done.returncode == 2
    assert "Not a directory" in done.stderr
    assert "SLURMMESH_JOB_ROOT" in done.stderr
    done = local.run("--cluster=local", name, SLURMMESH_JOB_ROOT="/proc/x")
    assert done.returncode == 2
    assert "job folders cannot be made in '/proc/x'" in done.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody without permission")
def test_no_permission_in_the_job_root(local: Any) -> None:
    code = """
import os, sys
from pathlib import Path
from slurmmesh.errors import ConfigError
from slurmmesh.slurm.root import prepare_root

os.setgroups([])
os.setgid(65534)
os.setuid(65534)
for root in ("/usr", "/usr/x"):
    try:
        prepare_root(Path(root))
    except ConfigError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=local.environ, capture_output=True, text=True
    )
    assert "cannot be made in '/usr': no permission to write there" in done.stdout, done.stderr
    assert "cannot be made in '/usr/x': Permission denied" in done.stdout


@pytest.fixture
def small_disk(local: Any) -> Iterator[Path]:
    """A job root on a disk of its own, of 24 MB."""
    if os.getuid() != 0:
        pytest.skip("only root can mount")
    local.jobs.mkdir(mode=0o700)
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "none", str(local.jobs)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting is not allowed here")
    yield local.jobs
    subprocess.run(["umount", str(local.jobs)], check=True)


def test_a_full_disk_is_told_before_anything_starts(local: Any, small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(bytes(23 << 20))
    done = local.run("--cluster=local", local.script(""))
    assert done.returncode == 6
    assert f"no room for a job in {str(small_disk)!r}" in done.stderr
    assert "less than 16 MB free" in done.stderr
    assert "SLURMMESH_JOB_ROOT" in done.stderr
    assert [path.name for path in small_disk.iterdir()] == ["ballast"]


@pytest.mark.slow
def test_a_disk_that_fills_up_is_told_when_the_job_has_failed(local: Any, small_disk: Path) -> None:
    name = local.script(
        """
import os
with open(os.path.join(os.environ["SLURMMESH_JOB_FOLDER"], "ballast"), "wb", 0) as file:
    while True:
        file.write(bytes(1 << 16))
"""
    )
    done = local.run("--cluster=local", name)
    assert done.returncode == 1
    (folder,) = small_disk.iterdir()
    assert f"nothing more can be written to {folder}: No space left on device" in done.stderr


@pytest.mark.slow
def test_a_folder_with_a_hostile_name_and_a_poor_locale(local: Any) -> None:
    local.folder = local.folder / "a b'\"$x\nö"
    local.folder.mkdir()
    name = local.script("import sys; print(sys.argv[1:])", "prö gram.py")
    done = local.run("--cluster=local", name, "--", "ö\n'\"", LC_ALL="C")
    assert done.returncode == 0, done.stderr
    assert ascii(["ö\n'\""]) in local.log() or str(["ö\n'\""]) in local.log()


def test_a_current_folder_that_is_gone(local: Any) -> None:
    gone = local.folder / "gone"
    gone.mkdir()
    done = subprocess.run(
        ["bash", "-c", f"cd {gone} && rmdir {gone} && exec {local.python} --cluster=local x.py"],
        env=local.environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "no longer exists" in done.stderr
