"""Jobs in an image, on a real Slurm; apptainer and pyxis are doubles that hide Slurm's commands."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slurmmesh.lab import Lab
from slurmmesh.slurm.job import SlurmJob

ROOT = Path(__file__).parents[2]
DOUBLES = Path(__file__).parent / "doubles"
_UNSHARE = ["unshare", *([] if os.getuid() == 0 else ["--user", "--map-root-user"]), "--mount"]

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.slow,
    pytest.mark.skipif(
        subprocess.run([*_UNSHARE, "true"], capture_output=True).returncode != 0,
        reason="the doubles need a mount namespace",
    ),
]

ACTORS = """
import json, os, queue, shutil, signal, sys, time
import slurmmesh as sm
from slurmmesh.errors import ProcDied

class Actor(sm.Actor):
    @sm.endpoint
    def look(self):
        names = ("IN_IMAGE", "MINE", "SLURMD_NODENAME", "SLURM_CONF", "PYTHONNOUSERSITE")
        return [shutil.which("srun"), *(os.environ.get(name) for name in names)]
    @sm.endpoint
    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)

hosts = sm.this_job().hosts
procs = hosts.spawn_procs(name="procs", supervise=sm.Supervision("one_for_one", max_restarts=3))
actors = procs.spawn("actor", Actor)
"""


@dataclass
class Site:
    """The lab with one of the runtimes, and a folder to work in."""

    lab: Lab
    runtime: str
    folder: Path
    bin: Path

    def job(self, program: str, *, image: str = "img.sqsh", **options: Any) -> SlurmJob:
        """A job for a program, given as its text."""
        (self.folder / "program.py").write_text(program)
        defaults: dict[str, Any] = {
            "nodes": 4,
            "env": {"PYTHONPATH": str(ROOT), "MINE": "it's $HOME, $(id)"},
        }
        return SlurmJob(
            "program.py",
            container=image,
            container_runtime=self.runtime,  # type: ignore[arg-type]
            chdir=self.folder,
            job_root=self.folder / "jobs",
            **{**defaults, **options},
        )

    def submit(self, job: SlurmJob) -> str:
        """Put it into the queue; returns its id."""
        script = self.folder / "job.sh"
        script.write_text(job.script())
        (self.folder / "jobs").mkdir(exist_ok=True)
        path = os.pathsep.join([str(self.bin), os.environ["PATH"]])
        done = self.lab.run(
            *("sbatch", "--parsable", script),
            cwd=self.folder,
            env={"PATH": path, "PYTHONPATH": str(ROOT), "LD_PRELOAD": ""},
        )
        return str(done.stdout.strip())

    def attempt(self, job_id: str) -> Path:
        return self.folder / "jobs" / job_id / "attempt-0"

    def log(self, job_id: str) -> str:
        path = self.attempt(job_id) / "controller.log"
        return path.read_text() if path.exists() else ""

    def exit_code(self, job_id: str) -> str:
        """Slurm's, as ``code:signal``; empty while it runs."""
        text = self.lab.run("scontrol", "--oneliner", "show", "job", job_id).stdout
        fields = dict(word.partition("=")[::2] for word in text.split())
        over = fields["JobState"] in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")
        return fields["ExitCode"] if over else ""


@pytest.fixture(params=["apptainer", "pyxis"])
def site(request: pytest.FixtureRequest, lab: Lab, tmp_path: Path) -> Iterator[Site]:
    folder = tmp_path / "work"
    folder.mkdir()
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    image = {"PATH": path, "IN_IMAGE": "yes", "MINE": "the image's"}
    (folder / "img.sqsh").write_text(json.dumps(image))
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    command = "apptainer" if request.param == "apptainer" else "srun"
    double = DOUBLES / f"{request.param}.py"
    (bin_folder / command).write_text(
        f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -E {shlex.quote(str(double))} "$@"\n'
    )
    (bin_folder / command).chmod(0o755)
    yield Site(lab, request.param, folder, bin_folder)
    lab.run("scancel", f"--user={os.getuid()}")


