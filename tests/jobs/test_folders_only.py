"""Where no Slurm answers: what the folders tell."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pytest

from slurmmesh.errors import UsageError
from slurmmesh.jobs.known import find, newest
from slurmmesh.slurm.ids import JobRef

NOW = time.time()
ENDED = {"exit_code": 0, "started": NOW - 100, "ended": NOW - 40, "nodes": 2, "argv": ["a.py"]}


def test_jobs_that_ended_are_told_by_their_record(shell: Any) -> None:
    shell.make_job("1", ENDED, name="good", submitted=NOW - 200, nodes=2, spares=1)
    shell.make_job("2", {**ENDED, "exit_code": 3}, {**ENDED, "exit_code": 137}, name="bad")
    shell.make_job("3", {"started": NOW - 10, "nodes": 2}, name="who knows")
    shell.make_job("local-20260101-000000-1", {**ENDED, "cluster": "local"})
    done = shell.run("list", "--json")
    assert done.returncode == 0
    assert "; this is from the job folders" in done.stderr
    table = {job["jobid"]: job for job in json.loads(done.stdout)["jobs"]}
    assert {name: job["state"] for name, job in table.items()} == {
        "1": "COMPLETED",
        "2": "FAILED",
        "3": "UNKNOWN",
        "local-20260101-000000-1": "COMPLETED",
    }
    assert table["1"]["elapsed"] == pytest.approx(60)
    assert (table["2"]["exitcode"], table["2"]["restarts"]) == ("0:9", 1)
    assert "no record of its end" in table["3"]["why"]


@pytest.mark.slow
def test_the_newest_are_shown_oldest_first(shell: Any) -> None:
    for number in range(1, 6):
        folder = shell.make_job(str(number), ENDED, name="x", submitted=NOW - 100 + number)
        os.utime(folder, (NOW - 100 + number,) * 2)
    # It may still run, however old its folder is.
    open_ended = shell.make_job("9", {"started": NOW - 999}, name="x", submitted=NOW - 999)
    os.utime(open_ended, (NOW - 999,) * 2)

    def ids(*words: str) -> list[str]:
        done = shell.run("list", "-n", "-o", "jobid", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    assert ids() == ["9", "1", "2", "3", "4", "5"]
    assert ids("--limit", "6") == ["9", "1", "2", "3", "4", "5"]
    assert ids("--state", "UNKNOWN") == ["9"]
    assert ids("--since", "1h") == ["9", "1", "2", "3", "4", "5"]
    assert ids("--since", "1s") == []
    done = shell.run("list", "--limit=2", "-n", "-o", "jobid%3")
    assert done.stdout.split() == ["4", "5"]
    assert "4 earlier are not shown" in done.stderr


def test_of_jobs_that_are_not_shown_no_file_is_read(shell: Any) -> None:
    for number in range(1, 9):
        folder = shell.make_job(str(number), ENDED, name="x", submitted=NOW - 100 + number)
        if number < 7:
            for path in (folder / "submit.json", folder / "attempt-0" / "job.json"):
                path.unlink()
                os.mkfifo(path)  # whoever opened it would wait for ever
                os.utime(path, (NOW - 100 + number,) * 2)
        os.utime(folder, (NOW - 100 + number,) * 2)
    done = shell.run("list", "--limit=2", "-n", "-o", "jobid%3")
    assert done.stdout.split() == ["7", "8"]
    assert "6 earlier are not shown" in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["list", "--format=JobNam"], "did you mean JobName"),
        (["list", "--state=RUNING"], "'RUNING' is no state: PENDING"),
        (["list", "--since=soon"], "give a day"),
        (["list", "--limit=0"], "give 1 or more"),
        (["list", "extra"], "unrecognized arguments: extra; slurmmesh list --help"),
        (["status"], "there is no job in"),
        (["status", "77"], "no job '77' of slurmmesh's is in"),
        (["status", "7 7"], "is no job id"),
        (["status", "/nowhere/12"], "there is no folder"),
        (["status", "."], "is no job's folder"),
        (["logs", "local-1-1"], "no job 'local-1-1'"),
        (["logs", "--rank=x"], "--rank 'x': give ranks"),
        (["logs", "--tail=-1"], "give 0 or more"),
        (["logs", "-f", "--attempt=1"], "leave out --attempt"),
        (["cancel"], "name the jobs to cancel"),
        (["cancel", "77"], "no job '77'"),
    ],
)
def test_what_cannot_be_is_refused(shell: Any, words: list[str], told: str) -> None:
    done = shell.run(*words)
    assert done.returncode == 2, done.stderr
    assert told in done.stderr
    assert done.stdout == ""


@pytest.mark.slow
def test_names_do_not_mess_the_table(shell: Any) -> None:
    shell.make_job("1", ENDED, name="evil\x1b[2J\nname\tö\udc80", submitted=NOW)
    done = shell.run("list", "-n", "-o", "jobname%30,state")
    assert len(done.stdout.splitlines()) == 1
    assert "evil [2J name" in done.stdout
    done = shell.run("status", "1")
    assert "\x1b" not in done.stdout
    assert shell.table()["1"]["jobname"].startswith("evil\x1b")


def test_fields_are_listed(shell: Any) -> None:
    done = shell.run("list", "--helpformat")
    assert done.returncode == 0
    assert {"JobID", "Why", "Folder", "NodeList"} <= set(done.stdout.split())


def test_the_reader_may_go(shell: Any) -> None:
    shell.make_job("1", ENDED, name="x")
    process = shell.start("list")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(60) == 141


@pytest.mark.slow
def test_status_of_a_job_with_any_event_log(shell: Any) -> None:
    folder = shell.make_job("5", ENDED, name="x", submitted=NOW) / "attempt-0"
    done = shell.run("status", "5")
    assert "note        there is no event log" in done.stdout
    events = [
        {"t": NOW, "kind": "job_started", "nodes": 2, "spares": 0},
        {"t": NOW, "kind": "procs_spawned", "mesh": "m", "ranks": [0, 1], "sizes": {"hosts": 2}},
        {"t": NOW, "kind": "proc_up", "mesh": "m", "rank": 0, "host": "n1", "pid": 7},
        {
            "t": NOW + 1,
            "kind": "proc_exited",
            "mesh": "m",
            "rank": 0,
            "host": "n1",
            "pid": 7,
            "signal": "SIGKILL",
            "detail": "out of\x1b[2J memory",
            "expected": False,
        },
        {"t": NOW + 2, "kind": "step", "replica": 0, "step": 3, "loss": 1.5, "participants": 1},
        {"t": NOW + 3, "kind": "recovery", "recovery": 1, "replica": 0, "phase": "died"},
        {"kind": "of the future"},
    ]
    log = "".join(json.dumps(event) + "\n" for event in events) + "rubbish\n[1]\n" + '{"t": 1'
    (folder / "events.jsonl").write_text(log)
    done = shell.run("status", "5")
    assert done.returncode == 0, done.stderr
    for line in (
        "  state       COMPLETED after 00:01:00",
        "  mesh        m {hosts: 2}: 2 ranks: 1 starting, 1 dead (rank 0)",
        "  training    step 3, loss 1.5000, participants 1/1, faults 0, recovered 0",
        "rank 0 of 'm' on n1 (pid 7) killed by SIGKILL: out of [2J memory",
        "replica 0 is not back: it has died",
        "  note        3 lines of its event log make no sense",
    ):
        assert line in done.stdout, done.stdout
    (job,) = json.loads(shell.run("status", "--json", str(folder)).stdout)["jobs"]
    assert job["failures"][0]["cause"] == "killed by SIGKILL: out of\x1b[2J memory"
    assert job["meshes"][0]["ranks"] == {"dead": [0], "starting": [1]}
    assert job["training"]["participants"] == 1
    (folder / "events.jsonl").unlink()
    (folder / "events.jsonl").mkdir()
    assert "cannot be read: Is a directory" in shell.run("status", "5").stdout


def test_a_job_is_found_by_any_name(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    root = shell.jobs
    monkeypatch.setenv("XDG_STATE_HOME", str(shell.folder / "state"))
    one = shell.make_job("12", ENDED, id="12", cluster="big")
    task = shell.make_job("12_3", ENDED)
    local = shell.make_job("local-20260101-000000-1", ENDED)
    assert find("12", root).ref == JobRef("12", "big")
    assert find("12;other", root).ref == JobRef("12", "other")
    assert find("12_3", root).folder == task
    assert find("12_3", root).ref == JobRef("12_3", "big")
    assert find("12+1", root).folder == one
    assert find("12+1", root).ref == JobRef("12+1", "big")
    assert find("12.batch", root).folder == one
    assert find("12_[1-3]", root).ref == JobRef("12_[1-3]", "big")
    assert find("12_7", root).folder == root / "12_7"  # it has not started yet
    assert find(local.name, root).is_local
    assert find(str(one), root).id == find(f"{one}/attempt-0", root).id == "12"
    with pytest.raises(UsageError, match="no job '13'"):
        find("13", root)
    os.utime(task, (NOW + 3600, NOW + 3600))
    assert newest(root).id == "12_3"


@pytest.mark.slow
def test_the_index_finds_jobs_of_another_root(shell: Any) -> None:
    folder = shell.make_job("4", ENDED, name="far", submitted=NOW)
    far = shell.folder / "far"
    shell.jobs.rename(far)
    index = shell.folder / "state" / "slurmmesh" / "jobs"
    index.mkdir(parents=True)
    (index / "4").symlink_to(far / "4")
    (index / "5").symlink_to(far / "5")  # its folder was deleted
    assert set(shell.table()) == {"4"}
    assert "far" in shell.run("status", "4").stdout
    assert set(shell.table("--root", str(far))) == {"4"}
    assert not folder.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_of_another_user(shell: Any) -> None:
    folder = shell.make_job("4", ENDED, name="secret")
    folder.chmod(0)
    assert shell.table()["4"]["why"] == "its folder belongs to another user"
    folder.chmod(0o700)


@pytest.mark.slow
def test_logs_of_a_job_that_ended(shell: Any) -> None:
    folder = shell.make_job("4", ENDED, ENDED)
    for number in (0, 1):
        attempt = folder / f"attempt-{number}"
        (attempt / "controller.log").write_bytes(b"attempt %d\nbinary \xff\x00\nno end" % number)
        (attempt / "logs").mkdir()
        (attempt / "logs" / "n1.log").write_text(
            "10:00:00.000 m[0] | zero\n10:00:01.000 m[1] | one\n"
        )
    done = shell.run("logs", "4")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("attempt 1\nbinary \udcff\0\n")
    assert done.stdout.endswith("| zero\n10:00:01.000 m[1] | one\nno end\n")
    assert shell.run("logs", "4", "--attempt=0", "--controller").stdout.startswith("attempt 0\n")
    assert shell.run("logs", "--rank=1").stdout == "10:00:01.000 m[1] | one\n"
    assert shell.run("logs", "--host=n[1-2]", "--tail=1").stdout == "10:00:01.000 m[1] | one\n"
    done = shell.run("logs", "4", "--attempt=2")
    assert done.returncode == 2
    assert "job 4 has attempt-0, attempt-1" in done.stderr
    empty = shell.make_job("5", {})
    done = shell.run("logs", "5")
    assert (done.returncode, done.stdout) == (0, "")
    assert f"no logs in {empty / 'attempt-0'}" in done.stderr


@pytest.mark.slow
def test_a_report_takes_a_jobs_folder_or_id(shell: Any) -> None:
    folder = shell.make_job("4", ENDED, ENDED)
    log = folder / "attempt-1" / "events.jsonl"
    log.write_text(json.dumps({"t": NOW, "kind": "job_started", "job_id": "4"}) + "\n")
    for job in (str(folder), "4"):
        done = shell.run("report", job)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip().endswith("slurmmesh-jobs/4/attempt-1/report.html")
    done = shell.run("report", "5")
    assert (done.returncode, "no job '5' of slurmmesh's is in" in done.stderr) == (2, True)
    shell.make_job("6", id="6", options={"array": "0-2"})
    done = shell.run("report", "6")
    assert (done.returncode, "6 is an array: name one of its tasks" in done.stderr) == (2, True)
    assert "usage: slurmmesh report " in shell.run("report", "--help").stdout


@pytest.mark.slow
def test_two_thousand_jobs_are_listed(shell: Any) -> None:
    for number in range(1000, 3000):
        shell.make_job(str(number), ENDED, name="x", submitted=NOW - 5000 + number)
    assert len(shell.table()) == 50
    assert len(shell.table("--all")) == 2000


@pytest.mark.slow
def test_an_array_needs_a_task_for_its_logs(shell: Any) -> None:
    shell.make_job("4", id="4", options={"array": "0-2"})
    done = shell.run("logs", "4")
    assert (done.returncode, "none of its tasks has started yet" in done.stderr) == (2, True)
    attempt = shell.make_job("4_1", ENDED) / "attempt-0"
    (attempt / "controller.log").write_text("one\n")
    assert shell.run("logs", "4").stdout == "one\n"
    shell.make_job("4_2", ENDED)
    done = shell.run("logs", "4")
    assert "name one of its tasks: 4_1, 4_2" in done.stderr


@pytest.mark.slow
def test_an_array_with_many_holes_is_listed(shell: Any) -> None:
    """The list of its tasks that never started is longer than a file's name may be."""
    options = {"array": "0-999"}
    array = shell.make_job("7", None, name="x", submitted=NOW, options=options)
    for task in range(0, 1000, 2):
        (array.parent / f"7_{task}").mkdir()
    done = shell.run("list", "--all", "--noheader", "--format=JobID%9000")
    assert done.returncode == 0, done.stderr
    assert "7_[1,3,5,7," in done.stdout


