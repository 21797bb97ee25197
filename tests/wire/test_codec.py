"""Values travel whole, payloads out of band, and classes of ``__main__`` by value."""

from __future__ import annotations

import pickle
import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.wire import codec
from slurmmesh.wire.codec import dumps, loads

LONG = 1 << 18
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.integers(LONG - 2, LONG + 2).map(bytes)
    | st.integers(LONG - 2, LONG + 2).map(bytearray)
    | st.integers(LONG - 2, LONG + 2).map("ä".__mul__),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(), inner, max_size=4)
        | st.tuples(inner, inner)
    ),
    max_leaves=20,
)


def sent(value: object) -> tuple[bytes, list[bytearray]]:
    body, buffers = dumps(value)
    return body, [bytearray(buffer) for buffer in buffers]


def round_trip(value: object) -> object:
    return loads(*sent(value))


def payload(value: object) -> int:
    """Bytes that travel out of band."""
    return sum(len(buffer) for buffer in dumps(value)[1])


@given(values)
def test_plain_values_come_back_equal(value: object):
    back = round_trip(value)
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64]
)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3, 4), (40, 50)])
def test_tensors_of_every_type_arrive(dtype: torch.dtype, shape: tuple[int, ...]):
    tensor = torch.ones(shape, dtype=dtype)
    back = round_trip({"t": tensor})["t"]
    assert back.dtype == dtype
    assert torch.equal(back, tensor)


@pytest.mark.parametrize(
    "kind", ["i2", "<f8", ">f8", "M8[s]", "S5", "U3", "?", "c16", [("a", "i4"), ("b", "f8")]]
)
def test_arrays_of_every_type_arrive(kind):
    array = np.zeros((30, 20), dtype=np.dtype(kind))
    for each in (array, array.T, array[:, 3], array[::-1], array[:0], array[5, 5:6]):
        back = round_trip([each])[0]
        assert (back.dtype, back.shape) == (each.dtype, each.shape)
        assert np.array_equal(back, each)
        assert back.flags.writeable


def test_arrays_of_objects_and_of_other_classes_arrive():
    objects = np.array([{"a": 1}, None], dtype=object)
    assert round_trip(objects).tolist() == objects.tolist()
    masked = np.ma.masked_array([1, 2], mask=[True, False])
    assert round_trip(masked).mask.tolist() == [True, False]


def test_a_strided_tensor_and_a_parameter_keep_what_they_are():
    transposed = torch.arange(6.0).view(2, 3).t()
    parameter = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    back_t, back_p = round_trip((transposed, parameter))
    assert torch.equal(back_t, transposed)
    assert back_t.stride() == transposed.stride()
    assert isinstance(back_p, torch.nn.Parameter)
    assert not back_p.requires_grad


def test_a_tensor_of_a_graph_is_refused_with_what_to_do():
    grown = torch.ones(2, requires_grad=True) * 2
    with pytest.raises(pickle.PicklingError, match="detach"):
        dumps(grown)


def test_large_tensors_arrays_and_bytes_are_not_copied_into_the_pickle():
    for value in (torch.zeros(1 << 20), np.zeros(1 << 20), bytes(1 << 20), bytearray(1 << 20)):
        body, buffers = dumps({"x": [value]})
        assert len(body) < 1000
        (buffer,) = buffers
        assert len(buffer) >= 1 << 20
        assert (
            np.frombuffer(buffer, dtype=np.uint8).ctypes.data
            == np.frombuffer(
                value.numpy() if isinstance(value, torch.Tensor) else value, np.uint8
            ).ctypes.data
        )


def test_what_arrives_uses_the_buffers_as_its_memory():
    body, buffers = sent((torch.zeros(1 << 10), np.zeros(1 << 10), memoryview(bytearray(1 << 12))))
    tensor, array, view = loads(body, buffers)
    tensor[0] = array[0] = 1.0
    view[0] = 1
    assert [any(buffer) for buffer in buffers] == [True, True, True]


def test_long_bytes_are_bytes_again_wherever_they_stand():
    body, buffers = sent(
        {"a": [bytes(LONG), ("x", b"y" * LONG)], "b": np.zeros(LONG), "c": "z" * LONG}
    )
    assert (len(body) < 1000, len(buffers)) == (True, 4)
    back = loads(body, buffers)
    assert back["a"] == [bytes(LONG), ("x", b"y" * LONG)]
    assert back["c"] == "z" * LONG
    assert type(back["a"][0]) is bytes


def test_a_memoryview_arrives_as_one():
    original = memoryview(np.arange(600.0).reshape(20, 30))
    for view in (
        original,
        original.toreadonly(),
        memoryview(b"abc"),
        memoryview(b"x").cast("b", ()),
    ):
        back = round_trip([view])[0]
        assert (back.format, back.shape) == (view.format, view.shape)
        assert back.readonly == view.readonly
        assert back.tolist() == view.tolist()
    assert bytes(round_trip(memoryview(b"abcdef")[::2])) == b"ace"


def test_arrays_arrive_writable_even_if_they_were_not():
    fixed = np.frombuffer(b"\5" * 4096, dtype=np.uint8)
    for array in (np.arange(5), np.arange(5000), fixed, np.broadcast_to(np.arange(3), (4, 3))):
        back = round_trip(array)
        assert np.array_equal(back, array)
        back[0] = 7
        assert (back[0] == 7).all()
        assert back.size == 5 or not (back[1:] == 7).all()


