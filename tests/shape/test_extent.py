"""Extents and points."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.errors import UsageError
from slurmmesh.shape import Extent, Point

EXTENTS = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 5), max_size=4).map(Extent.of)


@given(EXTENTS)
def test_points_number_the_elements_row_major(extent):
    points = list(extent.points())
    assert len(points) == extent.nelements
    coordinates = [tuple(point.values()) for point in points]
    assert coordinates == sorted(set(coordinates))
    for rank, point in enumerate(points):
        assert point.rank == rank
        assert extent.rank_of(point) == rank
        assert extent.point(rank) == point


@given(EXTENTS)
def test_values_survive_pickle_and_copy(extent):
    point = extent.point(extent.nelements - 1)
    for value in (extent, point):
        twin = pickle.loads(pickle.dumps(value))
        assert twin == value
        assert hash(twin) == hash(value)
        assert copy.deepcopy(value) == value


def test_an_extent_is_a_mapping_in_order():
    extent = Extent.of({"hosts": 4, "gpus": 8})
    assert dict(extent) == {"hosts": 4, "gpus": 8}
    assert extent["gpus"] == 8
    assert "racks" not in extent
    assert extent.strides == (8, 1)
    assert str(extent) == "{'hosts': 4, 'gpus': 8}"
    assert extent == Extent(("hosts", "gpus"), (4, 8))
    assert extent != Extent.of({"gpus": 8, "hosts": 4})


def test_a_point_is_a_mapping_and_prints_its_sizes():
    point = Extent.of({"hosts": 4, "gpus": 8}).point(9)
    assert (point["hosts"], point["gpus"], point.rank) == (1, 1, 9)
    assert str(point) == repr(point) == "{'hosts': 1/4, 'gpus': 1/8}"
    assert str(Extent.of({"hosts": 1, "gpus": 2}).point(1)) == "{'hosts': 0/1, 'gpus': 1/2}"
    assert point.size("gpus") == 8
    assert point.size() == 32


def test_no_dimensions_means_one_element():
    point = Extent((), ()).point(0)
    assert (point.rank, dict(point), str(point)) == (0, {}, "{}")


def test_numpy_integers_are_integers():
    np = pytest.importorskip("numpy")
    extent = Extent(("gpus",), (np.int64(8),))
    assert extent.sizes == (8,)
    assert type(extent.sizes[0]) is int
    assert type(extent.point(np.int32(3)).rank) is int


@pytest.mark.parametrize(
    ("labels", "sizes", "error", "says"),
    [
        (("a", "a"), (1, 2), UsageError, "must differ"),
        (("a",), (0,), UsageError, "at least 1, not 0"),
        (("a",), (-2,), UsageError, "at least 1, not -2"),
        (("a", "b"), (1,), UsageError, "2 labels but 1 sizes"),
        (("",), (1,), UsageError, "cannot name a dimension"),
        (("two words",), (1,), UsageError, "cannot name a dimension"),
        ((3,), (1,), TypeError, "named by text"),
        ("gpus", (1, 1, 1, 1), TypeError, "sequence of names"),
        (("a",), (1.5,), TypeError, "integer"),
        (("a",), (True,), TypeError, "integer"),
        (("a",), ("8",), TypeError, "integer"),
    ],
)
def test_bad_extents_are_refused(labels, sizes, error, says):
    with pytest.raises(error, match=says):
        Extent(labels, sizes)


def test_usage_errors_are_value_errors():
    with pytest.raises(ValueError, match="at least 1"):
        Extent.of({"gpus": 0})


@pytest.mark.parametrize("rank", [-1, 32, 1000])
def test_points_outside_are_refused(rank):
    extent = Extent.of({"hosts": 4, "gpus": 8})
    with pytest.raises(IndexError, match="0 to 31"):
        Point(rank, extent)


def test_unknown_dimensions_of_a_point_are_key_errors():
    point = Extent.of({"hosts": 4}).point(0)
    with pytest.raises(KeyError, match="no dimension 'gpus'"):
        point["gpus"]
    with pytest.raises(KeyError):
        point.size("gpus")
    assert point.get("gpus") is None


@pytest.mark.parametrize(
    ("coordinates", "error"),
    [
        ({"hosts": 0}, KeyError),
        ({"hosts": 0, "gpus": 0, "racks": 0}, KeyError),
        ({"hosts": 4, "gpus": 0}, IndexError),
        ({"hosts": 0, "gpus": -1}, IndexError),
        ({"hosts": 0, "gpus": 0.0}, TypeError),
    ],
)
def test_bad_coordinates_are_refused(coordinates, error):
    with pytest.raises(error):
        Extent.of({"hosts": 4, "gpus": 8}).rank_of(coordinates)
