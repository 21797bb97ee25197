"""What the tests of actors share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import slurmmesh as sm


@pytest.fixture(scope="session")
def link_up(wait_until) -> Callable[[sm.ActorMesh, str], None]:
    """``link_up(actors, endpoint)``: calls each rank until there is a direct link to it.

    For meshes that outlive a test: a link that comes up in the middle of one looks like a leak.
    """

    def until_direct(actors: sm.ActorMesh, endpoint: str) -> None:
        for point in actors.extent.points():
            one = getattr(actors.slice(**point), endpoint)

            def is_direct(one: sm.actors.endpoints.EndpointRef = one) -> bool:
                one.call_one().get(60)
                return one._place is not None and one._place.direct is not None

            wait_until(is_direct)

    return until_direct
