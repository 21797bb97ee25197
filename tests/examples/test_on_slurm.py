"""The example as a job of a real Slurm: replicas on four nodes, killed again and again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from slurmmesh.lab import Lab
from slurmmesh.telemetry import read_events

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
REPLICAS = 4
STEPS = 60


@pytest.fixture
def lab(outlives_tests: Callable[[Path], AbstractContextManager[None]]) -> Iterator[Lab]:
    with Lab(nodes=4) as lab, outlives_tests(lab.root):
        yield lab


def test_a_job_trains_through_kills_and_slurm_sees_one_job(lab: Lab, tmp_path: Path) -> None:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "slurmmesh.submit", "--nodes", "4", "--wait"),
            *("examples/train_llama.py", "--", "--replicas", str(REPLICAS)),
            *("--steps", str(STEPS)),
            *("--faults", "kill@3s", "--out", str(tmp_path / "out")),
        ],
        cwd=ROOT,
        env=lab.env(PYTHONPATH=path, SLURMMESH_JOB_ROOT=str(tmp_path / "jobs")),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    (folder,) = (each for each in (tmp_path / "jobs").iterdir() if each.is_dir())
    assert done.returncode == 0, done.stderr + (folder / "controller.log").read_text()

    # Slurm's side: one job, never started again, one long step a node.
    assert lab.run("squeue", "-h", "-t", "all", "-o", "%i").stdout.split() == [folder.name]
    shown = lab.run("scontrol", "show", "job", folder.name).stdout
    assert "Restarts=0 " in shown
    assert "JobState=COMPLETED " in shown
    assert "NumNodes=4 " in shown

    # Every replica that was killed came back where it died.
    events = list(read_events(tmp_path / "out" / "events.jsonl"))
    kills = [event for event in events if event["kind"] == "fault"]
    back = [event for event in events if event["kind"] == "recovered"]
    ended = next(event["t"] for event in events if event["kind"] == "run_ended")
    due = [kill for kill in kills if kill["t"] < ended - 1.0]
    assert due, "no kill in the whole run"
    assert len(due) <= len(back) <= len(kills)
    dead = {(e["host"], e["pid"]) for e in events if e["kind"] == "proc_exited" and e["signal"]}
    assert {(kill["host"], kill["pid"]) for kill in due} <= dead
    assert {kill["host"] for kill in kills} <= set(lab.nodes)

    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    told = {key: summary[key] for key in ("replicas", "steps", "status", "full_restarts", "faults")}
    assert told == {
        "replicas": REPLICAS,
        "steps": STEPS,
        "status": "finished",
        "full_restarts": 0,
        "faults": len(kills),
    }
    assert summary["recovered"] == len(back)
    assert (summary["cluster"], summary["nodes"]) == ("slurm", 4)
    assert (tmp_path / "out" / "report.html").stat().st_size > 0
