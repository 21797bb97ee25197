"""Several threads send to the same ranks, by both ways: the messages of each keep their order."""

from __future__ import annotations

import random
import threading

import slurmmesh as sm

RANKS = 3
MESSAGES = 400


class Listener(sm.Actor):
    def __init__(self):
        self.heard = {}

    @sm.endpoint
    def hear(self, who, number):
        self.heard.setdefault(who, []).append(number)

    @sm.endpoint
    def all(self):
        return self.heard


def speak(listeners: sm.ActorMesh, who: int) -> None:
    """To each rank every message, in all ways that there are."""
    chance = random.Random(who)
    singly = [listeners.slice(gpus=rank).hear for rank in range(RANKS)]
    for number in range(MESSAGES):
        how = chance.random()
        if how < 0.3:
            listeners.hear.broadcast(who, number)
        elif how < 0.4:
            listeners.hear.call(who, number)
        elif how < 0.45:
            listeners.hear.call(who, number).get(60)
        else:
            for one in singly:
                if how < 0.7:
                    one.broadcast(who, number)
                elif how < 0.98:
                    one.call_one(who, number)
                else:
                    one.call_one(who, number).get(60)


def test_messages_of_each_thread_keep_their_order_whatever_others_send(hosts):
    procs = hosts.spawn_procs({"gpus": RANKS}, name="senders")
    listeners = procs.spawn("listener", Listener)
    threads = [threading.Thread(target=speak, args=(listeners, who)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for heard in listeners.all.call().get(60).values():
        assert heard == {who: list(range(MESSAGES)) for who in range(4)}
    procs.stop().get(60)
