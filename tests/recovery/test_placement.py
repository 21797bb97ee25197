"""Where replicas go, and settings that make no sense."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.errors import MissingDependencyError, UsageError
from slurmmesh.recovery import RecoverySettings, requirements
from slurmmesh.recovery.placement import device_indices, place

small = st.integers(1, 40)


@given(small, small, small)
def test_replicas_are_spread_evenly(replicas, procs, hosts):
    placement = place(replicas, procs, hosts)
    assert len(placement) == replicas
    assert all(0 <= host < hosts for host in placement)
    counts = [Counter(placement)[host] for host in range(hosts)]
    assert max(counts) - min(counts) <= 1


@given(small, st.integers(1, 8), small, st.integers(1, 16))
def test_no_host_gets_more_than_it_takes(replicas, procs, hosts, per_host):
    fits = hosts * (per_host // procs) >= replicas
    if not fits:
        with pytest.raises(UsageError, match="do not fit"):
            place(replicas, procs, hosts, per_host)
        return
    placement = place(replicas, procs, hosts, per_host)
    assert all(count * procs <= per_host for count in Counter(placement).values())
    devices = device_indices(placement, procs)
    used = [
        (host, first + k)
        for host, first in zip(placement, devices, strict=True)
        for k in range(procs)
    ]
    assert len(set(used)) == len(used)
    assert all(device < per_host for _, device in used)


def test_the_refusal_says_what_fits():
    with pytest.raises(UsageError, match=r"9 replicas .* 4 host\(s\) with 2 each take 8"):
        place(9, 1, 4, 2)


@pytest.mark.parametrize("numbers", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (-1, 1, 1)])
def test_numbers_below_one_are_refused(numbers):
    with pytest.raises(UsageError, match="at least 1"):
        place(*numbers)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"timeout_s": 0}, "timeout_s"),
        ({"quorum_timeout_s": float("inf")}, "quorum_timeout_s"),
        ({"collective_timeout_s": float("nan")}, "collective_timeout_s"),
        ({"min_replicas": 0}, "min_replicas"),
        ({"heartbeat_timeout_s": 0.1}, "three times"),
    ],
)
def test_settings_are_checked(change, word):
    with pytest.raises(UsageError, match=word):
        RecoverySettings(**change)


def test_settings_become_whole_seconds_for_torchft():
    environment = RecoverySettings(timeout_s=1.5, quorum_timeout_s=30).environment()
    assert environment["TORCHFT_TIMEOUT_SEC"] == "2"
    assert environment["TORCHFT_QUORUM_RETRIES"] == "300"
    assert all(int(value) > 0 for value in environment.values())


def test_a_missing_package_is_told_with_the_line_that_installs_it(monkeypatch):
    there = requirements.importlib.util.find_spec
    monkeypatch.setattr(
        requirements.importlib.util,
        "find_spec",
        lambda name: None if name == "torchft" else there(name),
    )
    with pytest.raises(
        MissingDependencyError, match=r"needs torchft: .*pip install 'slurmmesh\[train\]'"
    ):
        requirements.require_torch()
