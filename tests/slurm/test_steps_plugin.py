"""Steps as a plugin of submitit: names of parameters, what is refused, what is pickled."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import submitit
from hypothesis import given
from hypothesis import strategies as st
from submitit.core import utils

from slurmmesh.errors import SetupError, SlurmmeshError, UsageError
from slurmmesh.slurm.steps import StepDied, StepExecutor, StepParameters
from slurmmesh.slurm.steps.endings import final_state, task_ends
from slurmmesh.slurm.steps.paths import StepPaths, take

ENVIRON = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n[1-3]"}


@pytest.fixture
def allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)


def auto(folder: Path, **options: Any) -> submitit.AutoExecutor:
    return submitit.AutoExecutor(folder, cluster="slurmmesh", **options)


# ------------------------------------------------------------------ parameters


@pytest.mark.usefixtures("allocated")
def test_submitits_names_ours_and_those_of_other_clusters(tmp_path: Path) -> None:
    executor = auto(tmp_path, slurmmesh_max_num_timeout=7, slurm_max_num_timeout=1)
    executor.update_parameters(
        name="mine",
        timeout_min=10,
        mem_gb=2,
        nodes=2,
        cpus_per_task=3,
        gpus_per_node=4,
        tasks_per_node=5,
        stderr_to_stdout=True,
        slurmmesh_signal_delay_s=30,
        slurmmesh_array_parallelism=6,
        slurmmesh_timeout_min=20,
        slurm_partition="dev",
        slurm_gpus_per_task=1,
        slurm_additional_parameters={"qos": "x"},
        local_setup=["true"],
    )
    assert executor.parameters == {
        "job_name": "mine",
        "time": 20,
        "mem_gb": 2,
        "nodes": 2,
        "cpus_per_task": 3,
        "gpus_per_node": 4,
        "ntasks_per_node": 5,
        "stderr_to_stdout": True,
        "signal_delay_s": 30,
        "array_parallelism": 6,
    }
    assert executor._executor.max_num_timeout == 7


@pytest.mark.usefixtures("allocated")
def test_what_a_step_cannot_have_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(NameError, match=r"'partition' for executor 'slurmmesh'.*'srun_args'"):
        auto(tmp_path).update_parameters(slurmmesh_partition="dev")
    with pytest.raises(AssertionError, match="timeout_min"):
        auto(tmp_path).update_parameters(timeout_min="10")


def test_other_clusters_keep_their_names_without_a_prefix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """submitit bears with them, for old scripts; that we are installed changes nothing."""
    (tmp_path / "srun").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    executor = submitit.AutoExecutor(tmp_path, cluster="slurm")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        executor.update_parameters(array_parallelism=3, time=4, gpus_per_task=1)
    assert executor.parameters == {"array_parallelism": 3, "time": 4, "gpus_per_task": 1}


def test_outside_of_an_allocation_it_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(SetupError, match="no Slurm allocation"):
        auto(tmp_path)


@pytest.mark.usefixtures("allocated")
def test_it_is_taken_only_when_asked_for() -> None:
    assert StepExecutor.affinity() == 0


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"ntasks_per_node": 0}, "ntasks_per_node=0: a step needs a number of 1 or more"),
        ({"time": -1}, "time=-1"),
        ({"time": float("nan")}, "time=nan"),
        ({"array_parallelism": "2"}, "array_parallelism='2'"),
        ({"setup": "module load x"}, "setup='module load x': give a list of texts"),
        ({"srun_args": [1]}, r"srun_args=\[1\]"),
    ],
)
def test_values_no_step_can_have(tmp_path: Path, parameters: dict[str, Any], words: str) -> None:
    executor = StepExecutor(tmp_path, environ=ENVIRON)
    with pytest.raises(UsageError, match=words):
        executor.update_parameters(**parameters)
    assert executor.parameters == {}


def test_no_step_could_ever_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="max_running=0"):
        StepExecutor(tmp_path, environ=ENVIRON, max_running=0)


@pytest.mark.parametrize(
    ("time", "delay", "after"),
    [(0, 90, None), (60, 90, 3510), (5, 90, 240), (1, 90, 48), (60, 0, 3600), (0.05, 90, 2.4)],
)
def test_when_a_step_is_told_that_its_time_is_nearly_up(
    time: float, delay: float, after: float | None
) -> None:
    """A fifth of its limit before the end at the latest, however short the limit is."""
    told = StepParameters(time=time, signal_delay_s=delay).warn_after_s
    assert told == (None if after is None else pytest.approx(after))


# ------------------------------------------------------------------ pickles


@pytest.fixture
def no_srun_started(tmp_path: Path) -> Iterator[Path]:
    """An executor's folder, and an srun that tells in it that it was started."""
    (tmp_path / "bin").mkdir()
    srun = tmp_path / "bin" / "srun"
    srun.write_text(f"#!/bin/bash\ntouch {tmp_path}/started\n")
    srun.chmod(0o755)
    folder = tmp_path / "steps"
    yield folder
    assert not (tmp_path / "started").exists()
    assert not folder.exists() or not list(folder.iterdir())


def executor_of(folder: Path, **options: Any) -> StepExecutor:
    environ = {**ENVIRON, "PATH": f"{folder.parent}/bin:/usr/bin:/bin"}
    return StepExecutor(folder, environ=environ, **options)


