"""Supervision specs are checked before anything starts."""

from __future__ import annotations

import pickle

import pytest

from slurmmesh.errors import UsageError
from slurmmesh.supervision import STRATEGIES, MeshSupervisor, Supervision


def test_defaults_and_values():
    assert Supervision() == Supervision("one_for_one", 10, 60.0)
    for strategy in STRATEGIES:
        spec = Supervision(strategy=strategy, max_restarts=0, within_s=1)
        assert pickle.loads(pickle.dumps(spec)) == spec


@pytest.mark.parametrize(
    ("values", "error", "says"),
    [
        ({"strategy": "one_for_al"}, UsageError, "did you mean 'one_for_all'"),
        ({"strategy": "everything"}, UsageError, "use one_for_one, one_for_all, rest_for_one"),
        ({"strategy": None}, UsageError, "no supervision strategy"),
        ({"max_restarts": -1}, UsageError, "0 or more"),
        ({"max_restarts": 1.5}, TypeError, "integer"),
        ({"max_restarts": True}, TypeError, "integer"),
        ({"within_s": 0}, UsageError, "above 0 s"),
        ({"within_s": -3.0}, UsageError, "above 0 s"),
        ({"within_s": float("inf")}, UsageError, "finite"),
        ({"within_s": float("nan")}, UsageError, "finite"),
        ({"within_s": "60"}, TypeError, "seconds"),
        ({"within_s": True}, TypeError, "seconds"),
    ],
)
def test_bad_specs_are_refused(values, error, says):
    with pytest.raises(error, match=says):
        Supervision(**values)


def test_an_empty_mesh_is_refused():
    with pytest.raises(UsageError, match="at least one rank"):
        MeshSupervisor(Supervision(), "trainers", 0)
