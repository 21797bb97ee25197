"""Steps that wait, die, are interrupted and start again, in a real allocation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from slurmmesh.lab import Lab

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

Run = Callable[..., Any]


def test_so_many_of_an_array_run_at_once_and_the_others_wait(in_an_allocation: Run) -> None:
    told = in_an_allocation(
        """
        def work(k):
            Path(f"up {k}").touch()
            until(Path(f"go {k}").exists)
            return k

        executor.update_parameters(array_parallelism=2)
        jobs = executor.map_array(work, range(5))
        until(lambda: Path("up 0").exists() and Path("up 1").exists())
        states = [job.state for job in jobs]
        over = [job.done() for job in jobs]
        jobs[2].cancel()
        cancelled = jobs[2].state, jobs[2].done(), jobs[2].poll()
        Path("go 1").touch()
        until(Path("up 3").exists)            # in the order they came, without the cancelled one
        until(lambda: jobs[1].poll() == 0)
        later = [job.state for job in jobs]
        for k in (0, 3, 4):
            Path(f"go {k}").touch()
        results = [job.result() for job in jobs if job is not jobs[2]]
        print(json.dumps({
            "states": states,
            "over": over,
            "cancelled": cancelled,
            "later": later,
            "results": results,
            "never began": not Path("up 2").exists(),
            "error": str(jobs[2].exception()),
        }))
        """
    )
    assert told["states"] == ["RUNNING"] * 2 + ["PENDING"] * 3
    assert told["over"] == [False] * 5
    assert told["cancelled"] == ["CANCELLED", True, -15]
    assert told["later"] == ["RUNNING", "COMPLETED", "CANCELLED", "RUNNING", "PENDING"]
    assert told["results"] == [0, 1, 3, 4]
    assert told["never began"]
    assert "has no result (CANCELLED): it was cancelled" in told["error"]


def test_many_steps_run_a_few_at_a_time(in_an_allocation: Run) -> None:
    told = in_an_allocation(
        """
        executor = StepExecutor("steps", max_running=4)
        running = Path("running")
        running.mkdir()
        def work(k):
            mine = running / str(k)
            mine.touch()
            most = 0
            for _ in range(30):
                most = max(most, len(list(running.iterdir())))
                time.sleep(0.01)
            mine.unlink()
            return k, most
        jobs = [executor.submit(work, k) for k in range(24)]
        waiting = sum(job.state == "PENDING" for job in jobs)
        results = [job.result() for job in jobs]
        right = [k for k, _ in results] == list(range(24))
        print(json.dumps([waiting, right, max(most for _, most in results)]))
        """
    )
    waiting, right, most = told
    assert waiting >= 16
    assert right
    assert 1 < most <= 4


def test_the_first_failure_of_several_tasks_is_told_while_the_others_run(
    in_an_allocation: Run,
) -> None:
    told = in_an_allocation(
        """
        import submitit

        def work(how):
            rank = submitit.JobEnvironment().global_rank
            print(f"rank {rank} was here", file=sys.stderr, flush=True)
            if rank == 2 and how == "raises":
                raise ValueError("of rank 2")
            if rank == 2:
                os.kill(os.getpid(), signal.SIGSEGV)
            until(Path("go on").exists)
            return rank

        executor.update_parameters(nodes=2, ntasks_per_node=2)
        jobs = [executor.submit(work, how) for how in ("raises", "dies")]
        errors = [job.exception() for job in jobs]
        try:
            jobs[0].results()
        except Exception as error:
            raised = str(error)
        before = [job.done() for job in jobs], [job.task(2).done() for job in jobs]
        Path("go on").touch()
        for job in jobs:
            job.wait()
        print(json.dumps({
            "kinds": [type(error).__name__ for error in errors],
            "raised": raised,
            "died": [errors[1].task, errors[1].signal, errors[1].code, errors[1].stderr_tail[-1:]],
            "words": str(errors[1]),
            "before": before,
            "after": [job.done() for job in jobs],
            "others": [jobs[1].task(rank).result() for rank in (0, 1, 3)],
        }))
        """,
        "--nodes=2",
        "--ntasks-per-node=2",
    )
    assert told["kinds"] == ["FailedJobError", "StepDied"]
    assert "task=2" in told["raised"]
    assert "ValueError: of rank 2" in told["raised"]
    assert told["died"] == [2, 11, None, ["rank 2 was here"]]
    assert "killed by SIGSEGV on node2" in told["words"]
    assert told["before"] == [[False, False], [True, True]]
    assert told["after"] == [True, True]
    assert told["others"] == [0, 1, 3]


def test_what_ends_without_a_result_is_told_with_its_cause(in_an_allocation: Run, lab: Lab) -> None:
    told = in_an_allocation(
        """
        def leave(code):
            print("my last words", file=sys.stderr, flush=True)
            os._exit(code)

        def no_pickle():
            return (each for each in ())

        executor.update_parameters(nodelist="node1")
        broken = StepExecutor("steps", python="/no/such/python")
        greedy = StepExecutor("steps")
        greedy.update_parameters(cpus_per_task=1000)
        lost = StepExecutor("steps")
        lost.update_parameters(nodelist="node2")
        jobs = {
            "code": executor.submit(leave, 3),
            "no code": executor.submit(leave, 0),
            "no pickle": executor.submit(no_pickle),
            "no python": broken.submit(print),
            "too much": greedy.submit(print),
            "lost": lost.submit(time.sleep, 600),
        }
        until(jobs["lost"].paths.started.exists)
        control = ["scontrol", "update", "nodename=node2"]
        subprocess.run([*control, "state=down", "reason=test"], check=True)
        errors = {name: job.exception() for name, job in jobs.items()}
        until(lambda: all(job.wait_exit(0) for job in jobs.values()))
        print(json.dumps({
            name: [type(error).__name__, error.code, jobs[name].state, str(error)]
            for name, error in errors.items()
        }))
        """,
        "--nodelist=node[1-2]",
        "--no-kill",
    )
    if lab.states()["node2"] == "down":
        lab.resume("node2")
    kinds = {name: parts[:3] for name, parts in told.items()}
    assert kinds == {
        "code": ["StepDied", 3, "FAILED"],
        "no code": ["StepDied", None, "COMPLETED"],
        "no pickle": ["StepDied", 1, "FAILED"],
        "no python": ["StepDied", 2, "FAILED"],
        "too much": ["StepDied", None, "FAILED"],
        "lost": ["StepDied", None, "NODE_FAIL"],
    }
    words = {name: parts[3] for name, parts in told.items()}
    assert "exited with code 3 on node" in words["code"]
    assert "  my last words" in words["code"]
    assert "my last words" in words["no code"]
    assert "cannot pickle 'generator' object" in words["no pickle"]
    assert "/no/such/python: No such file" in words["no python"]
    assert "it did not run\nsrun said:" in words["too much"]
    assert "More processors requested than permitted" in words["too much"]
    assert "its node failed" in words["lost"]


INTERRUPTED = """
import submitit

