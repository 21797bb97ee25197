"""Steps and programs: the one that starts them ends or is killed, and others look at them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurmmesh.lab import Lab

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
Run = Callable[..., Any]

# A program that starts steps, writes down which, and waits for its end.
OWNER = """
import submitit

class Counting(submitit.helpers.Checkpointable):
    def __init__(self, name, lasting):
        self.name, self.lasting, self.attempt = name, lasting, 0

    def __call__(self):
        self.attempt += 1
        Path(f"{self.name} {self.attempt}").touch()
        while self.attempt <= self.lasting:
            time.sleep(0.02)
        return self.attempt

OWNER = '''
import pickle
executor.update_parameters(array_parallelism=4)
jobs = executor.submit_array([Counting(name, lasting) for name, lasting in WHAT])
Path("jobs.tmp").write_bytes(pickle.dumps(jobs))
os.rename("jobs.tmp", "jobs")
time.sleep(600)
'''

def start_owner(**what):
    begin = Path("program.py").read_text().partition("OWNER = ")[0]
    Path("owner.py").write_text(begin + f"WHAT = {list(what.items())}" + OWNER)
    owner = subprocess.Popen([sys.executable, "owner.py"])
    until(Path("jobs").exists)
    return owner

# As a process that did not start the steps sees them.
LOOK = '''
import pickle, sys, submitit
jobs = pickle.loads(open("jobs", "rb").read())
'''
"""


def test_a_step_outlives_its_program_and_another_starts_it_again(in_an_allocation: Run) -> None:
    told = in_an_allocation(
        OWNER
        + """
import pickle
owner = start_owner(again=1, over=0, cancelled=9)
jobs = pickle.loads(Path("jobs").read_bytes())
until(lambda: Path("again 1").exists() and Path("cancelled 1").exists())
until(lambda: all(job.paths.started.exists() for job in jobs))
owner.kill()
owner.wait()
states = [jobs[0].state, jobs[2].state]
jobs[2].cancel(check=False)
jobs[0]._interrupt()
print(json.dumps({
    "states": states,
    "results": [jobs[0].result(), jobs[1].result()],
    "cancelled": type(jobs[2].exception()).__name__,
    "later": [job.done() for job in jobs],
    "by whom": jobs[0].poll() if jobs[0].wait_exit(60) else None,
}))
"""
    )
    assert told["states"] == ["RUNNING", "RUNNING"]
    assert told["results"] == [2, 1]
    assert told["cancelled"] == "StepDied"
    assert told["later"] == [True] * 3
    assert told["by whom"] == 0


def test_another_program_looks_cancels_and_interrupts_while_its_own_goes_on(
    in_an_allocation: Run,
) -> None:
    told = in_an_allocation(
        OWNER
        + """
import pickle
owner = start_owner(a=1, b=9, c=9, d=9, waiting=0)
jobs = pickle.loads(Path("jobs").read_bytes())
until(lambda: all(job.paths.started.exists() for job in jobs[:4]))
states = [job.state for job in jobs]
jobs[4].cancel()                             # before it has begun
never = jobs[4].state
jobs[0]._interrupt()
first = jobs[0].result()
until(lambda: jobs[0].state == "COMPLETED")
jobs[1].cancel()
info = jobs[2].get_info()
over = [job.state for job in jobs[:3]]
try:
    jobs[0]._interrupt()
except ValueError as error:
    refused = str(error)
owner.kill()
owner.wait()
print(json.dumps({
    "states": states, "never": never, "first": first, "over": over, "info": info,
    "refused": refused, "began": Path("waiting 1").exists(),
}))
"""
    )
    assert told["states"] == ["RUNNING"] * 4 + ["PENDING"]
    assert told["never"] == "CANCELLED"
    assert told["first"] == 2
    assert told["over"] == ["COMPLETED", "CANCELLED", "RUNNING"]
    assert told["info"]["State"] == "RUNNING"
    assert told["info"]["NodeList"] == "node1"
    assert "nothing to interrupt" in told["refused"]
    assert not told["began"]


def test_tasks_of_an_array_have_steps_of_their_own(
    lab: Lab, tmp_path: Path, preamble: str, wait_until: Callable[[Callable[[], object]], None]
) -> None:
    """Slurm names a step by the array and the task; the step itself knows another number."""
    program = tmp_path / "program.py"
    program.write_text(
        preamble
        + OWNER
        + """
import pickle
owner = start_owner(a=9, b=9)
jobs = pickle.loads(Path("jobs").read_bytes())
until(lambda: all(job.paths.started.exists() for job in jobs))
states = [job.state for job in jobs]
jobs[0].cancel()
states += [job.state for job in jobs]
owner.kill()
owner.wait()
Path("told.tmp").write_text(json.dumps(states))
os.rename("told.tmp", "told")
"""
    )
    batch = (
        f"#!/bin/bash\nmkdir $SLURM_ARRAY_TASK_ID && cd $SLURM_ARRAY_TASK_ID\n"
        f"cp {program} . && exec {sys.executable} program.py\n"
    )
    lab.run(
        *("sbatch", "--array=1-2", "--output=%a.out"),
        input=batch,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
    )
    for task in ("1", "2"):
        told = tmp_path / task / "told"
        wait_until(told.exists)
        assert json.loads(told.read_text()) == ["RUNNING", "RUNNING", "CANCELLED", "RUNNING"]


def test_a_program_does_not_end_before_its_steps(lab: Lab, tmp_path: Path, preamble: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        preamble
        + """
def work(k):
    time.sleep(2)
    Path(f"done {k}").touch()

executor.update_parameters(array_parallelism=2)
executor.map_array(work, range(4))
left = executor.submit(time.sleep, 600).cancel_at_deletion()
StepExecutor("steps", supervise=False).submit(time.sleep, 600)
pid = os.fork()                               # a child has no steps, and does not wait for any
if pid == 0:
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
sys.exit(5)
"""
    )
    done = lab.run(
        *("salloc", "--quiet", sys.executable, program),
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.stdout == "7\n"
    assert done.returncode == 5
    assert sorted(path.name for path in tmp_path.glob("done *")) == [f"done {k}" for k in range(4)]
    assert "of this program's steps are not over yet; it waits for them" in done.stderr


def test_the_end_of_a_job_lets_its_steps_save_their_state(
    lab: Lab, tmp_path: Path, preamble: str, wait_until: Callable[[Callable[[], object]], None]
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        preamble
        + """
import submitit
class Training:
    def __call__(self):
        Path("up").touch()
        time.sleep(600)
    def checkpoint(self):
        Path("saved").touch()
        return submitit.helpers.DelayedSubmission(self)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
job = executor.submit(Training())
error = job.exception()
Path("told.tmp").write_text(json.dumps([type(error).__name__, str(error)]))
os.rename("told.tmp", "told")
"""
    )
    batch = f"#!/bin/bash\nexec {sys.executable} {program}\n"
    job = lab.run(
        *("sbatch", "--parsable", "--output=out"),
        input=batch,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
    ).stdout.strip()
    wait_until((tmp_path / "up").exists)
    lab.run("scancel", job)
    wait_until((tmp_path / "told").exists)
    kind, words = json.loads((tmp_path / "told").read_text())
    assert (tmp_path / "saved").exists()
    assert kind == "FailedJobError"
    assert "Job not requeued because: Slurm ends it (SIGTERM)." in words