def test_actors_on_four_hosts_in_the_image(site: Site, wait_until: Callable[..., None]) -> None:
    job_id = site.submit(
        site.job(
            ACTORS
            + """
events = queue.Queue()
procs.on_event(events.put)
try:
    actors.slice(hosts=2).die.call().get()
except ProcDied as error:
    print("died:", error.cause.host)
while events.get().kind != "restarted":
    pass
seen = list(actors.look.call().get().values())
print("controller:", json.dumps([os.environ.get("IN_IMAGE"), shutil.which("sbatch")]))
print("actors:", json.dumps(seen))
sys.exit(7)
"""
        )
    )
    wait_until(lambda: site.exit_code(job_id))
    log = site.log(job_id)
    assert site.exit_code(job_id) == "7:0", log
    told = dict(line.split(": ", 1) for line in log.splitlines() if ": " in line)
    assert json.loads(told["controller"]) == ["yes", None]
    assert json.loads(told["actors"]) == [
        [None, "yes", "it's $HOME, $(id)", f"node{i}", None, "1"] for i in (1, 2, 3, 4)
    ], log
    assert told["died"] == "node3"
    record = json.loads((site.attempt(job_id) / "job.json").read_text())
    assert record["exit_code"] == 7


def test_no_value_of_env_is_shown_by_ps(site: Site, wait_until: Callable[..., None]) -> None:
    secrets = {f"TOKEN_{i}": f"secret-{i}-{'x' * 60_000}" for i in range(3)}
    job_id = site.submit(
        site.job(
            """
import os, subprocess
import slurmmesh as sm
class Actor(sm.Actor):
    @sm.endpoint
    def lengths(self):
        return [len(os.environ[f"TOKEN_{i}"]) for i in range(3)]
actors = sm.this_job().hosts.spawn_procs(name="procs").spawn("actor", Actor)
print("lengths:", *actors.lengths.call().get().values(), flush=True)
os.environ["SET_HERE"] = "secret-of-the-program"
show = "echo length of the step: ${#SET_HERE}; exec sleep 600"
subprocess.run(["srun", "--overlap", "--nodes=1", "--ntasks=1", "sh", "-c", show])
""",
            nodes=2,
            env={"PYTHONPATH": str(ROOT), **secrets},
        )
    )
    wait_until(lambda: "length of the step: 21" in site.log(job_id))
    assert "lengths: [60009, 60009, 60009] [60009, 60009, 60009]" in site.log(job_id)
    lines = command_lines()
    shown = [line for line in lines if b"secret-" in line]
    assert not shown
    # The way in was there to be seen: launcher, runtime, controller, srun, hosts.
    for word in (b"container.launcher", b"inside.py", b"srun", b"img.sqsh"):
        assert any(word in line for line in lines), word


def command_lines() -> list[bytes]:
    """What ps shows of all processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes())
    return found


def test_scancel_lets_the_program_end_in_order(site: Site, wait_until: Callable[..., None]) -> None:
    job_id = site.submit(
        site.job(
            ACTORS
            + """
print("up", flush=True)
try:
    time.sleep(600)
finally:
    print("ending in order", flush=True)
"""
        )
    )
    wait_until(lambda: "up" in site.log(job_id).splitlines())
    site.lab.run("scancel", job_id)
    record = site.attempt(job_id) / "job.json"
    wait_until(lambda: "ended" in json.loads(record.read_text()))
    wait_until(lambda: site.exit_code(job_id))
    assert json.loads(record.read_text())["exit_code"] == 143
    assert "ending in order" in site.log(job_id).splitlines()


def test_a_signal_for_the_batch_script_reaches_the_program(
    site: Site, wait_until: Callable[..., None]
) -> None:
    job_id = site.submit(
        site.job(
            """
import signal, sys, time
import slurmmesh as sm
sm.this_job().hosts
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(9))
print("up", flush=True)
time.sleep(600)
""",
            nodes=1,
        )
    )
    wait_until(lambda: "up" in site.log(job_id).splitlines())
    site.lab.run("scancel", "--batch", "--signal=USR1", job_id)
    wait_until(lambda: site.exit_code(job_id))
    assert site.exit_code(job_id) == "9:0", site.log(job_id)


def test_steps_of_the_program_s_own(site: Site, wait_until: Callable[..., None]) -> None:
    job_id = site.submit(
        site.job(
            """