class Counting:
    # Counts its attempts; `lasting` of them are to be interrupted.
    def __init__(self, name, lasting, saves=True):
        self.name, self.lasting, self.saves, self.attempt = name, lasting, saves, 0

    def __call__(self, word):
        self.attempt += 1
        Path(f"{self.name} {self.attempt}").touch()
        while self.attempt <= self.lasting:
            time.sleep(0.02)
        return [word, self.attempt]

class Saving(Counting):
    def checkpoint(self, word):
        if self.saves == "raises":
            raise ValueError("disk full")
        return submitit.helpers.DelayedSubmission(self, word + "+") if self.saves else None

class Other(Counting):
    def __submitit_checkpoint__(self, word):
        return submitit.helpers.DelayedSubmission(self, word + "-")

def interrupt(job, name, attempt, timeout):
    until(Path(f"{name} {attempt}").exists)
    job._interrupt(timeout=timeout)

def ended(job):
    error = job.exception()
    return job.result() if error is None else str(error)
"""


def test_interrupted_steps_save_their_state_and_go_on(in_an_allocation: Run) -> None:
    told = in_an_allocation(
        INTERRUPTED
        + """
executor.update_parameters(time=5)          # far less than the ten minutes submitit wants
often = executor.submit(Saving("often", 5), "a")
other = executor.submit(Other("other", 1), "b")
plain = executor.submit(Counting("plain", 1), "c")
for attempt in range(1, 6):
    interrupt(often, "often", attempt, timeout=False)
