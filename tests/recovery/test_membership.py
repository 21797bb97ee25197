"""Names of members, deaths, and quorum ids that do not repeat."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.recovery.membership import Membership, member_name, parse_member
from slurmmesh.recovery.quorum import QuorumClient, unique_quorum_id

replicas = st.integers(0, 9999)
incarnations = st.integers(0, 999_999)


@given(replicas, incarnations, st.uuids())
def test_a_name_tells_replica_and_incarnation(replica, incarnation, uuid):
    name = member_name(replica, incarnation)
    assert parse_member(name) == (replica, incarnation)
    assert parse_member(f"{name}:{uuid}") == (replica, incarnation)
    # TorchFT takes the digits at the end for the replica's number.
    assert name.endswith(f"_{replica}")


@given(st.lists(st.tuples(replicas, incarnations), min_size=2, max_size=20, unique=True))
def test_members_that_live_longer_sort_first(members):
    names = sorted(member_name(*member) for member in members)
    assert [parse_member(name)[1] for name in names] == sorted(i for _, i in members)


@pytest.mark.parametrize("name", ["", "replica_1", "start1_replica_", "startx_replica_1"])
def test_other_names_are_refused(name):
    with pytest.raises(ValueError, match="not the name of a replica"):
        parse_member(name)


def test_a_death_concerns_that_start_of_the_replica_only():
    membership = Membership()
    membership.set_members([member_name(0, 0), member_name(1, 2)])
    assert not membership.died(1, 1)
    assert membership.dead_members() == ()
    assert membership.died(1, 2)
    assert membership.dead_members() == (1,)
    membership.set_members([member_name(0, 0), member_name(1, 3)])
    assert membership.dead_members() == ()
    assert membership.replicas == (0, 1)


def test_a_death_is_remembered_for_quorums_to_come():
    membership = Membership()
    membership.died(2, 0)
    membership.set_members([member_name(0, 0), member_name(2, 0)])
    assert membership.dead_members() == (2,)


def test_who_starts_knows_of_earlier_deaths():
    membership = Membership(alive_from=(0, 1, 2), gone=(1,))
    membership.set_members([member_name(0, 0), member_name(1, 0), member_name(2, 1)])
    assert membership.dead_members() == (1, 2)
    assert membership.missing() == (2,)


def test_a_successor_refuses_a_quorum_that_holds_its_predecessor():
    membership = Membership()
    membership.set_members([member_name(0, 0), member_name(1, 0), member_name(1, 1)])
    assert membership.dead_members() == (1,)
    membership.set_members([member_name(0, 0), member_name(1, 0)])
    assert membership.dead_members() == (1,)  # it stays known
    membership.set_members([member_name(0, 0), member_name(1, 1)])
    assert membership.dead_members() == ()
    assert membership.missing() == ()


def test_missing_are_those_who_died_and_are_not_back():
    membership = Membership()
    assert membership.missing() == ()
    membership.set_members([member_name(0, 0), member_name(1, 0)])
    membership.died(1, 0)
    membership.set_members([member_name(0, 0)])
    assert membership.missing() == (1,)
    membership.set_members([member_name(0, 0), member_name(1, 1)])
    assert membership.missing() == ()


def test_who_is_gone_for_good_is_not_missing():
    membership = Membership()
    membership.set_members([member_name(0, 0)])
    membership.died(1, 0)
    membership.gone(1)
    assert membership.missing() == ()
    assert membership.dead_members() == ()


def test_the_id_of_a_quorum_depends_on_its_members():
    assert unique_quorum_id(1, ("a", "b")) == unique_quorum_id(1, ("a", "b"))
    different = {
        unique_quorum_id(1, ("a", "b")),
        unique_quorum_id(1, ("a", "c")),
        unique_quorum_id(1, ("a",)),
        unique_quorum_id(2, ("a", "b")),
    }
    assert len(different) == 4


class FakeClient:
    """Answers as TorchFT's native client does."""

    def __init__(self, **answer: Any) -> None:
        self.answer = answer

    def _quorum(self, **_request: Any) -> SimpleNamespace:
        return SimpleNamespace(**self.answer)

    def should_commit(self, *_args: Any, **_kwargs: Any) -> str:
        return "passed through"


def answer(**changes: Any) -> dict[str, Any]:
    return {
        "quorum_id": 3,
        "replica_rank": 1,
        "replica_world_size": 2,
        "recover_src_manager_address": "http://a:1",
        "recover_src_replica_rank": 0,
        "recover_dst_replica_ranks": [],
        "store_address": "10.0.0.1:29500",
        "max_step": 7,
        "max_replica_rank": None,
        "max_world_size": 1,
        "heal": True,
        "replica_ids": [f"{member_name(4, 0)}:x", f"{member_name(2, 1)}:y"],
        **changes,
    }


def test_the_manager_gets_unique_ids_and_store_prefixes():
    client = QuorumClient(FakeClient(**answer()), Membership())
    first = client._quorum(group_rank=0)
    again = QuorumClient(FakeClient(**answer(max_step=9)), Membership())._quorum(group_rank=0)
    assert first.quorum_id == again.quorum_id
    assert first.store_address == "10.0.0.1:29500/step7"
    assert again.store_address == "10.0.0.1:29500/step9"
    assert first.max_replica_rank is None
    assert client.should_commit(0) == "passed through"


def test_the_view_names_replicas_not_places():
    client = QuorumClient(FakeClient(**answer()), Membership())
    client._quorum(group_rank=0)
    view = client.view
    assert view is not None
    assert (view.quorum, view.replicas, view.rank, view.step) == (3, (4, 2), 1, 7)
    assert view.healed_from == 4


def test_one_that_is_up_to_date_is_healed_from_nobody():
    client = QuorumClient(FakeClient(**answer(heal=False)), Membership())
    client._quorum(group_rank=0)
    assert client.view is not None
    assert client.view.healed_from is None
