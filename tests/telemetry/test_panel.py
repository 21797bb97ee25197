"""What the live view, the closing tables and the plain lines say."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console, RenderableType
from synthetic_runs import EPOCH, simulate
from wild_events import events

from slurmmesh.telemetry import wording
from slurmmesh.telemetry.history import RunHistory, fold
from slurmmesh.telemetry.narrate import Narrator, progress_text
from slurmmesh.telemetry.panel import final_table, live_view
from slurmmesh.telemetry.summary import summarize


def shown(what: RenderableType, width: int = 100, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, newline="")
    Console(file=file, width=width, height=40, force_terminal=True, no_color=True).print(what)
    file.flush()
    return re.sub(r"\x1b\[[0-9;]*m", "", raw.getvalue().decode(encoding))


def told(events: list[dict[str, Any]]) -> list[str]:
    history = RunHistory()
    narrator = Narrator(history)
    lines = []
    for event in events:
        history.add(event)
        line = narrator.tell(event)
        if line is not None:
            lines.append(line)
    return lines


def test_the_live_view_shows_the_run() -> None:
    log = simulate(steps=40).events
    hit = next(position for position, event in enumerate(log) if event["kind"] == "fault")
    text = shown(live_view(fold(log[: hit + 1]), ["a line told"], log[hit]["t"]))
    for words in ("job synthetic-0", "hosts 4/4", "/40", "participants 4/4", "quorum 1"):
        assert words in text
    assert "faults 1" in text
    assert "recovered 0" in text
    assert "a line told" in text
    assert "down" in text
    assert text.count("training") == 3
    assert "█" in text


def test_the_live_view_of_diloco_counts_inner_steps() -> None:
    log = simulate(mode="diloco", steps=8, fault_every=None).events
    last = max(position for position, event in enumerate(log) if event["kind"] == "inner_step")
    assert "7 +4/5" in shown(live_view(fold(log[: last + 1]), [], EPOCH))


def test_of_many_replicas_those_in_trouble_are_shown() -> None:
    log = simulate(replicas=60, steps=3, fault_every=None).events[:-70]
    fault = {"t": log[-1]["t"], "kind": "fault", "fault": "kill", "replica": 57}
    text = shown(live_view(fold([*log, fault]), [], EPOCH, rows=5))
    assert "57" in text
    assert "down" in text
    assert "and 55 more" in text


@pytest.mark.parametrize("width", [20, 60, 200])
def test_both_views_fit_terminals_of_any_width(width: int) -> None:
    history = fold(simulate().events)
    for what in (live_view(history, ["x" * 300], EPOCH), final_table(history, summarize(history))):
        assert max(len(line) for line in shown(what, width).split("\n")) <= width


def test_a_terminal_without_unicode_gets_ascii() -> None:
    history = fold(simulate().events)
    for what in (live_view(history, [], EPOCH), final_table(history, summarize(history))):
        assert shown(what, encoding="ascii").isascii()


def test_names_are_not_read_as_markup() -> None:
    log = simulate(fault_every=None).events
    log[0]["job_id"] = "[red]x[/nope]"
    history = fold(log)
    assert "[red]x[/nope]" in shown(live_view(history, ["[bold]told[/x]"], EPOCH))
    assert "[bold]told[/x]" in shown(live_view(history, ["[bold]told[/x]"], EPOCH))
    assert "[red]x[/nope]" in shown(final_table(history, summarize(history)))


def test_the_final_table_has_the_figures() -> None:
    history = fold(simulate().events)
    text = shown(final_table(history, summarize(history)))
    for words in ("finished", "60 of 60", "victims back in training", "full restarts", "p95"):
        assert words in text
    assert "rendezvous" in text


def test_a_run_without_faults_has_no_table_of_faults() -> None:
    history = fold(simulate(fault_every=None).events)
    assert "p95" not in shown(final_table(history, summarize(history)))


def test_a_program_that_does_not_train_has_a_short_table() -> None:
    history = fold(
        [
            {"t": 1, "kind": "job_started", "job_id": "7", "nodes": 1},
            {"t": 2, "kind": "host_up", "host": 0, "name": "a"},
            {"t": 3, "kind": "job_ended", "exit_code": 3},
        ]
    )
    text = shown(final_table(history, summarize(history)))
    assert "exit code" in text
    assert "loss" not in text
    assert "loss" not in shown(live_view(history, [], EPOCH))


@settings(max_examples=60, deadline=None)
@given(st.lists(events(), max_size=20))
def test_anything_can_be_shown(log: list[dict[str, Any]]) -> None:
    history = fold(log)
    assert shown(live_view(history, told(log)[-5:], 50.0))
    assert shown(final_table(history, summarize(history)))


def test_the_story_of_a_job_in_lines() -> None:
    lines = told(simulate().events)
    text = "\n".join(lines)
    assert all(line.startswith("[slurmmesh +") for line in lines)
    assert "host node3 is up (4 of 4)" in text
    assert "training starts: 4 replicas, ddp, 60 steps, faults kill@3s" in text
    assert "quorum 1: 4 participants" in text
    assert "was killed by SIGKILL" in text
    assert "fault kill: replica" in text
    assert "rendezvous" in text
    assert "training finished, final loss 1.8243" in text
    assert lines[-1].endswith("job ended with exit code 0")
    assert sum(": 4 participants" in line for line in lines) == 4


def test_a_death_tells_its_last_words() -> None:
    dead = {"t": 5, "kind": "proc_exited", "mesh": "m", "rank": 2, "host": "n7", "pid": 9}
    (line,) = told(
        [
            {
                **dead,
                "exit_code": 1,
                "detail": "out of memory",
                "stderr": ["Traceback", "Oops: no"],
            },
            {**dead, "expected": True, "signal": 15},
        ]
    )
    assert line.endswith(
        "rank 2 of 'm' on n7 (pid 9) exited with code 1: out of memory; its last words: Oops: no"
    )


def test_a_fault_that_was_not_fired_is_told() -> None:
    (line,) = told(
        [{"t": 1, "kind": "fault_skipped", "fault": "kill", "replica": 2, "reason": "it is down"}]
    )
    assert line.endswith("fault kill at replica 2 was not fired: it is down")


def test_many_hosts_are_told_of_once() -> None:
    lines = told(simulate(replicas=40, steps=1, fault_every=None).events)
    assert [line for line in lines if " is up " in line] == [
        "[slurmmesh +0.8s] host node39 is up (40 of 40)"
    ]
    assert sum("finished at step" in line for line in lines) == 1


def test_progress_is_told_once_a_step() -> None:
    history = RunHistory()
    narrator = Narrator(history)
    assert narrator.progress() is None
    assert progress_text(history) == "no step committed yet"
    history.add({"t": 1.0, "kind": "step", "replica": 0, "step": 3, "loss": 2.5, "quorum": 4})
    assert narrator.progress() == (
        "[slurmmesh +0.0s] step 3, loss 2.5000, participants ?/1, quorum 4, faults 0, recovered 0"
    )
    assert narrator.progress() is None


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "-"),
        (0.0004, "0.4 ms"),
        (0.0123, "12 ms"),
        (0.9996, "1.00 s"),
        (59.994, "59.99 s"),
        (59.996, "1 min 00 s"),
        (3725, "1 h 02 min"),
    ],
)
def test_seconds_in_words(value: float | None, words: str) -> None:
    assert wording.seconds(value) == words


def test_other_words() -> None:
    assert wording.loss(float("nan")) == "not finite"
    assert wording.loss(1e300) == "1.000e+300"
    assert wording.share(0.98765) == "98.77 %"
    assert wording.one_line("a\nb\x1b[2J" + "c" * 300, 20) == "a b [2Jcccccccccc..."
