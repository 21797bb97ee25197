"""Values travel whole, payloads out of band, and classes of ``__main__`` by value."""

from __future__ import annotations

import pickle
import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.wire.codec import dumps, loads

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(), inner, max_size=4)
        | st.tuples(inner, inner)
    ),
    max_leaves=20,
)


def round_trip(value: object) -> object:
    body, buffers = dumps(value)
    return loads(body, [bytearray(buffer) for buffer in buffers])


@given(values)
def test_plain_values_come_back_equal(value: object):
    assert round_trip(value) == value


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64]
)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3, 4)])
def test_tensors_travel_out_of_band_in_every_type(dtype: torch.dtype, shape: tuple[int, ...]):
    tensor = torch.ones(shape, dtype=dtype)
    body, buffers = dumps({"t": tensor})
    assert sum(len(buffer) for buffer in buffers) == tensor.numel() * tensor.element_size()
    back = loads(body, [bytearray(buffer) for buffer in buffers])["t"]
    assert back.dtype == dtype
    assert torch.equal(back, tensor)


def test_a_strided_tensor_and_a_parameter_keep_what_they_are():
    transposed = torch.arange(6.0).view(2, 3).t()
    parameter = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    back_t, back_p = round_trip((transposed, parameter))
    assert torch.equal(back_t, transposed)
    assert isinstance(back_p, torch.nn.Parameter)
    assert not back_p.requires_grad


def test_a_tensor_of_a_graph_is_refused_with_what_to_do():
    grown = torch.ones(2, requires_grad=True) * 2
    with pytest.raises(pickle.PicklingError, match="detach"):
        dumps(grown)


def test_large_tensors_are_not_copied_into_the_pickle():
    tensor = torch.zeros(1 << 20)
    body, buffers = dumps(tensor)
    assert len(body) < 1000
    address = np.frombuffer(buffers[0], dtype=np.uint8).ctypes.data
    assert address == tensor.data_ptr()


def test_arrays_arrive_writable():
    back = round_trip(np.arange(5))
    back[0] = 7
    assert back.tolist() == [7, 1, 2, 3, 4]


def test_functions_without_a_module_travel_by_value():
    offset = 3
    assert round_trip(lambda x: x + offset)(4) == 7


def test_what_cannot_be_pickled_is_an_error_at_the_sender():
    with pytest.raises((TypeError, pickle.PicklingError)):
        dumps({"lock": threading.Lock()})
