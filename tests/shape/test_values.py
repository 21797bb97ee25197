"""Value meshes, and what all meshes share."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.errors import UsageError
from slurmmesh.shape import Extent, Region, ValueMesh

EXTENT = Extent.of({"hosts": 2, "gpus": 3})
MESH = ValueMesh(EXTENT, "abcdef")


def test_iterating_gives_points_and_values():
    assert [(str(point), value) for point, value in MESH][4] == ("{'hosts': 1/2, 'gpus': 1/3}", "e")
    assert list(MESH) == list(MESH.items())
    assert MESH.values() == list("abcdef")
    assert len(MESH) == 6


def test_items_by_coordinates():
    assert MESH.item(hosts=1, gpus=0) == "d"
    assert ValueMesh(Extent((), ()), [7]).item() == 7
    for bad, error in [
        ({"hosts": 1}, KeyError),
        ({"hosts": 1, "gpus": 0, "racks": 0}, KeyError),
        ({"hosts": 2, "gpus": 0}, IndexError),
        ({"hosts": 0, "gpus": -1}, IndexError),
    ]:
        with pytest.raises(error):
            MESH.item(**bad)


def test_items_by_rank():
    assert [MESH.get(rank) for rank in range(6)] == list("abcdef")
    assert MESH.slice(hosts=1).get(0) == "d"
    for bad in (-1, 6):
        with pytest.raises(IndexError, match="ranks are 0 to 5"):
            MESH.get(bad)


def test_flattening_and_slicing_keep_the_order_of_values():
    assert MESH.flatten("all").slice(all=range(5, -1, -2)).values() == ["f", "d", "b"]
    assert MESH.slice(gpus=slice(-2, 99)).values() == ["b", "c", "e", "f"]
    assert MESH.slice(gpus=1).flatten("x").extent == Extent.of({"x": 2})
    for bad, error in [
        ({"gpus": 3}, IndexError),
        ({"gpus": -1}, IndexError),
        ({"racks": 0}, TypeError),
        ({"gpus": slice(3, None)}, ValueError),
        ({"gpus": [0, 0]}, ValueError),
    ]:
        with pytest.raises(error):
            MESH.slice(**bad)


def test_a_dimension_may_have_any_name_a_call_can_carry():
    mesh = ValueMesh(Extent.of({"self": 2, "label": 2}), range(4))
    assert mesh.item(self=1, label=0) == 2
    assert list(mesh.slice(self=1).values()) == [2, 3]


def test_slices_count_points_from_zero():
    part = MESH.slice(hosts=1, gpus=[2, 0])
    assert [(point.rank, point["gpus"], value) for point, value in part] == [
        (0, 0, "f"),
        (1, 1, "d"),
    ]
    assert part.extent == Extent.of({"gpus": 2})
    assert MESH.slice(hosts=1).slice(gpus=2) == ValueMesh(Extent((), ()), ["f"])


@given(st.integers(1, 4), st.integers(1, 4), st.data())
def test_values_follow_their_region(hosts, gpus, data):
    region = Region.of({"hosts": hosts, "gpus": gpus})
    mesh = ValueMesh(region, region.ranks)
    some = data.draw(st.lists(st.integers(0, gpus - 1), min_size=1, unique=True))
    for change in (
        lambda m: m.slice(gpus=some),
        lambda m: m.slice(hosts=slice(None, None, -1)).flatten("x"),
        lambda m: m.rename(hosts="dp").split(dp=("a", "b"), a=1),
    ):
        assert list(change(mesh).values()) == list(change(region).ranks)
        assert change(mesh).extent == change(region).extent


def test_the_shape_of_a_mesh():
    assert MESH.extent == EXTENT
    assert MESH.labels == ("hosts", "gpus")
    assert MESH.sizes == {"hosts": 2, "gpus": 3}
    assert (MESH.size(), MESH.size("gpus"), MESH.size(["hosts", "gpus"])) == (6, 3, 6)
    with pytest.raises(KeyError, match="no dimension 'racks'"):
        MESH.size("racks")


def test_the_number_of_values_must_fit():
    with pytest.raises(UsageError, match="needs 6 values, not 2"):
        ValueMesh(EXTENT, "ab")


def test_values_are_values():
    twin = pickle.loads(pickle.dumps(MESH))
    assert twin == MESH
    assert twin != ValueMesh(EXTENT, "abcdeX")
    assert twin != ValueMesh(Extent.of({"hosts": 3, "gpus": 2}), "abcdef")
    assert MESH != "abcdef"


def test_a_mesh_prints_short():
    assert repr(ValueMesh(Extent.of({"gpus": 2}), [0, 1])) == (
        "ValueMesh({'gpus': 0/2}: 0, {'gpus': 1/2}: 1)"
    )
    assert "and 92 more" in repr(ValueMesh(Extent.of({"gpus": 100}), range(100)))