interrupt(other, "other", 1, timeout=True)

# Without a method to save its state it starts from its beginning.
interrupt(plain, "plain", 1, timeout=False)
until(lambda: (plain.stdout() or "").count("Starting with") == 2 and plain.paths.started.exists())
plain._interrupt(timeout=True)

short = StepExecutor("steps", max_num_timeout=1)
short.update_parameters(time=5)
waits = StepExecutor("steps", max_running=1)
first, second = waits.submit(Saving("first", 0), "x"), waits.submit(Saving("second", 0), "y")
try:
    second._interrupt()
except ValueError as error:
    refused = str(error)
tired = short.submit(Saving("tired", 9), "d")
for attempt in (1, 2):
    interrupt(tired, "tired", attempt, timeout=True)
none = executor.submit(Saving("none", 1, saves=False), "e")
interrupt(none, "none", 1, timeout=False)
broken = executor.submit(Saving("broken", 1, saves="raises"), "f")
interrupt(broken, "broken", 1, timeout=False)
print(json.dumps({
    "often": [often.result(), often.submission()._timeout_countdown, often.job_id],
    "its log": (often.stdout() or "").count("Starting with"),
    "other": [other.result(), other.submission()._timeout_countdown],
    "plain": ended(plain),
    "tired": ended(tired),
    "none": ended(none),
    "broken": ended(broken),
    "refused": refused,
    "left": sorted(path.name for path in Path("steps").iterdir() if not path.suffix),
}))
"""
    )
    assert told["often"][:2] == [["a+++++", 6], 3]
    assert told["its log"] == 6
    assert told["other"] == [["b-", 2], 2]
    assert "Job not requeued because: timed-out and not checkpointable" in told["plain"]
    assert "in __call__" in told["plain"]  # where it was
    assert "timed-out too many times" in told["tired"]
    assert "checkpoint function returned None" in told["none"]
    assert "ValueError: disk full" in told["broken"]
    assert "is PENDING: there is nothing to interrupt" in told["refused"]
    assert told["left"] == []  # of notes between processes


def test_a_step_is_told_before_its_time_is_up(in_an_allocation: Run) -> None:
    told = in_an_allocation(
        INTERRUPTED
        + """
executor.update_parameters(time=0.05)
job = executor.submit(Saving("short", 1), "a")
print(json.dumps([job.result(), job.submission()._timeout_countdown]))
"""
    )
    assert told == [["a+", 2], 2]


def test_all_tasks_start_again_when_the_first_asks_for_it(in_an_allocation: Run) -> None:
    told = in_an_allocation(
        INTERRUPTED
        + """
class Team(submitit.helpers.Checkpointable):
    def __call__(self):
        rank = submitit.JobEnvironment().global_rank
        attempt = 2 if Path(f"rank {rank}").exists() else 1
        Path(f"rank {rank}").touch()
        if attempt == 1 and rank != 3:
            time.sleep(600)
        return rank, attempt

executor.update_parameters(nodes=2, ntasks_per_node=2)
job = executor.submit(Team())
until(lambda: all(Path(f"rank {rank}").exists() for rank in range(4)))
until(job.task(3).paths.result_pickle.exists)
job._interrupt()
print(json.dumps(job.results()))
""",
        "--nodes=2",
        "--ntasks-per-node=2",
    )
    # One that had its result already has that of the second attempt too.
    assert told == [[rank, 2] for rank in range(4)]


def test_a_function_that_does_not_let_itself_be_ended_is_started_again(
    in_an_allocation: Run,
) -> None:
    told = in_an_allocation(
        INTERRUPTED
        + """
