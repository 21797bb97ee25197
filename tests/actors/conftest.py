"""What the tests of actors share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

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


@pytest.fixture(scope="module")
def hosts(request, outlives_tests, tmp_path_factory) -> Iterator[sm.HostMesh]:
    """Hosts for the tests of a module: one, or as many as its ``HOSTS`` says."""
    folder = tmp_path_factory.mktemp("job")
    made = sm.local_hosts(getattr(request.module, "HOSTS", 1), folder)
    with outlives_tests(folder):
        yield made
    made.stop()


@pytest.fixture
def procs(hosts: sm.HostMesh) -> Iterator[sm.ProcMesh]:
    """One proc on each host, for one test."""
    made = hosts.spawn_procs(name="procs")
    yield made
    made.stop(grace_s=10).get(60)


@pytest.fixture
def mortal(hosts: sm.HostMesh) -> Iterator[sm.ProcMesh]:
    """Two procs on each host, for a test that kills."""
    made = hosts.spawn_procs({"gpus": 2}, name="mortal")
    yield made
    made.stop(grace_s=1).get(60)


@pytest.fixture
def here(monkeypatch, hosts) -> sm.ProcMesh:
    """``this_proc()`` of the job of these tests; the program has none of its own."""
    monkeypatch.setattr("slurmmesh.hosts.here._this_host", hosts.slice(hosts=0))
    return sm.this_proc()
