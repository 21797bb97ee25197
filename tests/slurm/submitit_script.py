"""A script as users of submitit have it, after submitit's own examples. Its one argument is the
cluster. What it prints last, as JSON, is to be the same wherever it runs.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from operator import add, truediv
from pathlib import Path

import submitit

STATE = Path("training").absolute()


class Training(submitit.helpers.Checkpointable):
    """Trains for some epochs. It is interrupted in one of them, the first time it gets there."""

    def __init__(self) -> None:
        self.epoch = 0
        self.attempts = 0

    def __call__(self, epochs: int, stop_at: int) -> dict[str, int]:
        self.attempts += 1
        print(f"training from epoch {self.epoch}", flush=True)
        while self.epoch < epochs:
            self.epoch += 1
            if self.epoch == stop_at and self.attempts == 1:
                STATE.touch()
                time.sleep(600)
        return {"epochs": self.epoch, "attempts": self.attempts}


class Careful:
    """Brings its own checkpoint method, which goes on with something else."""

    def __call__(self, marker: str) -> str:
        Path(marker).touch()
        time.sleep(600)
        return "not interrupted"

    def checkpoint(self, marker: str) -> submitit.helpers.DelayedSubmission:
        return submitit.helpers.DelayedSubmission(add, "went on after ", Path(marker).name)


def place() -> list[object]:
    env = submitit.JobEnvironment()
    dist = submitit.helpers.TorchDistributedEnvironment().export()
    assert os.environ["MASTER_ADDR"] == env.hostnames[0] == dist.master_addr
    assert env.paths.stdout.exists()
    return [
        env.global_rank,
        env.local_rank,
        env.node,
        env.num_tasks,
        env.num_nodes,
        len(env.hostnames),
        dist.rank,
        dist.world_size,
        dist.local_rank,
        dist.local_world_size,
        os.environ["LOCAL_RANK"],
    ]


def speak() -> str:
    print("to stdout")
    print("to stderr", file=sys.stderr)
    return os.getcwd()


def power(base: int, *, exponent: int = 1) -> int:
    return base**exponent


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.05)


async def results_of(jobs: list) -> list:
    return [await job.awaitable().result(poll_interval=0.1) for job in jobs]


def main(cluster: str) -> None:
    told: dict[str, object] = {}
    executor = submitit.AutoExecutor("logs/%j", cluster=cluster, slurm_max_num_timeout=2)
    executor.update_parameters(
        name="example",
        timeout_min=4,
        mem_gb=1,
        cpus_per_task=1,
        slurm_partition="main",
        slurm_array_parallelism=2,
        slurm_setup=["export SETUP=done"],
        slurm_srun_args=["--cpu-bind=none"],
        slurm_signal_delay_s=30,
    )
    # What takes long goes first.
    training = executor.submit(Training(), 5, stop_at=3)
    careful = executor.submit(Careful(), str(STATE.with_name("careful")))

    job = executor.submit(add, 5, 7)
    told["result"] = job.result()
    told["exception of a good one"] = job.exception()
    told["done"] = job.done()
    told["tasks"] = job.num_tasks
    told["the job is its task"] = job.task(0) is job
    told["submission"] = [job.submission().function is add, *job.submission().args]
    told["folder has the id"] = job.paths.folder.name == job.job_id
    names = ("stdout", "stderr", "submitted_pickle", "result_pickle", "submission_file")
    told["files"] = [getattr(job.paths, name).exists() for name in names]

    job = executor.submit(truediv, 1, 0)
    try:
        job.result()
    except submitit.core.utils.FailedJobError as error:
        told["error"] = "ZeroDivisionError: division by zero" in str(error)
    told["kind"] = type(job.exception()).__name__
    told["trace on stderr"] = "ZeroDivisionError" in (job.stderr() or "")

    jobs = executor.map_array(power, range(5))
    told["array"] = [job.result() for job in jobs]
    told["ids"] = [job.job_id.rpartition("_")[2] for job in jobs]
    told["one array"] = len({job.job_id.rpartition("_")[0] for job in jobs})

    jobs = []
    with executor.batch():
        for exponent in (1, 2, 3):
            jobs.append(executor.submit(power, 2, exponent=exponent))
    told["batch"] = asyncio.run(results_of(jobs))
    jobs = executor.submit_array([lambda: "a", lambda: "b"])
    as_they_come = submitit.helpers.as_completed(jobs, poll_frequency=0.1)
    told["as completed"] = sorted(job.result() for job in as_they_come)

    sequence = submitit.helpers.FunctionSequence()
    sequence.add(add, 1, 2)
    sequence.add(power, 3, exponent=2)
    told["sequence"] = executor.submit(sequence).result()
    command = submitit.helpers.CommandFunction(["echo", "hello"])
    told["command"] = executor.submit(command).result()

    job = executor.submit(speak)
    told["cwd"] = job.result() == os.getcwd()
    told["stdout"] = "to stdout" in (job.stdout() or "")
    told["stderr"] = "to stderr" in (job.stderr() or "")
    executor.update_parameters(stderr_to_stdout=True)
    job = executor.submit(speak)
    job.wait()
    told["both"] = [all(f"to std{x}" in (job.stdout() or "") for x in ("out", "err")), job.stderr()]

    executor.update_parameters(nodes=2, tasks_per_node=2, stderr_to_stdout=False)
    job = executor.submit(place)
    told["places"] = job.results()
    told["third"] = job.task(2).result()
    told["all tasks"] = [job.num_tasks, job.done(), (job.stdout() or "").count("Starting with")]

    wait_for(STATE)
    training._interrupt(timeout=True)
    wait_for(STATE.with_name("careful"))
    careful._interrupt()
    told["training"] = training.result()
    told["its log"] = [f"from epoch {n}" in (training.stdout() or "") for n in (0, 3)]
    told["timeouts left"] = training.submission()._timeout_countdown
    told["careful"] = careful.result()
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1])