class Stubborn(Saving):
    def __call__(self, word):
        while True:
            try:
                return super().__call__(word)
            except SystemExit:
                self.attempt -= 1

job = executor.submit(Stubborn("stubborn", 1), "a")
interrupt(job, "stubborn", 1, timeout=False)
print(json.dumps(job.result()))
"""
    )
    assert told == ["a+", 2]


def test_a_cancelled_step_is_not_started_again(in_an_allocation: Run) -> None:
    told = in_an_allocation(
        INTERRUPTED
        + """
job = executor.submit(Saving("mine", 9), "a")
until(Path("mine 1").exists)
job.cancel()
by_slurm = executor.submit(Saving("slurm", 9), "b")
until(Path("slurm 1").exists)
subprocess.run(["scancel", by_slurm.get_info()["StepID"]])
until(lambda: by_slurm.wait_exit(0))
gone = executor.submit(Saving("gone", 9), "c").cancel_at_deletion()
until(Path("gone 1").exists)
paths = gone.paths
del gone
until(paths.ended.exists)
print(json.dumps([job.state, by_slurm.state, json.loads(paths.ended.read_text())["state"]]))
"""
    )
    assert told == ["CANCELLED"] * 3


def test_what_a_script_may_ask_for(in_an_allocation: Run) -> None:
    told = in_an_allocation(
        """
        import submitit
        folder = Path("a b'\\"$x\\n\\u00f6 %d/%j").absolute()
        executor = submitit.AutoExecutor(
            folder,
            cluster="slurmmesh",
            slurmmesh_python=f"env WRAPPED=1 {sys.executable}",
            slurm_python="ignored",
        )
        executor.update_parameters(
            tasks_per_node=2,
            slurmmesh_setup=["export SETUP='a b'"],
            slurmmesh_srun_args=["--nodelist=node2"],
            slurmmesh_gpus_per_task=2,
            slurmmesh_array_parallelism=3,
            slurm_partition="nowhere",
        )
        def look():
            names = ("WRAPPED", "SETUP", "SLURMD_NODENAME", "ROCR_VISIBLE_DEVICES")
            dist = submitit.helpers.TorchDistributedEnvironment()
            return [*(os.environ[name] for name in names), dist.master_port]
        jobs = [executor.submit(look), executor.submit(look)]
        results = [job.results() for job in jobs]
        executor.update_parameters(gpus_per_node=0, tasks_per_node=1)
        executor._executor.parameters.pop("gpus_per_task")
        none = executor.submit(lambda: os.environ.get("ROCR_VISIBLE_DEVICES")).result()
        nested = StepExecutor("nested").submit(
            lambda: StepExecutor("nested").submit(lambda: "inner").result()
        ).result()
        print(json.dumps({
            "seen": [[entry[:4] for entry in result] for result in results],
            "ports": [[entry[4] for entry in result] for result in results],
            "no gpus": none,
            "nested": nested,
            "in its folder": jobs[0].paths.stdout.parent == folder.with_name(jobs[0].job_id),
            "there": jobs[0].paths.stdout.exists(),
            "files": sorted(path.name for path in folder.parent.iterdir() if path.is_file()),
        }))
        """,
        "--nodelist=node[1-2]",
        "--cpus-per-task=2",
        "--ntasks-per-node=2",
        "--gpus-per-node=4",
    )
    seen = [["1", "a b", "node2", "0,1"], ["1", "a b", "node2", "2,3"]]
    assert told["seen"] == [seen, seen]
    first, second = told["ports"]
    assert first[0] == first[1] != second[0] == second[1]
    assert told["no gpus"] is None
    assert told["nested"] == "inner"
    assert told["in its folder"]
    assert told["there"]
    assert told["files"] == []
