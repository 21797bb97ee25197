"""The demo's judgement: it passes only what it claims to show."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from slurmmesh.faults import parse


def load_demo() -> ModuleType:
    path = Path(__file__).parent.parent / "examples" / "demo.py"
    spec = importlib.util.spec_from_file_location("demo_under_test", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


demo = load_demo()

CALM = demo.Outcome(
    status="finished",
    steps=60,
    faults=0,
    recovered=0,
    full_restarts=0,
    first_loss=5.5,
    final_loss=2.0,
    wall_s=20.0,
    replica_availability=1.0,
    replica_back_s=None,
    survivor_stall_s=None,
)
DISTURBED = dataclasses.replace(
    CALM, faults=3, recovered=3, final_loss=2.05, replica_back_s=0.4, survivor_stall_s=0.3
)


def test_a_run_that_shows_all_passes() -> None:
    assert demo.shortcomings(CALM, DISTURBED) == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"faults": 2, "recovered": 2}, "only 2 replicas were killed"),
        ({"recovered": 2}, "2 of 3 killed replicas came back"),
        ({"full_restarts": 1}, "restarted 1 times"),
        ({"final_loss": 2.2}, r"differ by \+10.0%"),
        ({"final_loss": 1.8}, "differ by -10.0%"),
        ({"final_loss": None}, "no final loss"),
        ({"status": "failed"}, "run with kills: failed"),
    ],
)
def test_what_is_not_shown_is_told(change: dict[str, object], word: str) -> None:
    (told,) = demo.shortcomings(CALM, dataclasses.replace(DISTURBED, **change))
    assert re.search(word, told)


def test_the_comparison_names_both_losses() -> None:
    text = demo.comparison(CALM, DISTURBED)
    assert "2.000" in text
    assert "2.050" in text
    assert "+2.50%" in text
    assert "0.40" in text


def test_reads_a_summary(tmp_path: Path) -> None:
    spread = {"p50": 0.4, "p95": 0.5, "p99": 0.6, "n": 3}
    summary = {
        **dataclasses.asdict(DISTURBED),
        "replica_back_s": spread,
        "survivor_stall_s": {"p50": None, "p95": None, "p99": None, "n": 0},
        "job_id": "1",
    }
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    assert demo.Outcome.read(tmp_path) == dataclasses.replace(DISTURBED, survivor_stall_s=None)


def test_both_commands_differ_only_in_the_faults(tmp_path: Path) -> None:
    calm = demo.command(tmp_path, 60, 0, None, "lab")
    disturbed = demo.command(tmp_path, 60, 0, "kill@3s", "lab")
    assert disturbed == [*calm, "--faults", "kill@3s"]
    assert "slurmmesh.lab" not in demo.command(tmp_path, 60, 0, None, "local")


@pytest.mark.parametrize(
    ("last", "faults"), [(110.0, "kill@3.0s"), (15.0, "kill@1.0s"), (10.0, "kill@0.1s")]
)
def test_quick_training_gets_kills_more_often(last: float, faults: str) -> None:
    events = [
        {"t": 1.0, "kind": "host_up"},
        {"t": 10.0, "kind": "step"},
        {"t": last, "kind": "step"},
    ]
    assert demo.kills_for(events) == faults
    assert parse(faults).kind == "kill"
