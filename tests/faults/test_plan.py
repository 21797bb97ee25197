"""Fault plans as users write them."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.errors import UsageError
from slurmmesh.faults import SIGNALS, FaultPlan, parse, parse_all


@pytest.mark.parametrize(
    ("text", "kind", "every_s"),
    [
        ("kill@3s", "kill", 3.0),
        ("segfault@500ms", "segfault", 0.5),
        ("abort@1.5m", "abort", 90.0),
        ("term@1h", "term", 3600.0),
        ("kill@3", "kill", 3.0),
        ("kill@.5s", "kill", 0.5),
        (" KILL @ 3S ", "kill", 3.0),
    ],
)
def test_plans_are_read(text, kind, every_s):
    assert parse(text) == FaultPlan(kind, every_s)


def test_kinds_are_signals():
    assert {kind: parse(f"{kind}@1s").signal for kind in SIGNALS} == {
        "kill": signal.SIGKILL,
        "segfault": signal.SIGSEGV,
        "abort": signal.SIGABRT,
        "term": signal.SIGTERM,
    }


@given(st.sampled_from(sorted(SIGNALS)), st.floats(0.01, 30 * 86400))
def test_what_is_printed_is_read_back(kind, every_s):
    plan = FaultPlan(kind, every_s)
    again = parse(str(plan))
    assert again.kind == kind
    assert again.every_s == pytest.approx(every_s, abs=1e-8)
    assert str(again) == str(plan)


def test_short_forms_are_printed():
    assert str(parse("kill@3s")) == "kill@3s"
    assert str(parse("kill@250ms")) == "kill@0.25s"
    assert str(parse("kill@100")) == "kill@100s"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kil@3s", "did you mean 'kill'"),
        ("segfualt@3s", "did you mean 'segfault'"),
        ("nuke@3s", "use kill, segfault, abort, term"),
        ("exit@3s", r"did you mean 'term'\?.*: use kill, segfault, abort, term"),
        ("sigterm@3s", "did you mean 'term'"),
        ("SIGKILL@3s", "did you mean 'kill'"),
        ("segv@3s", "did you mean 'segfault'"),
        ("@3s", "no fault ''"),
        ("kill", "has no interval"),
        ("", "has no interval"),
        ("kill@", "is no interval"),
        ("kill@soon", "is no interval"),
        ("kill@-3s", "is no interval"),
        ("kill@nan", "is no interval"),
        ("kill@inf", "is no interval"),
        ("kill@1e3s", "is no interval|no unit"),
        ("kill@3s@4s", "is no interval"),
        ("kill@3sec", "did you mean 3s"),
        ("kill@3min", "did you mean 3m"),
        ("kill@3d", "use ms, s, m or h"),
        ("kill@0s", r"every 0\.01 s"),
        ("kill@1ms", r"every 0\.01 s"),
        ("kill@9999h", "30 days"),
        ("kill@" + "9" * 400, "30 days"),
    ],
)
def test_bad_plans_are_refused(text, says):
    with pytest.raises(UsageError, match=says):
        parse(text)


@given(st.text(max_size=30) | st.from_regex(r"[a-z]{0,9}@[0-9.]{0,6}[a-z]{0,3}", fullmatch=True))
def test_any_text_is_a_plan_or_refused(text):
    try:
        plan = parse(text)
    except UsageError:
        return
    assert parse(str(plan)).kind == plan.kind


def test_lists_of_plans():
    assert parse_all("kill@3s, abort@10s") == (FaultPlan("kill", 3.0), FaultPlan("abort", 10.0))
    assert parse_all("") == parse_all("  ") == ()
    with pytest.raises(UsageError, match="has no interval"):
        parse_all("kill@3s,")