# ------------------------------------------------------------------ views of one memory


def test_views_of_one_memory_arrive_as_views_of_one_and_it_is_sent_once():
    base = torch.arange(1 << 12)
    value = [base[:100], base[50:200], base.view(64, 64), {"same": base}]
    assert payload(value) == base.nbytes
    first, second, square, same = round_trip(value)
    square[0, 60] = -1
    assert (first[60], second[10], same["same"][60]) == (-1, -1, -1)
    assert first.untyped_storage()._cdata == second.untyped_storage()._cdata

    array = np.arange(1 << 12)
    value = (array[10:20][::-1], array[15:3000:7], array)
    assert payload(value) == array.nbytes
    back = round_trip(value)
    back[2][15] = -1
    assert (back[0][4], back[1][0]) == (-1, -1)
    assert all(np.array_equal(a, b) or -1 in a for a, b in zip(back, value, strict=True))


def test_only_what_views_cover_is_sent():
    base = torch.zeros(1 << 20)
    assert payload(base[5:1005]) <= 4000 + 64
    assert payload([base[1000:2000], base[3000:4000]]) <= 12000 + 64
    assert payload(base.view(1024, 1024)[:, 0]) == 4096
    assert payload(np.zeros((1024, 1024))[:, 0]) == 8192
    assert payload(base[:1].expand(1000, 1000)) <= 64
    column, whole = round_trip([base.view(1024, 1024)[:, 0], base])
    whole[1024] = 3
    assert column[1] == 3


def test_an_array_and_a_tensor_of_one_memory_arrive_so():
    array = np.zeros(1 << 10)
    tensor = torch.from_numpy(array)
    back_array, back_tensor = round_trip((array, tensor))
    back_tensor[3] = 1
    assert back_array[3] == 1
    assert payload((array, tensor)) == array.nbytes


def test_what_arrived_as_views_of_one_memory_goes_on_so():
    base = np.arange(1 << 10)
    again = round_trip(round_trip([base[:600], base[500:]]))
    again[0][550] = -1
    assert again[1][50] == -1
    tensors = torch.arange(1 << 10)
    again = round_trip(round_trip([tensors[:600], tensors[500:]]))
    again[0][550] = -1
    assert again[1][50] == -1


class Fresh:
    """Makes its tensors while it is pickled."""

    def __reduce__(self):
        memory = torch.arange(1 << 10)
        return list, ([memory[:10], memory[500:]],)


def test_views_made_while_pickling_arrive():
    base = torch.arange(1 << 10)
    first, left, right = round_trip([Fresh(), base[:10], base[20:]])
    assert torch.equal(first[1], torch.arange(500, 1 << 10))
    assert torch.equal(right, base[20:])
    left[0] = 5
    assert right.untyped_storage()[0] == 5


class Restless:
    """Other views each time it is pickled."""

    memory = torch.arange(1 << 12)
    times = 0

    def __reduce__(self):
        self.times += 1
        return list, ([self.memory[: 300 * self.times], self.memory[-300 * self.times :]],)


def test_pickling_ends_even_if_the_views_never_settle():
    back = round_trip(Restless())
    assert back[0][0] == 0
    assert back[1][-1] == (1 << 12) - 1


@st.composite
def sliced(draw):
    """Views of a few memories, with the views of which they are."""
    memories = [np.arange(1000 * k, 1000 * k + 400, dtype="i4") for k in range(2)]
    views = []
    for _ in range(draw(st.integers(1, 6))):
        memory = draw(st.sampled_from(memories))
        start, stop = sorted((draw(st.integers(0, 400)), draw(st.integers(0, 400))))
        view = memory[start : stop : draw(st.sampled_from([1, 1, 2, 5]))]
        if draw(st.booleans()):
            view = view[::-1]
        elif draw(st.booleans()):
            view = torch.from_numpy(view)
        views.append(view)
    return views


@given(sliced())
def test_any_views_arrive_equal_and_share_as_they_did(views):
    back = round_trip(views)
    for each, original in zip(back, views, strict=True):
        assert type(each) is type(original)
        assert np.array_equal(np.asarray(each), np.asarray(original))
    for a, original_a in zip(back, views, strict=True):
        for b, original_b in zip(back, views, strict=True):
            if isinstance(original_a, np.ndarray) and isinstance(original_b, np.ndarray):
                assert np.shares_memory(a, b) == np.shares_memory(original_a, original_b)


def test_more_buffers_than_a_frame_has_place_for_stay_in_the_pickle(monkeypatch):
    monkeypatch.setattr(codec, "MAX_BUFFERS", 200)  # 65,535 of them take seconds
    arrays = [np.full(1 << 10, k, dtype="u1") for k in range(203)]
    body, buffers = sent([arrays, bytes(LONG)])
    assert len(buffers) == 200
    back, rest = loads(body, buffers)
    assert [int(array[-1]) for array in back] == list(range(203))
    assert rest == bytes(LONG)


def test_functions_without_a_module_travel_by_value():
    offset = 3
    assert round_trip(lambda x: x + offset)(4) == 7


def test_what_cannot_be_pickled_is_an_error_at_the_sender():
    with pytest.raises((TypeError, pickle.PicklingError)):
        dumps({"lock": threading.Lock()})
