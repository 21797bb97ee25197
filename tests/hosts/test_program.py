"""The controller's entry: exit codes, signals, what it leaves in the job folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PROLOGUE = """
import slurmmesh as sm
import sys, time


class Plain(sm.Actor):
    @sm.endpoint
    def double(self, x):
        return 2 * x


job = sm.this_job()
actors = job.hosts.spawn_procs({"gpus": 2}, name="plain").spawn("plain", Plain)
"""


def environment(folder: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    return {
        **kept,
        "SLURMMESH_JOB_FOLDER": str(folder / "job"),
        "SLURMMESH_JOB_ID": "local-test",
        "SLURMMESH_CLUSTER": "local",
        "SLURMMESH_NODES": "2",
        **more,
    }


def program(folder: Path, body: str, *args: str, **more: str) -> subprocess.CompletedProcess[str]:
    script = folder / "a script.py"
    script.write_text(PROLOGUE + textwrap.dedent(body))
    return run(folder, str(script), *args, **more)


def run(folder: Path, *args: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-u", "-m", "slurmmesh.hosts.program", *args],
        env=environment(folder, **more),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )


def events_of(job_folder: Path) -> list[dict]:
    return [json.loads(line) for line in (job_folder / "events.jsonl").read_text().splitlines()]


def record(folder: Path) -> dict:
    return json.loads((folder / "job" / "job.json").read_text())


def test_a_program_runs_on_the_hosts_of_its_job_with_its_arguments(tmp_path):
    done = program(
        tmp_path,
        """
        print(sorted(actors.double.call(21).get(30).values()), sys.argv[1:])
        print(job.id, job.cluster, job.hosts.names, job.spares)
        """,
        "a b",
        "c'\"\n$d",
    )
    assert done.returncode == 0, done.stderr
    assert "[42, 42, 42, 42] ['a b', 'c\\'\"\\n$d']" in done.stdout
    assert "local-test local ['local0', 'local1'] None" in done.stdout
    assert f"logs in {tmp_path / 'job'}" in done.stderr
    assert record(tmp_path)["exit_code"] == 0
    events = events_of(tmp_path / "job")
    kinds = [event["kind"] for event in events]
    assert (kinds[0], kinds[-1]) == ("job_started", "job_ended")
    assert (kinds.count("host_up"), kinds.count("job_ended")) == (2, 1)
    assert events[0]["argv"] == [str(tmp_path / "a script.py"), "a b", "c'\"\n$d"]
    assert events[-1]["exit_code"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ("sys.exit(7)", 7, ""),
        ("sys.exit('my reason')", 1, "my reason"),
        ("raise KeyError('my key')", 1, "KeyError: 'my key'"),
        ("raise sm.errors.UsageError('four replicas, three procs')", 2, "four replicas"),
        ("raise sm.errors.RestartBudgetSpent('too often')", 5, "too often"),
    ],
)
def test_the_exit_code_tells_how_the_program_ended(tmp_path, body, code, words):
    done = program(tmp_path, body)
    assert (done.returncode, record(tmp_path)["exit_code"]) == (code, code)
    assert words in done.stderr
    assert events_of(tmp_path / "job")[-1]["exit_code"] == code


@pytest.mark.slow
def test_spare_hosts_are_kept_apart(tmp_path):
    done = program(tmp_path, "print(len(job.hosts.names), job.spares.names)", SLURMMESH_SPARES="1")
    assert "2 ['local2']" in done.stdout


@pytest.mark.slow
def test_a_module_can_be_run(tmp_path):
    (tmp_path / "my_module.py").write_text("import sys; print('module', sys.argv[1:])")
    done = run(tmp_path, "-m", "my_module", "x")
    assert (done.returncode, "module ['x']" in done.stdout) == (0, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "words"),
    [(("missing.py",), "no script missing.py"), ((), "no program given"), (("-m",), "no program")],
)
def test_a_program_that_is_not_there_is_a_usage_error(tmp_path, args, words):
    done = run(tmp_path, *args)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_broken_environment_is_a_usage_error(tmp_path):
    done = run(tmp_path, "x.py", SLURMMESH_NODES="many")
    assert done.returncode == 2
    assert "many" in done.stderr


def test_a_job_folder_that_cannot_be_made_is_a_setup_error(tmp_path):
    (tmp_path / "file").touch()
    done = run(tmp_path, "x.py", SLURMMESH_JOB_FOLDER=str(tmp_path / "file" / "job"))
    assert done.returncode == 6
    assert "cannot be used" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_in_order_with_one_line(tmp_path, signum, code):
    script = tmp_path / "waits.py"
    script.write_text(
        PROLOGUE + "actors.double.call(1).get(30)\nprint('up', flush=True)\ntime.sleep(3600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "slurmmesh.hosts.program", str(script)],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as controller:
        assert controller.stdout.readline() == "up\n"
        controller.send_signal(signum)
        _, stderr = controller.communicate(timeout=30)
    assert controller.returncode == code
    assert "Traceback" not in stderr
    assert record(tmp_path)["exit_code"] == code


def test_outside_of_a_job_this_job_says_what_to_do():
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    done = subprocess.run(
        [sys.executable, "-c", "import slurmmesh; slurmmesh.this_job()"],
        env=kept,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "python -m slurmmesh.submit" in done.stderr.splitlines()[-1]


def outside(folder: Path, body: str, **more: str) -> subprocess.CompletedProcess[str]:
    """A program that nobody submitted."""
    script = folder / "alone.py"
    script.write_text("import sys\nimport slurmmesh as sm\n" + body)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    return subprocess.run(
        [sys.executable, str(script), "an argument"],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(Path(__file__).parents[2]), **more},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.slow
def test_a_local_job_lies_where_submits_do_and_tells_its_beginning_and_end(tmp_path):
    root = tmp_path / "elsewhere"
    done = outside(tmp_path, "sm.job_or_local().hosts", SLURMMESH_JOB_ROOT=str(root))
    assert done.returncode == 0, done.stderr
    [folder] = root.iterdir()
    events = events_of(folder)
    assert events[0]["kind"] == "job_started"
    assert events[0]["argv"] == [str(tmp_path / "alone.py"), "an argument"]
    assert (events[-1]["kind"], events[-1]["exit_code"]) == ("job_ended", None)


@pytest.mark.parametrize(
    ("body", "code", "lines"),
    [
        ("sm.job_or_local(0)", 2, 1),
        ("sm.explain_errors()\nraise sm.errors.SetupError('no room')", 6, 1),
        ("sm.explain_errors()\nraise sm.errors.RestartBudgetSpent('too often')", 5, 4),
        ("sm.explain_errors()\nraise ValueError('mine')", 1, 4),
        ("sm.explain_errors()\nsys.exit(7)", 7, 0),
        ("sm.job_or_local()", 2, 1),
    ],
)
def test_a_program_that_nobody_submitted_ends_with_the_same_codes(tmp_path, body, code, lines):
    done = outside(tmp_path, body, SLURMMESH_JOB_ROOT="")
    assert (done.returncode, len(done.stderr.splitlines())) == (code, lines), done.stderr
    assert ("Traceback" in done.stderr) == (lines > 1)


@pytest.mark.slow
def test_this_host_is_one_host_without_dimensions(tmp_path):
    code = """
import slurmmesh as sm
from tests.hosts.test_deaths import Victim
host = sm.this_host()
print(host.sizes, sm.this_host() is host)
procs = host.spawn_procs({"gpus": 3}, name="here")
print(len(procs.spawn("v", Victim, "").pid.call().get(30)), procs.sizes)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["{} True", "3 {'gpus': 3}"]


@pytest.mark.slow
def test_a_job_that_cannot_start_leaves_its_exit_code_too(tmp_path):
    (tmp_path / "job").mkdir()
    done = run(tmp_path, "x.py", SLURMMESH_CLUSTER="slurm")  # but there is no allocation
    assert (done.returncode, record(tmp_path)["exit_code"]) == (6, 6)
