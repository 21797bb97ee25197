"""The command as users run it: a process, in a work folder, with or without a Slurm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from slurmmesh.lab import Lab

ROOT = Path(__file__).parents[2]


@dataclass
class Command:
    """``python -m slurmmesh.submit`` in a folder."""

    folder: Path
    environ: Mapping[str, str]
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    python = f"{sys.executable} -m slurmmesh.submit"

    def start(self, *words: str, **environ: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "slurmmesh.submit", *words],
            cwd=self.folder,
            env={**self.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Tests signal it as a terminal does: the whole foreground group.
            start_new_session=True,
        )
        self.running.append(process)
        return process

    def run(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return self.finish(self.start(*words, **environ))

    def finish(self, process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def script(self, text: str, name: str = "program.py") -> str:
        (self.folder / name).write_text(text)
        return name

    def program_among_namesakes(self) -> str:
        """A program with hosts, beside modules called as those of Python's that we need."""
        for name in ("json", "queue", "subprocess", "argparse", "selectors", "socket", "ssl"):
            self.script(f"raise RuntimeError('the wrong {name}')", f"{name}.py")
        self.script("WORD = 'found beside it'", "helper.py")
        return self.script(
            """
import helper
import slurmmesh as sm

class Actor(sm.Actor):
    @sm.endpoint
    def word(self):
        import helper
        return helper.WORD

actors = sm.this_job().hosts.spawn_procs(name="procs").spawn("actor", Actor)
print(helper.WORD, list(actors.word.call().get().values()))
"""
        )

    @property
    def jobs(self) -> Path:
        return self.folder / "slurmmesh-jobs"

    def log(self, job_id: str = "*") -> str:
        """The controller's log of a job, empty if it is not there yet."""
        flat = self.jobs.glob(f"{job_id}/controller.log")
        paths = [*flat, *self.jobs.glob(f"{job_id}/attempt-*/controller.log")]
        return paths[0].read_text() if paths else ""


def ctrl_c(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGINT)


def _command(folder: Path, environ: Mapping[str, str]) -> Iterator[Command]:
    path = os.pathsep.join(filter(None, [str(ROOT), environ.get("PYTHONPATH")]))
    command = Command(folder, {**environ, "PYTHONPATH": path})
    yield command
    for process in command.running:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Command]:
    """Where no Slurm answers."""
    environ = {name: value for name, value in os.environ.items() if name != "SLURM_CONF"}
    yield from _command(tmp_path, environ)


@pytest.fixture(scope="module")
def lab(outlives_tests: Callable[[Path], AbstractContextManager[None]]) -> Iterator[Lab]:
    """A real Slurm of four nodes, shared by the tests of a module."""
    with Lab(nodes=4) as lab, outlives_tests(lab.root):
        yield lab


@pytest.fixture
def slurm(lab: Lab, tmp_path: Path) -> Iterator[Command]:
    """In front of the lab's Slurm, with an empty queue."""
    yield from _command(tmp_path, lab.env())
    lab.run("scancel", f"--user={os.getuid()}")


@pytest.fixture(scope="session")
def press_ctrl_c() -> Callable[[subprocess.Popen[str]], None]:
    return ctrl_c
