"""Introductions: asked for from any thread, carried out in the loop's. Doubles for the hosts: what
matters is who does what where."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from slurmmesh.actors.messages import Door, OpenDoor
from slurmmesh.hosts.introductions import Introductions
from slurmmesh.hosts.routes import HELD_BYTES, Routes
from slurmmesh.wire.frames import URGENT, Frame, Kind


def test_a_door_is_asked_for_once_and_dialed_in_the_loop():
    told: list[Any] = []
    dialed: list[Door] = []
    soon: list[tuple[Any, ...]] = []
    host = SimpleNamespace(link=SimpleNamespace(passes_fds=False))
    roster: Any = SimpleNamespace(
        hosts=[host], tell=lambda _host, message: told.append(message) or True
    )
    ranks = [SimpleNamespace(gone=False, host=0, incarnation=0)]
    meshes: Any = {1: SimpleNamespace(ranks=ranks)}
    made = Introductions(roster, meshes, dialed.append, lambda *what: soon.append(what))

    def ask_and_run() -> None:
        thread = threading.Thread(target=lambda: made.ask(1, 0))
        thread.start()
        thread.join(10)
        callback, *args = soon.pop()
        callback(*args)

    ask_and_run()
    ask_and_run()
    assert [type(message) for message in told] == [OpenDoor]
    door = Door(1, 0, 0, "node1", 4000, "host-0")
    made.opened(door)
    assert dialed == [door, door]
    assert made.ask(1, 0)  # the door is known: still not dialed by whoever asks
    assert dialed == [door, door]
    assert len(soon) == 1


def test_an_order_to_an_actor_does_not_wait_for_room():
    """Who sends it holds the lock that answers need, and answers make room."""
    posted: list[Frame] = []
    routes = Routes(
        lambda _mesh, ranks: {0: list(ranks)},
        lambda _host: SimpleNamespace(post=posted.append),  # type: ignore[arg-type,return-value]
        lambda frame, _rank: frame,
        lambda _frame: None,
        lambda _delay, _callback: None,
        lambda: True,
    )
    routes._held_bytes = HELD_BYTES
    order = Frame(Kind.CALL, b"stop", call=1, mesh=1, ranks=(0,), flags=URGENT)
    thread = threading.Thread(target=routes.send, args=(order,), daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert len(posted) == 1
