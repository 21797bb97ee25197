"""Regions: numpy says what slicing means."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmmesh.errors import UsageError
from slurmmesh.shape import Extent, Region

np = pytest.importorskip("numpy")

LABELS = ("hosts", "gpus", "slots", "parts")


@st.composite
def indices(draw, size):
    """An index of a dimension, as given to us and as given to numpy along one axis."""
    form = draw(st.sampled_from(["int", "slice", "range", "list", "tuple"]))
    if form == "int":
        return draw(st.integers(0, size - 1))
    if form == "slice":
        bounds = st.none() | st.integers(-2 * size, 2 * size)
        steps = st.none() | st.integers(-4, 4).filter(bool)
        return slice(draw(bounds), draw(bounds), draw(steps))
    if form == "range":
        step = draw(st.integers(-3, 3).filter(bool))
        first, last = draw(st.integers(0, size - 1)), draw(st.integers(0, size - 1))
        return range(first, last + (1 if step > 0 else -1), step)
    some = draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=size, unique=True))
    return tuple(some) if form == "tuple" else some


@st.composite
def operations(draw, extent):
    """One call on a region of this extent: (name, keywords)."""
    if not extent.labels:
        return "slice", {}
    name = draw(st.sampled_from(["slice", "slice", "slice", "flatten", "split", "rename"]))
    label = draw(st.sampled_from(extent.labels))
    fresh = next(f"new{n}" for n in range(99) if not any(f"new{n}" in x for x in extent.labels))
    if name == "slice":
        some = draw(st.sets(st.sampled_from(extent.labels), min_size=1))
        return name, {each: draw(indices(extent[each])) for each in sorted(some)}
    if name == "split":
        size = extent[label]
        divisor = draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
        return name, {label: (f"{fresh}a", f"{fresh}b"), f"{fresh}b": divisor}
    return name, {label: fresh}


def apply_numpy(array, extent, name, keywords):
    """What numpy makes of it, or None if nothing is left."""
    if name == "rename":
        return array
    if name == "flatten":
        return array.reshape(-1)
    if name == "split":
        (label, _), (_, size) = keywords.items()
        axis = extent.labels.index(label)
        shape = array.shape
        return array.reshape(*shape[:axis], shape[axis] // size, size, *shape[axis + 1 :])
    axes = range(array.ndim)[::-1]
    for axis, label in zip(axes, reversed(extent.labels), strict=True):
        index = keywords.get(label, slice(None))
        index = list(index) if isinstance(index, (range, tuple)) else index
        array = array[(slice(None),) * axis + (index,)]
    return array if array.size else None


def apply(region, name, keywords):
    if name == "flatten":
        return region.flatten(*keywords.values())
    return getattr(region, name)(**keywords)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_sequence_of_operations_does_what_numpy_does(data):
    sizes = data.draw(st.lists(st.integers(1, 5), max_size=4))
    extent = Extent(LABELS[: len(sizes)], sizes)
    region = Region(extent)
    array = np.arange(extent.nelements).reshape(sizes)
    for _ in range(data.draw(st.integers(1, 5))):
        name, keywords = data.draw(operations(region.extent))
        expected = apply_numpy(array, region.extent, name, keywords)
        if expected is None:
            with pytest.raises(ValueError, match="nothing is left"):
                apply(region, name, keywords)
            return
        region, array = apply(region, name, keywords), expected
        check_same(region, array)


def check_same(region, array):
    flat = array.reshape(-1).tolist()
    assert region.extent.sizes == array.shape
    assert list(region.ranks) == flat
    assert len(region) == len(flat)
    assert [region.global_rank(i) for i in range(len(flat))] == flat
    assert [region.local_rank(rank) for rank in flat] == list(range(len(flat)))
    highest = max(flat)
    assert [rank for rank in range(-2, highest + 3) if rank in region] == sorted(flat)
    # Equal ranks in equal places are equal regions, however they came about.
    twin = Region.from_ranks(region.extent, flat)
    assert twin == region
    assert hash(twin) == hash(region)
    assert pickle.loads(pickle.dumps(region)) == region


@given(st.permutations(range(12)))
def test_any_ranks_can_be_a_region(ranks):
    region = Region.from_ranks(Extent.of({"a": 3, "b": 4}), ranks)
    check_same(region, np.array(ranks).reshape(3, 4))
    check_same(region.slice(b=slice(None, None, 2)), np.array(ranks).reshape(3, 4)[:, ::2])


def test_grids_that_are_not_nested_are_found_again():
    # 0 2 4 / 3 5 7 has strides, yet no digit of the rank alone tells the row.
    check_same(
        Region.from_ranks(Extent.of({"a": 2, "b": 3}), [0, 2, 4, 3, 5, 7]),
        np.array([[0, 2, 4], [3, 5, 7]]),
    )


def test_slices_of_a_large_mesh_stay_small():
    mesh = Region.of({"hosts": 100_000, "gpus": 8})
    part = mesh.slice(hosts=slice(-50_000, None, 2), gpus=range(6, 0, -2))
    assert len(part) == 75_000
    assert part.table is None
    assert part.global_rank(4) == 50_002 * 8 + 4
    assert part.local_rank(50_002 * 8 + 4) == 4
    assert 50_001 * 8 + 4 not in part
    assert len(pickle.dumps(part)) < 300
    assert mesh.flatten("procs").table is None
    # A slice of what needs a table takes only its own part along.
    listed = mesh.slice(hosts=[0, 1, 5, *range(10, 2000)])
    assert listed.table is not None
    assert len(pickle.dumps(listed.slice(hosts=slice(0, 4)))) < 400


def test_an_integer_drops_the_dimension():
    region = Region.of({"hosts": 4, "gpus": 8})
    assert region.slice(hosts=1).labels == ("gpus",)
    one = region.slice(hosts=1, gpus=2)
    assert (one.labels, one.ranks, len(one)) == ((), (10,), 1)
    assert one.flatten("procs").ranks == (10,)
    assert region.slice() == region


def test_the_order_of_a_list_is_kept():
    region = Region.of({"hosts": 4, "gpus": 2})
    assert region.slice(hosts=[3, 0, 2]).ranks == (6, 7, 0, 1, 4, 5)


@pytest.mark.parametrize(
    ("indices", "error", "says"),
    [
        ({"hosts": 4}, IndexError, "goes from 0 to 3"),
        ({"hosts": -1}, IndexError, "goes from 0 to 3"),
        ({"hosts": [0, 4]}, IndexError, "goes from 0 to 3"),
        ({"hosts": [-1]}, IndexError, "goes from 0 to 3"),
        ({"hosts": range(2, 6)}, IndexError, "hosts=5"),
        ({"hosts": range(3, -3, -1)}, IndexError, "hosts=-2"),
        ({"racks": 0}, TypeError, "no dimension 'racks'"),
        ({"hosts": "0"}, TypeError, "takes an int"),
        ({"hosts": 1.0}, TypeError, "takes an int"),
        ({"hosts": None}, TypeError, "takes an int"),
        ({"hosts": True}, TypeError, "integer"),
        ({"hosts": ["0"]}, TypeError, "integer"),
        ({"hosts": slice("a", None)}, TypeError, "slice indices"),
        ({"hosts": slice(2, 2)}, UsageError, "nothing is left"),
        ({"hosts": slice(4, None)}, UsageError, "nothing is left"),
        ({"hosts": range(0)}, UsageError, "nothing is left"),
        ({"hosts": []}, UsageError, "nothing is left"),
        ({"hosts": [1, 1]}, UsageError, "twice"),
        ({"hosts": slice(None, None, 0)}, UsageError, "must not be 0"),
    ],
)
def test_bad_indices_are_refused(indices, error, says):
    with pytest.raises(error, match=says):
        Region.of({"hosts": 4, "gpus": 8}).slice(**indices)


def test_a_mesh_without_dimensions_says_so():
    with pytest.raises(TypeError, match="no dimensions"):
        Region(Extent((), ())).slice(hosts=0)


def test_split_finds_the_size_left_out():
    region = Region.of({"hosts": 8, "gpus": 4})
    split = region.split(hosts=("dp", "pp"), gpus=("tp", "cp"), pp=2, cp=4)
    assert split.extent == Extent.of({"dp": 4, "pp": 2, "tp": 1, "cp": 4})
    assert split.ranks == region.ranks
    assert region.split(hosts=("a", "b"), a=4, b=2).extent["b"] == 2
    # A part may have the name of what it is a part of.
    assert region.split(gpus=("gpus", "tp"), tp=2).labels == ("hosts", "gpus", "tp")


@pytest.mark.parametrize(
    ("parts", "error", "says"),
    [
        ({"hosts": ("a", "b")}, UsageError, "but one"),
        ({"hosts": ("a", "b"), "a": 3}, UsageError, "does not split"),
        ({"hosts": ("a", "b"), "a": 2, "b": 2}, UsageError, "does not split"),
        ({"hosts": ("a", "b"), "a": 0}, UsageError, "at least 1"),
        ({"hosts": ("a", "a"), "a": 2}, UsageError, "does not split|must differ"),
        ({"hosts": ("gpus", "b"), "b": 2}, UsageError, "must differ"),
        ({"hosts": ("a", "b c"), "a": 2}, UsageError, "cannot name"),
        ({"hosts": ()}, UsageError, "at least one part"),
        ({"racks": ("a", "b"), "a": 2}, TypeError, "no dimension 'racks'"),
        ({"a": 2}, TypeError, "no dimension is split into it"),
        ({"hosts": "ab"}, TypeError, "tuple of names"),
        ({"hosts": ("a", "b"), "a": 2.0}, TypeError, "integer"),
    ],
)
def test_bad_splits_are_refused(parts, error, says):
    with pytest.raises(error, match=says):
        Region.of({"hosts": 8, "gpus": 4}).split(**parts)


def test_rename():
    region = Region.of({"hosts": 8, "gpus": 4})
    assert region.rename(hosts="dp", gpus="tp").labels == ("dp", "tp")
    assert region.rename(hosts="gpus", gpus="hosts").extent == Extent.of({"gpus": 8, "hosts": 4})
    with pytest.raises(UsageError, match="must differ"):
        region.rename(hosts="gpus")
    with pytest.raises(TypeError, match="no dimension 'racks'"):
        region.rename(racks="a")
    with pytest.raises(TypeError, match="must be text"):
        region.rename(hosts=3)


@pytest.mark.parametrize("ranks", [[0, 1], [0, 1, 2, 2], [0, 1, 2, -1]])
def test_bad_ranks_are_refused(ranks):
    with pytest.raises(UsageError):
        Region.from_ranks(Extent.of({"a": 2, "b": 2}), ranks)


def test_what_is_not_covered_has_no_place():
    part = Region.of({"hosts": 4, "gpus": 2}).slice(gpus=1)
    with pytest.raises(IndexError, match="rank 2 is not in"):
        part.local_rank(2)
    with pytest.raises(IndexError):
        part.global_rank(4)
    assert "1" not in part


def test_a_region_prints_short():
    region = Region.of({"hosts": 400, "gpus": 8})
    assert repr(region) == "Region({'hosts': 400, 'gpus': 8})"
    assert repr(region.slice(hosts=3, gpus=[0, 5])) == "Region({'gpus': 2}, ranks 24, 29)"
    assert repr(region.slice(hosts=3, gpus=[0, 5]).slice(gpus=0)) == "Region({}, ranks 24)"
    assert repr(region.slice(gpus=1)) == "Region({'hosts': 400}, 400 ranks from 1)"