@pytest.mark.slow
def test_an_array_counts_as_its_tasks(shell: Any) -> None:
    """Two arrays, plain jobs between them; tasks of the second that never started are one line."""
    order = []
    for number in range(10, 16):
        submitted = {"name": "x", "submitted": NOW - 1000 + number}
        if number not in (11, 14):
            shell.make_job(str(number), ENDED, **submitted)
            order.append(str(number))
            continue
        last = 2 if number == 11 else 4
        shell.make_job(str(number), id=str(number), options={"array": f"0-{last}"}, **submitted)
        for task in range(3):
            # Its folder is newer than that of all later jobs: it was started late.
            shell.make_job(f"{number}_{task}", ENDED)
        order += [f"{number}_{task}" for task in range(3)]
        order += ["14_[3-4]"] if last == 4 else []
    assert len(order) == 11
    for limit in range(1, 13):
        done = shell.run("list", "-n", "-o", "jobid", "-l", str(limit))
        assert done.stdout.split() == order[-limit:]
        left = len(order) - limit
        assert (f"{left} earlier are not shown" in done.stderr) == (left > 0), done.stderr


def test_ids_are_shown_whole(shell: Any) -> None:
    local = "local-20260101-000000-1234567"
    shell.make_job(local, {**ENDED, "cluster": "local"})
    _, rule, row = shell.run("list").stdout.splitlines()
    assert row.startswith(f"{local} ")
    assert rule.startswith(f"{'-' * len(local)} -")
    assert "local-202+" in shell.run("list", "-o", "State,JobID%-10").stdout
