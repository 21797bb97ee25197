"""The commands on jobs as users run them, and job folders of any kind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from slurmmesh.lab import Lab

ROOT = Path(__file__).parents[2]


@dataclass
class Shell:
    """``slurmmesh`` in a folder, with an index of jobs of its own."""

    folder: Path
    environ: Mapping[str, str]
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, *words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "slurmmesh", *words],
            cwd=self.folder,
            env=dict(self.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="surrogateescape",
            start_new_session=True,
        )
        self.running.append(process)
        return process

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.finish(self.start(*words))

    def finish(self, process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def script(self, text: str, name: str = "program.py") -> str:
        (self.folder / name).write_text(text)
        return name

    def submit(self, *words: str) -> str:
        """The id of a job in Slurm's queue."""
        controller = words[: words.index(":") + 1] if ":" in words else ()
        ours = ("--cluster=slurm", "--parsable")
        done = self.run("submit", *controller, *ours, *words[len(controller) :])
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def table(self, *words: str) -> dict[str, dict[str, Any]]:
        """What ``list --json`` says, by id."""
        done = self.run("list", "--json", *words)
        assert done.returncode == 0, done.stderr
        return {job["jobid"]: job for job in json.loads(done.stdout)["jobs"]}

    def state(self, job_id: str) -> str:
        return self.table()[job_id]["state"]

    @property
    def jobs(self) -> Path:
        return self.folder / "slurmmesh-jobs"

    def log(self, job_id: str) -> str:
        """The controller's log of a job's last attempt, empty if it is not there yet."""
        paths = sorted(self.jobs.glob(f"{job_id}/attempt-*/controller.log"))
        return paths[-1].read_text() if paths else ""

    def make_job(self, job_id: str, *attempts: dict[str, Any], **submitted: Any) -> Path:
        """A job's folder without a job: one that has ended long ago."""
        folder = self.jobs / job_id
        folder.mkdir(parents=True)
        if submitted:
            path = folder / "submit.json"
            path.write_text(json.dumps(submitted))
            if when := submitted.get("submitted"):
                os.utime(path, (when, when))
        for number, record in enumerate(attempts):
            attempt = folder if job_id.startswith("local-") else folder / f"attempt-{number}"
            attempt.mkdir(exist_ok=True)
            (attempt / "job.json").write_text(json.dumps(record))
        return folder


def _shell(folder: Path, environ: Mapping[str, str]) -> Iterator[Shell]:
    path = os.pathsep.join(filter(None, [str(ROOT), environ.get("PYTHONPATH")]))
    own = {"PYTHONPATH": path, "XDG_STATE_HOME": str(folder / "state")}
    shell = Shell(folder, {**environ, **own})
    yield shell
    for process in shell.running:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """Where no Slurm answers."""
    environ = {name: value for name, value in os.environ.items() if name != "SLURM_CONF"}
    yield from _shell(tmp_path, environ)


@pytest.fixture(scope="module")
def lab(outlives_tests: Callable[[Path], AbstractContextManager[None]]) -> Iterator[Lab]:
    """A real Slurm without accounting, shared by the tests of a module."""
    with Lab(nodes=6) as lab, outlives_tests(lab.root):
        yield lab


@pytest.fixture
def slurm(lab: Lab, tmp_path: Path) -> Iterator[Shell]:
    """In front of the lab's Slurm, with an empty queue."""
    yield from _shell(tmp_path, lab.env())
    lab.run("scancel", f"--user={os.getuid()}")


@pytest.fixture(scope="session")
def press_ctrl_c() -> Callable[[subprocess.Popen[str]], None]:
    return lambda process: os.killpg(process.pid, signal.SIGINT)
