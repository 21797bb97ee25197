"""Steps of a real allocation, through submitit."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from submitit.core import utils

from slurmmesh.errors import SetupError, UsageError
from slurmmesh.lab import Lab
from slurmmesh.slurm.allocation import Allocation
from slurmmesh.slurm.steps import StepExecutor, StepParameters

ROOT = Path(__file__).parents[2]
ALLOCATION = Allocation("12", ("n1", "n2", "n3"), (64, 64, 32), "n1")
ENVIRON = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n[1-3]"}


@pytest.mark.slow
@pytest.mark.slurm
def test_functions_run_as_steps_where_they_are_told(in_an_allocation: Callable[..., Any]) -> None:
    told = in_an_allocation(
        """
        def look(x):
            print("hello from a step", flush=True)
            names = ("SLURMD_NODENAME", "SLURM_CPUS_PER_TASK", "ROCR_VISIBLE_DEVICES", "LEAK")
            return [x, *(os.environ.get(name) for name in names)]

        os.environ["SLURM_MEM_PER_CPU"] = "1"      # as a user's shell or a batch step may have it
        os.environ["SLURM_CPU_BIND"] = "mask_cpu:0x1"
        os.environ["SRUN_DEBUG"] = "9"
        os.environ["LEAK"] = "kept"
        allocation = Allocation.from_env()
        jobs = []
        for node in allocation.nodes:
            executor.update_parameters(nodelist=node, gpus_per_node=2, cpus_per_task=3)
            jobs.append(executor.submit(look, node))
        results = [job.result() for job in jobs]
        until(lambda: all(job.poll() == 0 for job in jobs))
        print(json.dumps({
            "allocation": [allocation.cpus, [own.address for own in allocation.own_addresses()]],
            "results": results,
            "states": [job.state for job in jobs],
            "output": "hello from a step" in jobs[0].stdout(),
            "said": jobs[0].srun_messages(),
            "end": jobs[0].describe_exit(),
        }))
        """,
        "--nodes=3",
        "--cpus-per-task=6",
        "--gpus-per-node=mi300x:4",
    )
    nodes = [f"node{i}" for i in (1, 2, 3)]
    assert told["allocation"] == [[6, 6, 6], ["127.0.0.1"]]
    assert told["results"] == [[node, node, "3", "0,1", "kept"] for node in nodes]
    assert told["states"] == ["COMPLETED"] * 3
    assert told["output"]
    assert told["said"] == ""
    assert told["end"] == "its srun exited with code 0"


@pytest.mark.slow
@pytest.mark.slurm
def test_what_is_not_asked_for_is_all_that_the_job_has(
    in_an_allocation: Callable[..., Any],
) -> None:
    told = in_an_allocation(
        """
        look = lambda: [os.environ["SLURM_CPUS_PER_TASK"], os.environ["ROCR_VISIBLE_DEVICES"]]
        executor.update_parameters(nodelist=Allocation.from_env().nodes[0])
        jobs = [executor.submit(look) for _ in range(3)]   # side by side on one node
        results = [job.result() for job in jobs]
        until(lambda: all(job.poll() == 0 for job in jobs))
        print(json.dumps(results))
        """,
        "--nodes=2",
        "--cpus-per-task=6",
        "--gpus-per-node=2",
    )
    assert told == [["6", "0,1"]] * 3


@pytest.mark.slow
@pytest.mark.slurm
def test_steps_that_fail_die_or_are_cancelled(in_an_allocation: Callable[..., Any]) -> None:
    told = in_an_allocation(
        """
        def fail(): raise ValueError("the reason")
        def die(): os.kill(os.getpid(), signal.SIGKILL)
        def stay():
            Path("pid").write_text(str(os.getpid()))
            time.sleep(600)

        jobs = [executor.submit(function) for function in (fail, die, stay)]
        lasting = jobs[2]
        until(lambda: Path("pid").exists() and Path("pid").read_text())
        alive = lasting.state, lasting.done(), lasting.poll(), lasting.describe_exit()
        descriptor = lasting.pidfd()
        lasting.cancel()
        os.close(descriptor)
        pid = int(Path("pid").read_text())
        until(lambda: not Path(f"/proc/{pid}").exists())
        errors = [type(job.exception()).__name__ for job in jobs]
        until(lambda: all(job.wait_exit(0) for job in jobs))   # a result is known before that
        print(json.dumps({
            "alive": alive,
            "errors": errors,
            "reason": "the reason" in str(jobs[0].exception()),
            "states": [job.state for job in jobs],
            "codes": [job.poll() for job in jobs],
            "ends": [job.describe_exit() for job in jobs],
            "done": all(job.done() for job in jobs),
        }))
        """,
    )
    assert told["alive"] == ["RUNNING", False, None, ""]
    assert told["errors"] == ["FailedJobError", "StepDied", "StepDied"]
    assert told["reason"]
    assert told["states"] == ["FAILED", "FAILED", "CANCELLED"]
    assert told["codes"][:2] == [1, 137]
    assert "Exited with exit code 1" in told["ends"][0]
    assert "Killed" in told["ends"][1]
    assert told["done"]


@pytest.mark.slow
@pytest.mark.slurm
def test_an_end_is_seen_at_once_by_the_pidfd(in_an_allocation: Callable[..., Any]) -> None:
    told = in_an_allocation(
        """
        import select
        job = executor.submit(lambda: 7)
        descriptor = job.pidfd()
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        ready = bool(poller.poll(30_000))
        os.close(descriptor)
        code = job.poll()
        try:
            job.pidfd()
        except ProcessLookupError:
            gone = True
        print(json.dumps([ready, code, gone, job.result()]))
        """,
    )
    assert told == [True, 0, True, 7]


@pytest.mark.slow
@pytest.mark.slurm
def test_a_ctrl_c_at_the_terminal_does_not_reach_the_steps(
    in_an_allocation: Callable[..., Any],
) -> None:
    told = in_an_allocation(
        """
        signal.signal(signal.SIGINT, lambda *_: None)
        def stay():
            Path("up").touch()
            until(Path("go on").exists)
            return "still here"
        job = executor.submit(stay)
        until(Path("up").exists)
        os.killpg(0, signal.SIGINT)           # what a terminal does
        Path("go on").touch()
        print(json.dumps(job.result()))
        """,
    )
    assert told == "still here"


@pytest.mark.slow
@pytest.mark.slurm
def test_a_step_of_several_nodes(in_an_allocation: Callable[..., Any]) -> None:
    told = in_an_allocation(
        """
        from submitit import JobEnvironment
        def look():
            env = JobEnvironment()
            return [env.global_rank, env.num_tasks, env.num_nodes, list(env.hostnames), env.cluster]
        executor.update_parameters(nodes=2, ntasks_per_node=2)
        print(json.dumps(executor.submit(look).results()))
        """,
        "--nodes=2",
        "--ntasks-per-node=2",
    )
    hosts = ["node1", "node2"]
    assert told == [[rank, 4, 2, hosts, "slurmmesh"] for rank in range(4)]


@pytest.mark.slurm
@pytest.mark.slow
def test_the_death_of_one_node_leaves_the_other_steps(
    tmp_path: Path, preamble: str, wait_until: Callable[[Callable[[], object]], None]
) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        preamble
        + textwrap.dedent(
            """
            def stay():
                until(Path("go on").exists)
                return os.environ["SLURMD_NODENAME"]
            jobs = []
            for node in Allocation.from_env().nodes:
                executor.update_parameters(nodelist=node)
                jobs.append(executor.submit(stay))
            until(lambda: all(job.paths.stdout.exists() for job in jobs))
            Path("up").touch()
            print(json.dumps(jobs[0].result()))
            """
        )
    )
    batch = f"#!/bin/bash\nexec {sys.executable} {script}\n"
    options = ("--nodes=2", "--no-kill", "--output=out")
    with Lab(nodes=2, slurmd_timeout_s=3) as lab:
        lab.run("sbatch", *options, input=batch, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})
        wait_until((tmp_path / "up").exists)
        lab.kill_node("node2")
        lab.wait_state("node2", "down")
        (tmp_path / "go on").touch()
        wait_until(lambda: '"node1"' in (tmp_path / "out").read_text())


def test_outside_of_an_allocation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert StepExecutor.affinity() == -1
    with pytest.raises(SetupError, match="no Slurm allocation"):
        StepExecutor(tmp_path / "steps")


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"nodes": 4}, "job 12 has 3"),
        ({"nodes": 0}, "nodes=0: a step needs a number of 1 or more"),
        ({"nodelist": "n[3-4]"}, "n4: no node of job 12"),
    ],
)
def test_steps_that_do_not_fit(parameters: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        StepParameters(**parameters).srun_options(ALLOCATION)


def test_unknown_parameters(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\['gpu'\] .* 'gpus_per_node'"):
        StepExecutor(tmp_path, environ=ENVIRON).update_parameters(gpu=1)


def test_the_options_of_srun() -> None:
    options = StepParameters(
        job_name="host 3",
        nodes=2,
        ntasks_per_node=4,
        nodelist="n[2-3]",
        gpus_per_node="mi300x:8",
        mem_gb=1.5,
        time=10,
    ).srun_options(ALLOCATION)
    assert {
        "--overlap",
        "--no-kill",
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--nodes=2",
        "--ntasks=8",
        "--cpus-per-task=8",
        "--job-name=host 3",
        "--nodelist=n2,n3",
        "--gpus-per-node=mi300x:8",
        "--mem=1536M",
        "--time=10:00",
    } <= set(options)


@pytest.mark.slow
@pytest.mark.slurm
def test_submitits_auto_executor_finds_it(in_an_allocation: Callable[..., Any]) -> None:
    told = in_an_allocation(
        """
        import submitit
        from submitit.core import plugins
        if StepExecutor.name() not in plugins.get_executors():   # a checkout is not installed
            plugins.get_executors()[StepExecutor.name()] = StepExecutor
        executor = submitit.AutoExecutor("steps", cluster="slurmmesh")
        executor.update_parameters(name="mine", timeout_min=1, cpus_per_task=1, tasks_per_node=1)
        jobs = executor.map_array(lambda a, b: a + b, [1, 2], [10, 20])
        print(json.dumps([job.result() for job in jobs]))
        """,
    )
    assert told == [11, 22]


def test_a_step_of_another_process(tmp_path: Path) -> None:
    from slurmmesh.slurm.steps import StepJob

    job: StepJob[None] = StepJob(tmp_path, "12.0.abc")
    assert job.state == "UNKNOWN"
    with pytest.raises(SetupError, match="another process"):
        job.poll()
    assert isinstance(job.paths, utils.JobPaths)


@pytest.mark.slow
def test_what_a_step_loads_is_light() -> None:
    """It starts once per task: what it does not need, it does not load."""
    code = (
        "import sys, slurmmesh.slurm.step_main; "
        "print({'jinja2', 'rich', 'slurmmesh.config', 'slurmmesh.slurm.client'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "set()\n"
