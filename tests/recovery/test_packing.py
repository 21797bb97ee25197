"""State dicts as bytes and back."""

from __future__ import annotations

import pickle
from collections import OrderedDict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.recovery.packing import make_room, pack
from slurmmesh.wire.storages import memory_of

DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
]
shapes = st.lists(st.integers(0, 4), max_size=4)
tensors = st.builds(
    lambda dtype, shape: torch.randn(shape).mul(3).to(dtype), st.sampled_from(DTYPES), shapes
)
plain = st.none() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
states = st.recursive(
    plain | tensors,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=4)
        | st.tuples(inner, inner)
    ),
    max_leaves=12,
)


def travel(state):
    packed = pack(state)
    received, room = make_room(packed.header)
    assert [each.nbytes for each in room] == [view.nbytes for view in packed.views]
    for place, view in zip(room, packed.views, strict=True):
        memory_of(place)[:] = view
    return received


def same(a, b) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return a == b and type(a) is type(b)


@given(states)
def test_any_state_arrives_as_it_was(state):
    assert same(travel(state), state)


def test_views_and_transposes_arrive_dense():
    base = torch.arange(12.0).view(3, 4)
    arrived = travel({"t": base.t(), "row": base[1], "step": base[:, ::2]})
    assert torch.equal(arrived["t"], base.t())
    assert torch.equal(arrived["row"], base[1])
    assert torch.equal(arrived["step"], base[:, ::2])


def test_one_tensor_in_two_places_is_sent_once():
    shared = torch.ones(1000)
    packed = pack({"a": shared, "b": [shared]})
    assert len(packed.views) == 1
    arrived = travel({"a": shared, "b": [shared]})
    assert arrived["a"] is arrived["b"][0]


def test_dense_tensors_are_not_copied():
    tensor = torch.zeros(10)
    packed = pack({"t": tensor})
    tensor.fill_(7)
    assert bytes(packed.views[0]) == bytes(memory_of(torch.full((10,), 7.0)))


@pytest.mark.slow
def test_model_and_optimizer_survive():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    arrived = travel({"m": model.state_dict(), "o": optimizer.state_dict()})
    assert isinstance(arrived["m"], OrderedDict)
    other = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    other.load_state_dict(arrived["m"])
    torch.optim.AdamW(other.parameters(), 1e-3).load_state_dict(arrived["o"])
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_other_layouts_go_with_the_header():
    sparse = torch.eye(3).to_sparse()
    assert torch.equal(travel({"s": sparse})["s"].to_dense(), torch.eye(3))


def test_what_cannot_be_pickled_is_refused():
    with pytest.raises((TypeError, pickle.PicklingError, AttributeError)):
        pack({"f": (each for each in ())})