def test_pickles_that_are_too_large(no_srun_started: Path) -> None:
    executor = executor_of(no_srun_started, max_pickle_size_gb=4e-6)
    with pytest.raises(RuntimeError, match=r"5 x 0.00 GB of pickles, and 4e-06 GB are allowed"):
        executor.map_array(len, [b"x" * 1000] * 5)


def test_one_that_cannot_be_pickled_keeps_the_others_from_starting(no_srun_started: Path) -> None:
    with pytest.raises(TypeError, match="pickle"):
        executor_of(no_srun_started).map_array(print, [1, 2, threading.Lock()])


def test_an_empty_array_and_a_batch_that_breaks_start_nothing(no_srun_started: Path) -> None:
    executor = executor_of(no_srun_started)

    def batch(break_it: Callable[[Any], object]) -> None:
        with executor.batch():
            break_it(executor.submit(print))

    with pytest.warns(UserWarning, match="empty job array"):
        assert executor.map_array(print, []) == []
    with pytest.raises(ZeroDivisionError):
        batch(lambda _job: 1 / 0)
    with pytest.raises(AttributeError, match="forbidden"):
        batch(lambda job: job.job_id)
    with pytest.raises(RuntimeError, match="Changing parameters within batch"):
        batch(lambda _job: executor.update_parameters(nodes=2))
    with pytest.raises(SetupError, match="srun is not installed"):
        StepExecutor(no_srun_started, environ={**ENVIRON, "PATH": ""}).submit(print)


# ------------------------------------------------------------------ how steps end

ENDS = st.one_of(
    st.integers(1, 255).map(lambda code: (f"Exited with exit code {code}", code, None)),
    st.sampled_from([n for n in signal.Signals if signal.strsignal(n)]).map(
        lambda number: (signal.strsignal(number), None, int(number))
    ),
    st.sampled_from([signal.SIGSEGV, signal.SIGABRT]).map(
        lambda number: (f"{signal.strsignal(number)} (core dumped)", None, int(number))
    ),
)


@given(
    st.dictionaries(st.integers(0, 5000), ENDS, max_size=30),
    st.lists(st.text(max_size=40), max_size=5),
)
def test_srun_told_of_each_task_is_read_back(
    ends: dict[int, tuple[str, int | None, int | None]], noise: list[str]
) -> None:
    groups: dict[str, list[int]] = {}
    for rank, (words, _, _) in ends.items():
        groups.setdefault(words, []).append(rank)
    lines = [line for text in noise for line in text.splitlines()]
    for words, ranks in groups.items():
        what = f"task {ranks[0]}" if len(ranks) == 1 else f"tasks {_ranges(ranks)}"
        lines.append(f"srun: error: node-7: {what}: {words}")
    found = task_ends("\n".join(lines))
    assert {rank: (end.words, end.exit_code, end.signal) for rank, end in found.items()} == ends
    assert all(end.describe().endswith(" on node-7") for end in found.values())


def _ranges(ranks: list[int]) -> str:
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and parts[-1][-1] == rank - 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    return ",".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)


@given(st.text())
def test_srun_may_say_anything(text: str) -> None:
    assert all(rank >= 0 for rank in task_ends(text))
    assert final_state(1, False, text, text) != "COMPLETED"


LIMIT = "slurmstepd-n1: error: *** STEP 7.8 ON n1 CANCELLED AT 2026-11-30T06:53:57{} ***\n"


@pytest.mark.parametrize(
    ("code", "cancelled", "said", "stderr", "state"),
    [
        (0, False, "", "", "COMPLETED"),
        (0, True, "", "", "COMPLETED"),
        (3, False, "srun: error: n1: task 0: Exited with exit code 3", "", "FAILED"),
        (137, True, "srun: error: n1: task 0: Killed", "", "CANCELLED"),
        (137, False, "srun: error: n1: task 0: Killed", LIMIT.format(""), "CANCELLED"),
        (137, False, "", LIMIT.format(" DUE TO TIME LIMIT"), "TIMEOUT"),
        (0, False, "srun: error: Node failure on n3", "", "NODE_FAIL"),
        (0, False, "srun: error: Timed out waiting for job step to complete", "", "CANCELLED"),
        (137, False, "srun: error: n1: task 0: Out Of Memory", "", "OUT_OF_MEMORY"),
        # What the function itself writes is no word of Slurm.
        (1, False, "", "my Out Of Memory\n*** STEP 1 CANCELLED AT x DUE TO TIME LIMIT", "FAILED"),
    ],
)
def test_how_a_step_ended(code: int, cancelled: bool, said: str, stderr: str, state: str) -> None:
    assert final_state(code, cancelled, said, stderr) == state


def test_a_death_can_be_caught_as_submitits_and_as_ours_and_be_pickled() -> None:
    error = StepDied("words", task=2, state="FAILED", signal=9, stderr_tail=("a",))
    assert isinstance(error, utils.UncompletedJobError)
    assert isinstance(error, SlurmmeshError)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.task, again.signal, again.stderr_tail) == ("words", 2, 9, ("a",))


def test_of_many_who_take_a_note_one_has_it(tmp_path: Path) -> None:
    paths = StepPaths(tmp_path, "12.0.a_3")
    paths.requeue.touch()
    won: list[bool] = []
    threads = [threading.Thread(target=lambda: won.append(take(paths.requeue))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False] * 7 + [True]
    assert os.listdir(tmp_path) == []