import os, sys, subprocess
from slurmmesh.slurm.hostlists import expand
from slurmmesh.slurm.steps import StepExecutor
os.environ["SET_HERE"] = "a\\n$b"
def look(): return [os.environ.get(n) for n in ("SET_HERE", "IN_IMAGE", "SLURMD_NODENAME")]
def fail(): os._exit(5)
executor = StepExecutor("steps")
second = expand(os.environ["SLURM_JOB_NODELIST"])[1]
executor.update_parameters(nodelist=second)
print("step:", executor.submit(look).result() == ["a\\n$b", "yes", second])
job = executor.submit(fail)
job.wait_exit()
print("code:", job.poll(), job.srun_messages())
import time
job = executor.submit(time.sleep, 600)
while not job.paths.started.exists(): time.sleep(0.02)
job.cancel()
print("cancelled:", job.state)
for command in (["squeue", "--noheader", "--format=%i"], ["scontrol", "update", "jobid=1"],
                ["srun", "--jobid=1", "true"], ["scancel", "1"], ["srun", "--overlap"]):
    done = subprocess.run(command, capture_output=True, text=True)
    print("ran:", done.returncode, done.stdout.strip(), done.stderr.strip())
""",
            nodes=2,
        )
    )
    wait_until(lambda: site.exit_code(job_id))
    log = site.log(job_id)
    assert site.exit_code(job_id) == "0:0", log
    assert "step: True" in log
    assert re.search("code: 5 srun: error: node[2-4]: task 0: Exited with exit code 5", log)
    assert "cancelled: CANCELLED" in log
    ran = [line for line in log.splitlines() if line.startswith("ran: ")]
    assert ran[0].split() == ["ran:", "0", job_id]
    assert "is not at hand in an image" in ran[1]
    assert "--jobid=1 cannot be given to srun in an image" in ran[2]
    assert "is not at hand in an image" in ran[3]
    assert "srun without a command" in ran[4]


def test_a_killed_controller_leaves_no_step(site: Site, wait_until: Callable[..., None]) -> None:
    job_id = site.submit(
        site.job(
            ACTORS + "print('up', flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n", nodes=2
        )
    )
    wait_until(lambda: site.exit_code(job_id))
    assert site.exit_code(job_id) == "137:0", site.log(job_id)
    assert "up" in site.log(job_id).splitlines()


def test_a_killed_launcher_ends_the_job(site: Site, wait_until: Callable[..., None]) -> None:
    job_id = site.submit(
        site.job(
            ACTORS
            + """
print("up", flush=True)
time.sleep(600)
""",
            nodes=2,
        )
    )
    wait_until(lambda: "up" in site.log(job_id).splitlines())
    site.lab.run("scancel", "--batch", "--signal=KILL", job_id)
    record = site.attempt(job_id) / "job.json"
    wait_until(lambda: site.exit_code(job_id))
    wait_until(lambda: "ended" in json.loads(record.read_text()))
    assert site.exit_code(job_id) != "0:0"


def test_images_that_will_not_do(site: Site, wait_until: Callable[..., None]) -> None:
    images: dict[str, tuple[dict[str, str] | None, str]] = {
        "gone.sqsh": (None, "did not bring up the image"),
        "bare.sqsh": ({"PATH": "/usr/bin:/bin"}, "cannot load slurmmesh (No module named"),
        "empty.sqsh": ({"PATH": "/nowhere"}, "has no python3"),
    }
    ids = {}
    for image, (content, _) in images.items():
        if content is not None:
            (site.folder / image).write_text(json.dumps(content))
        ids[image] = site.submit(site.job("", image=image, nodes=1, env={}))
    wait_until(lambda: all(map(site.exit_code, ids.values())))
    for image, job_id in ids.items():
        log = site.log(job_id)
        assert site.exit_code(job_id) == "6:0", log
        assert images[image][1] in log
        assert str(site.folder / image) in log
        assert "Traceback" not in log
