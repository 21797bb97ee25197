"""What holds whatever happens: random events against simulated processes in virtual time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from slurmmesh.errors import ExitCause
from slurmmesh.supervision import (
    STRATEGIES,
    Escalate,
    HostDown,
    KillRanks,
    MeshSupervisor,
    ProcExited,
    ProcUp,
    RestartRanks,
    Supervision,
)

MESH = "trainers"


@dataclass
class Process:
    """A simulated process: what really is, as against what the supervisor was told."""

    rank: int
    pid: int
    incarnation: int
    alive: bool = True
    starting: bool = True  # it was not told to be ready
    ordered: bool = False  # there is an order to end it, which may come too late
    expected: bool = False  # it ended because of an order


def mesh_is_over(world: World) -> bool:
    return world.escalated or world.stopped


@dataclass
class World:
    """Processes that do as the actions say, some time later."""

    spec: Supervision
    size: int
    now: float = 0.0
    pids: int = 0
    running: dict[int, Process] = field(default_factory=dict)
    untold: list[Process] = field(default_factory=list)  # ended, news still on its way
    lost: set[int] = field(default_factory=set)  # ranks that have no place any more
    restarts: list[float] = field(default_factory=list)
    restarted: Counter[int] = field(default_factory=Counter)
    escalated: bool = False
    stopped: bool = False

    def __post_init__(self) -> None:
        self.mesh = MeshSupervisor(self.spec, MESH, self.size)
        for rank in range(self.size):
            self.start(rank, 0)

    def start(self, rank: int, incarnation: int) -> None:
        assert rank not in self.running, "started although the one before still runs"
        assert all(p.rank != rank for p in self.untold), "started before its end was told"
        self.pids += 1
        self.running[rank] = Process(rank, self.pids, incarnation)

    def end(self, process: Process, expected: bool) -> None:
        process.alive, process.expected = False, expected
        del self.running[process.rank]
        self.untold.append(process)

    def tell_end(self, process: Process) -> None:
        self.untold.remove(process)
        signal = 15 if process.expected else 11
        cause = ExitCause(MESH, process.rank, "node", process.pid, signal=signal)
        event = ProcExited(cause, process.incarnation, process.expected)
        self.carry_out(self.mesh.handle(event, self.now))
        assert self.mesh.handle(event, self.now) == [], "the same news twice changed something"

    def carry_out(self, actions: list) -> None:
        for action in actions:
            assert not self.escalated
            assert not self.stopped
            if isinstance(action, KillRanks):
                assert list(action.ranks) == sorted(action.ranks, reverse=True)
                for rank in action.ranks:
                    # It may have died already: then news of that is on its way.
                    ended = {process.rank: process for process in self.untold}
                    process = self.running.get(rank) or ended[rank]
                    assert not process.ordered, "ended twice"
                    process.ordered = True
            elif isinstance(action, RestartRanks):
                assert list(action.ranks) == sorted(action.ranks)
                self.restarts.append(self.now)
                self.restarted.update(action.ranks)
                for rank in action.ranks:
                    assert rank not in self.lost
                    self.start(rank, action.incarnation)
                if self.spec.strategy == "one_for_all":
                    assert action.ranks == tuple(range(self.size))
                if self.spec.strategy == "rest_for_one":
                    assert action.ranks == tuple(range(action.ranks[0], self.size))
                assert action.incarnation == len(self.restarts)
            else:
                assert isinstance(action, Escalate)
                self.escalated = action.ranks == tuple(range(self.size)) or not self.lost


class Rules(RuleBasedStateMachine):
    strategy = "one_for_one"

    @initialize(
        size=st.integers(1, 5),
        max_restarts=st.integers(0, 3),
        within_s=st.sampled_from([1.0, 10.0]),
    )
    def begin(self, size, max_restarts, within_s):
        self.world = World(Supervision(self.strategy, max_restarts, within_s), size)

    @rule(seconds=st.sampled_from([0.0, 0.3, 1.0, 4.0, 20.0]))
    def time_passes(self, seconds):
        self.world.now += seconds

    @rule(data=st.data())
    @precondition(lambda self: self.world.running)
    def a_rank_dies(self, data):
        rank = data.draw(st.sampled_from(sorted(self.world.running)))
        self.world.end(self.world.running[rank], expected=False)

    @rule(data=st.data())
    @precondition(lambda self: any(p.ordered for p in self.world.running.values()))
    def an_order_is_carried_out(self, data):
        ordered = sorted(r for r, p in self.world.running.items() if p.ordered)
        self.world.end(self.world.running[data.draw(st.sampled_from(ordered))], expected=True)

    @rule(data=st.data())
    @precondition(lambda self: self.world.untold)
    def an_end_is_told(self, data):
        self.world.tell_end(data.draw(st.sampled_from(self.world.untold)))

    @rule(data=st.data())
    @precondition(lambda self: self.world.running)
    def a_rank_is_ready(self, data):
        process = self.world.running[data.draw(st.sampled_from(sorted(self.world.running)))]
        process.starting = False
        event = ProcUp(process.rank, "node", process.pid, process.incarnation)
        assert self.world.mesh.handle(event, self.world.now) == []

    @rule(ranks=st.sets(st.integers(0, 4), min_size=1))
    def a_host_is_lost(self, ranks):
        """With it go ranks that run, and the news of those that had just ended."""
        world = self.world
        ranks = {rank for rank in ranks if rank < world.size} - world.lost
        gone = [world.running.pop(rank) for rank in ranks if rank in world.running]
        gone += [process for process in world.untold if process.rank in ranks]
        world.untold = [process for process in world.untold if process.rank not in ranks]
        world.lost.update(process.rank for process in gone)
        causes = tuple(ExitCause(MESH, p.rank, "node", p.pid, detail="lost") for p in gone)
        over = mesh_is_over(world)
        actions = world.mesh.handle(HostDown(causes), world.now)
        if over or not gone:
            assert actions == []
        else:
            assert actions[-1].causes == causes
            assert world.mesh.ended is (self.strategy != "one_for_one")
        world.carry_out(actions)
        world.escalated = world.escalated or (world.mesh.ended and not world.stopped)
        assert world.mesh.handle(HostDown(causes), world.now) == []

    @rule()
    @precondition(lambda self: len(self.world.restarts) > 2)
    def stop(self):
        self.world.mesh.stopping()
        self.world.stopped = True

    @invariant()
    def restarts_stay_within_the_intensity(self):
        if not hasattr(self, "world"):
            return
        spec, restarts = self.world.spec, self.world.restarts
        for start in restarts:
            window = [at for at in restarts if start <= at <= start + spec.within_s]
            assert len(window) <= spec.max_restarts

    @invariant()
    def one_for_all_restarts_everyone_once_per_wave(self):
        if hasattr(self, "world") and self.strategy == "one_for_all":
            counts = {self.world.restarted[rank] for rank in range(self.world.size)}
            assert counts == {len(self.world.restarts)}

    @invariant()
    def a_mesh_that_is_told_everything_always_comes_back(self):
        """No rank is forgotten: once all orders are carried out and told, all ranks
        that have a place run."""
        if not hasattr(self, "world"):
            return
        world = self.world
        settled = not world.untold and not any(p.ordered for p in world.running.values())
        if settled and not mesh_is_over(world):
            assert set(world.running) == set(range(world.size)) - world.lost


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_whatever_happens(strategy):
    machine = type("Rules", (Rules,), {"strategy": strategy})
    case = machine.TestCase
    case.settings = settings(
        max_examples=150,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=[HealthCheck.filter_too_much],
    )
    case("runTest").runTest()
