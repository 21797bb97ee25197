"""What all benchmarks share: turns, statistics, the table and the file they write."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import results, submit
from benchmarks.actor_runtime import __main__ as actor_runtime
from benchmarks.actor_runtime import measures
from benchmarks.actor_runtime.cases import Case, cases
from benchmarks.actor_runtime.peers import ALL, PEERS

ROOT = Path(__file__).parents[1]
samples = st.lists(st.floats(0.001, 1e6), min_size=1, max_size=300)


@given(samples)
def test_a_summary_is_of_the_samples(found):
    told = results.Summary.of(found)
    assert told.n == len(found)
    assert told.median == statistics.median(found)
    assert told.p99 in found
    assert sum(each <= told.p99 for each in found) >= 0.99 * len(found)


def test_the_99th_percentile_leaves_out_the_worst_of_a_hundred():
    assert results.Summary.of(range(1, 101)).p99 == 99
    assert results.Summary.of(range(1, 100)).p99 == 99
    assert results.Summary.of([3.0]) == results.Summary(3.0, 3.0, 1)


def test_nothing_measured_is_an_error():
    with pytest.raises(ValueError, match="nothing was measured"):
        results.Summary.of([])


def test_the_ratio_tells_how_many_times_ours_is_better():
    times = results.Row("round trip", "us", "lower", [1, 2, 3], {"peer": [8, 8], "floor": [1]})
    assert times.ratio == {"peer": 4.0, "floor": 0.5}
    rates = results.Row("calls", "1/s", "higher", [30], {"peer": [10]})
    assert rates.ratio == {"peer": 3.0}


@pytest.mark.parametrize(("ours", "theirs"), [(0.0, 1.0), (-0.1, 1.0), (1.0, 0.0), (1.0, -0.1)])
def test_no_ratio_is_told_of_differences_that_have_none(ours, theirs):
    assert results.Row("beyond", "s", "lower", [ours], {"peer": [theirs]}).ratio == {}


def test_every_way_has_its_turn_in_each_round_and_none_always_follows_the_same():
    order: list[str] = []
    ways = {name: lambda name=name: order.append(name) or len(order) for name in "abc"}
    found = results.in_turns(ways, 20)
    rounds = [order[start : start + 3] for start in range(0, 60, 3)]
    assert all(sorted(each) == ["a", "b", "c"] for each in rounds)
    assert len(set(map(tuple, rounds))) == 6
    assert {name: len(each) for name, each in found.items()} == {"a": 20, "b": 20, "c": 20}
    assert order[found["b"][7] - 1] == "b"


def test_the_file_is_as_the_readme_says(tmp_path):
    rows = [results.Row("call", "us", "lower", [1.0, 3.0], {"floor": [4.0]})]
    results.write(tmp_path / "out.json", results.machine("emulated"), rows)
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["machine"].endswith(", emulated")
    assert found["rows"] == [
        {
            "name": "call",
            "unit": "us",
            "better": "lower",
            "ours": {"median": 2.0, "p99": 3.0, "n": 2},
            "peers": {"floor": {"median": 4.0, "p99": 4.0, "n": 1}},
            "ratio": {"floor": 2.0},
        }
    ]
    readme = (ROOT / "benchmarks" / "README.md").read_text()
    shown = json.loads(readme.partition("```json")[2].partition("```")[0])
    assert shown.keys() == found.keys()
    assert shown["rows"][0].keys() == found["rows"][0].keys()


def test_the_table_has_each_of_ours_and_the_peers():
    row = results.Row("call", "us", "lower", [2.0], {"floor": [4.0], "other": [0.0]})
    head, ours, floor, other = results.table([row]).splitlines()
    assert head == "call [us, lower is better]"
    assert ours.split() == ["ours", "median", "2.000", "p99", "2.000", "n", "1"]
    assert floor.endswith("n    1  ours is 2.00 times as good")
    assert other.endswith("n    1")


def test_what_is_beyond_plain_is_told_round_by_round():
    samples = {"ours": [3.0, 5.0], "srun": [1.0, 4.0], "submitit": [2.0, 2.0]}
    queued = {"ours": [0.5, 0.0], "srun": [0.0, 0.0], "submitit": [0.0, 0.5]}
    found = submit._beyond_plain(samples, queued)
    assert found == {"ours": [1.5, 1.0], "submitit": [1.0, -2.5]}


LOG = """\
[2026-11-30T08:46:53.279] No parameter for mcs plugin, default values set
[2026-11-30T23:59:59.900] _slurm_rpc_submit_batch_job: JobId=12 InitPrio=4294901759 usec=586
[2026-12-01T00:00:00.150] {words} JobId=12 in main on node[1-4]
[2026-12-01T00:00:01.150] _job_complete: JobId=12 done
"""


@pytest.mark.parametrize(
    "words",
    ["sched/backfill: _start_job: Started", "sched: Allocate", "sched: _start_job: Started"],
)
def test_the_wait_in_the_queue_is_read_from_slurms_log(words):
    assert submit.queued_s(LOG.format(words=words)) == pytest.approx(0.25)


def test_a_log_that_does_not_tell_of_the_wait_is_an_error():
    with pytest.raises(RuntimeError, match="does not tell"):
        submit.queued_s(LOG.format(words="sched: something of"))


@pytest.mark.slurm
@pytest.mark.slow
def test_a_submit_is_measured_beside_its_peers(tmp_path, capsys):
    assert submit.main(["--rounds", "1", "--json", str(tmp_path / "out.json")]) == 0
    printed = capsys.readouterr().out
    assert "4 emulated nodes" in printed
    assert "target: first line at most 0.3 s beyond sbatch + srun python, without" in printed
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    first, everywhere, up, command, queue, *beyond = rows
    assert first["peers"].keys() == {"srun", "sbatch", "submitit"}
    assert everywhere["peers"].keys() == {"srun", "submitit"}
    assert command["peers"].keys() == {"sbatch", "submitit"}
    assert queue["peers"].keys() == {"srun", "sbatch", "submitit"}
    assert first["ours"]["median"] < up["ours"]["median"] < everywhere["ours"]["median"]
    assert len(beyond) == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--rounds", "0"], "--rounds: give 1 or more"),
        (["--json", "not-there/out.json"], "there is no folder not-there"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_measured(words, told, capsys):
    with pytest.raises(SystemExit):
        submit.main(words)
    assert told in capsys.readouterr().err


# ------------------------------------------------------------------ the actor runtime


def test_each_case_can_be_measured_and_its_rows_have_names_of_their_own():
    names = [metric.name for case in cases(quick=False) for metric in case.metrics.values()]
    assert len(names) == len(set(names))
    for case in [*cases(quick=False), *cases(quick=True)]:
        inspect.signature(getattr(measures, case.measure)).bind(ALL["ours"], **case.options)
        assert case.fits(ALL["ours"])
        assert set(case.without) < set(ALL)


def test_quick_measures_the_same_with_fewer_samples():
    def counts(quick):
        return {
            metric.name: case.options.get("count", 1)
            for case in cases(quick)
            for metric in case.metrics.values()
        }

    whole, quick = counts(quick=False), counts(quick=True)
    assert whole.keys() - quick.keys() == {"tensor argument 512 MiB", "tensor result 512 MiB"}
    assert all(1 <= quick[name] <= whole[name] for name in quick)
    assert sum(quick.values()) < sum(whole.values()) / 8


def test_a_peer_is_measured_only_over_the_transports_it_has():
    case = Case("g", "round_trip", {"transport": "tcp"}, {})
    assert [peer.name for peer in PEERS if case.fits(peer)] == ["monarch", "floor"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--rounds", "0"], "--rounds: give 1 or more"),
        (["--peers", "floor,seiling"], "there is no seiling, but monarch, ray, floor"),
        (["--only", "speed"], "invalid choice: 'speed'"),
        (["--json", "not-there/out.json"], "there is no folder not-there"),
    ],
)
def test_what_the_actor_runtime_cannot_measure_is_refused(words, told, capsys):
    with pytest.raises(SystemExit):
        actor_runtime.main(words)
    assert told in capsys.readouterr().err


def run_actor_runtime(*words, **environ):
    """In a process of its own: it ends all processes below it."""
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.actor_runtime", *words],
        cwd=ROOT,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
    )


def fake(folder, distribution, module, code):
    """An installed distribution, as Python sees it, with one module."""
    (folder / f"{module}.py").write_text(code)
    info = folder / f"{distribution}-0.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 0.0\n")


@pytest.mark.slow
def test_the_rows_go_on_without_a_peer_that_fails_or_is_not_there(tmp_path):
    """The failing one is no real Monarch: a module that breaks when it is imported."""
    fake(tmp_path, "torchmonarch", "monarch", "raise OSError('no luck')")
    path = tmp_path / "out.json"
    words = ["--peers", "monarch,ray,floor", "--only", "error", "--quick", "--rounds", "2"]
    if ALL["ray"].version:
        words[1] = "monarch,floor"
    done = run_actor_runtime(*words, "--json", str(path), PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "monarch failed at error: count 30: it ended with code 1; " in done.stderr
    assert "OSError: no luck" in done.stderr
    found = json.loads(path.read_text())
    assert "torchmonarch 0.0" in found["machine"]
    assert found["machine"].endswith("monarch failed at error: count 30")
    if "ray" in words[1]:
        assert "ray is not installed: measured without it" in done.stderr
        assert "ray is not installed" in found["machine"]
    [row] = found["rows"]
    assert row["peers"].keys() == row["ratio"].keys() == {"floor"}
    assert row["ours"]["n"] == row["peers"]["floor"]["n"] == 60


SMALL = {
    "procs": 2,
    "actors": 2,
    "mib": 1,
    "seconds": 0.1,
    "count": 2,
    "outstanding": 20,
    "messages": 20,
}


def small_cases():
    """Each kind of case once, with little to do."""
    found = {}
    for case in cases(quick=True):
        kind = {key: value for key, value in case.options.items() if key not in SMALL}
        options = {**kind, **{key: SMALL[key] for key in case.options if key in SMALL}}
        found[json.dumps([case.measure, options])] = dataclasses.replace(case, options=options)
    return [
        pytest.param(peer, case, id=f"{peer.name}-{case.title}")
        for case in found.values()
        for peer in (ALL["ours"], ALL["floor"])
        if case.fits(peer)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("peer", "case"), small_cases())
def test_a_measurement_gives_the_samples_of_its_rows(peer, case, tmp_path):
    path = tmp_path / "samples.json"
    words = [peer.name, case.measure, json.dumps(case.options), str(path)]
    subprocess.run(
        [sys.executable, "-m", "benchmarks.actor_runtime.measures", *words], cwd=ROOT, check=True
    )
    samples = json.loads(path.read_text())
    assert samples.keys() == case.metrics.keys()
    assert all(len(each) == case.options.get("count", 1) for each in samples.values())
