"""The sessions' arithmetic, with a stand-in for TorchFT's Manager: one replica, no network."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torchft.local_sgd import DiLoCo

from slurmmesh.errors import UsageError
from slurmmesh.recovery.control import Control, RunOver
from slurmmesh.recovery.ddp import DdpSession
from slurmmesh.recovery.diloco import DilocoSession, split_parameters
from slurmmesh.recovery.membership import Membership
from slurmmesh.recovery.settings import RecoverySettings


class FakeWork:
    def wait(self) -> bool:
        return True

    def get_future(self) -> torch.futures.Future:
        return torch.futures.Future()


class FakeManager:
    """Alone in its quorum; every step is committed unless told otherwise."""

    def __init__(self) -> None:
        self.step = 0
        self.refuse = 0
        self.error: Exception | None = None
        self.fail_next = 0
        self._quorum_id = 1
        self._use_async_quorum = False
        self.functions: dict[str, Any] = {}

    def register_state_dict_fn(self, name, load, save) -> None:
        self.functions[name] = (load, save)

    def start_quorum(self) -> None:
        self.error = None

    def errored(self):
        return self.error

    def report_error(self, error) -> None:
        self.error = error

    def allreduce(self, tensor, should_quantize=False, reduce_op=None) -> FakeWork:
        if self.fail_next:
            self.fail_next -= 1
            if self.fail_next == 0:
                self.error = RuntimeError("a peer is gone")
                tensor.fill_(float("nan"))
        return FakeWork()

    def should_commit(self) -> bool:
        if self.error is not None:
            return False
        if self.refuse:
            self.refuse -= 1
            return False
        self.step += 1
        return True

    def current_step(self) -> int:
        return self.step

    def disallow_state_dict_read(self) -> None: ...

    def allow_state_dict_read(self) -> None: ...

    def shutdown(self, wait: bool) -> None: ...


class FakeReplica:
    def __init__(self, progress: int = 0) -> None:
        self.manager = FakeManager()
        self.control = Control()
        self.membership = Membership()
        self.assignment = SimpleNamespace(
            progress=progress, incarnation=0, settings=RecoverySettings()
        )
        self.quorums = SimpleNamespace(
            view=SimpleNamespace(names=("a",), replicas=(0,), rank=0, quorum=1, healed_from=None)
        )
        self.transport = SimpleNamespace(disallow_checkpoint=lambda: None)
        self.process_group = SimpleNamespace(abort=lambda errored: None, configured_at=1.0)
        self.rank, self.group_rank, self.group_size = 0, 0, 1
        self.events: list[tuple[str, dict]] = []
        self.reports: list[str] = []

    def all_in_group(self, value: bool) -> bool:
        return value

    def emit(self, kind, **fields) -> None:
        self.events.append((kind, fields))

    def report(self, word, **_details) -> None:
        self.reports.append(word)

    def average_in_group(self, tensor) -> None: ...


def make_model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def loss_of(model: nn.Module, number: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(number)
    return model(torch.randn(5, 4, generator=generator)).pow(2).mean()


def diloco(replica: FakeReplica, model: nn.Module, sync_every: int, **options) -> DilocoSession:
    inner = torch.optim.SGD(model.parameters(), 0.1, momentum=0.5)
    return DilocoSession(
        replica, model, inner, None, sync_every, options.get("fragments"), options.get("state", {})
    )


@pytest.mark.parametrize("in_fragments", [False, True])
def test_diloco_computes_what_torchfts_does(in_fragments):
    ours, theirs = make_model(), make_model()
    session = diloco(FakeReplica(), ours, 6, fragments=[ours[0], ours[2]] if in_fragments else None)
    inner = torch.optim.SGD(theirs.parameters(), 0.1, momentum=0.5)
    parts = [theirs[0], theirs[2]] if in_fragments else [theirs]
    outer = [torch.optim.SGD(part.parameters(), 0.7, momentum=0.9, nesterov=True) for part in parts]
    manager = FakeManager()
    syncs = 6
    after_sync: list[list[torch.Tensor]] = []
    for step in session.steps(syncs):
        if step.inner == 0:
            after_sync.append([p.detach().clone() for p in ours.parameters()])
        session.step(loss_of(ours, step.batch))
    number = 0
    with DiLoCo(manager, parts, inner, outer, sync_every=6, pin_memory=False):
        for sync in range(syncs):
            expected = list(theirs.parameters())
            for mine, his in zip(after_sync[sync], expected, strict=True):
                torch.testing.assert_close(mine, his)
            while manager.step == sync:
                inner.zero_grad()
                loss_of(theirs, number).backward()
                inner.step()
                number += 1


def test_a_failed_sync_keeps_the_inner_steps_and_tries_again():
    calm, disturbed = make_model(), make_model()
    for model, refuse in ((calm, 0), (disturbed, 3)):
        replica = FakeReplica()
        session = diloco(replica, model, 4)
        for step in session.steps(3):
            if step.number == 1 and step.inner == 2:
                replica.manager.refuse = refuse
            session.step(loss_of(model, step.batch))
    for a, b in zip(calm.parameters(), disturbed.parameters(), strict=True):
        assert torch.equal(a, b)
    committed = [fields["committed"] for kind, fields in replica.events if kind == "step"]
    assert committed == [True, False, False, False, True, True]
    assert "waits" in replica.reports


@pytest.mark.parametrize("nth", [1, 2])
def test_an_allreduce_that_fails_inside_a_sync_leaves_no_trace(nth):
    calm, disturbed = make_model(), make_model()
    for model, fail in ((calm, 0), (disturbed, nth)):
        replica = FakeReplica()
        session = diloco(replica, model, 4)
        for step in session.steps(3):
            if step.number == 1 and step.inner == 3:
                replica.manager.fail_next = fail
            session.step(loss_of(model, step.batch))
    for a, b in zip(calm.parameters(), disturbed.parameters(), strict=True):
        assert torch.equal(a, b)


def test_no_batch_is_given_twice():
    model = make_model()
    session = diloco(FakeReplica(), model, 4)
    batches = []
    for step in session.steps(5):
        batches.append(step.batch)
        session.step(loss_of(model, step.batch))
    assert len(batches) == 20
    assert len(set(batches)) == 20


def test_a_meeting_lets_somebody_in_and_costs_no_step():
    calm, disturbed = make_model(), make_model()
    for model, meet in ((calm, False), (disturbed, True)):
        replica = FakeReplica()
        session = diloco(replica, model, 4)
        for step in session.steps(3):
            if meet and step.inner == 1:
                replica.control.call_together()
            session.step(loss_of(model, step.batch))
        assert session.step_number == 3
    for a, b in zip(calm.parameters(), disturbed.parameters(), strict=True):
        assert torch.equal(a, b)
    assert replica.manager.step > 3


def test_what_a_donor_gives_makes_the_same_replica():
    model, other = make_model(), make_model()
    session = diloco(replica := FakeReplica(), model, 4)
    for step in session.steps(3):
        session.step(loss_of(model, step.batch))
        if step.number == 2 and step.inner == 1:
            given = copy.deepcopy(replica.manager.functions["session"][1]())
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    healed = diloco(second := FakeReplica(), other, 4)
    second.manager.functions["session"][0](given)
    assert healed.step_number == 2
    for name, p in other.named_parameters():
        assert torch.equal(p, given["common"][name])


@pytest.mark.parametrize("sync_every", [0, -4, 3])
def test_a_bad_window_is_refused(sync_every):
    model = make_model()
    with pytest.raises(UsageError, match="multiple of the 2 fragment"):
        diloco(FakeReplica(), model, sync_every, fragments=[model[0], model[2]])


def test_fragments_must_hold_each_parameter_once():
    model = make_model()
    with pytest.raises(UsageError, match=r"in no fragment: 2.bias, 2.weight"):
        split_parameters(model, [model[0]])
    with pytest.raises(UsageError, match="fragment 1 holds a parameter"):
        split_parameters(model, [model[0], model[0], model[2]])
    with pytest.raises(UsageError, match="fragment 1 has no parameters"):
        split_parameters(model, [model[0], nn.Identity(), model[2]])
    with pytest.raises(UsageError, match="not in the model"):
        split_parameters(model, [nn.Linear(1, 1)])
    assert [list(part) for part in split_parameters(model, [model[2], model[0]])] == [
        ["2.weight", "2.bias"],
        ["0.weight", "0.bias"],
    ]


# ---------------------------------------------------------------------------- per-step DDP


def ddp(replica: FakeReplica, model: nn.Module) -> DdpSession:
    return DdpSession(replica, model, torch.optim.SGD(model.parameters(), 0.1), {})


def test_ddp_trains_as_plain_torch_does():
    ours, plain = make_model(), make_model()
    session = ddp(FakeReplica(), ours)
    for step in session.steps(5):
        session.step(loss_of(session.model, step.batch))
    optimizer = torch.optim.SGD(plain.parameters(), 0.1)
    for number in range(5):
        optimizer.zero_grad()
        loss_of(plain, number).backward()
        optimizer.step()
    for a, b in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_a_failed_ddp_step_is_tried_again_with_the_same_batch():
    replica = FakeReplica()
    model = make_model()
    session = ddp(replica, model)
    seen = []
    for step in session.steps(3):
        seen.append((step.number, step.batch))
        if len(seen) == 2:
            replica.manager.refuse = 1
        session.step(loss_of(session.model, step.batch))
    assert seen == [(0, 0), (1, 1), (1, 1), (2, 2)]
    committed = [fields["committed"] for kind, fields in replica.events if kind == "step"]
    assert committed == [True, False, True, True]


def test_other_history_at_the_same_step_is_healed_not_trained_on():
    """Two replicas at one step number that committed different steps must not be averaged."""
    replica = FakeReplica()
    session = ddp(replica, make_model())
    steps = session.steps(9)
    step = next(steps)
    session.step(loss_of(session.model, step.batch))
    others = session._history + 1

    def allreduce(tensor, reduce_op=None, **_options) -> FakeWork:
        if tensor.dtype == torch.float64:  # the meeting's comparison
            tensor.copy_(torch.tensor([max(session._history, others), -session._history]))
        return FakeWork()

    replica.manager.allreduce = allreduce
    replica.manager._quorum_id += 1
    replica.manager.load_state_dict = lambda state: setattr(replica.manager, "step", state["step"])
    assert not session._join()
    assert replica.manager.step == 0  # behind all others, so the next quorum heals it
    session._history = others
    assert session._join()


@pytest.mark.parametrize("make_session", [ddp, lambda r, m: diloco(r, m, 2)])
class TestMisuse:
    def test_no_step_in_the_loop(self, make_session):
        session = make_session(FakeReplica(), make_model())
        with pytest.raises(UsageError, match="once in each turn"):
            list(session.steps(2))

    def test_two_steps_in_the_loop(self, make_session):
        session = make_session(FakeReplica(), make_model())
        step = next(iter(session.steps(2)))
        session.step(loss_of(session.model, step.batch))
        with pytest.raises(UsageError, match="twice"):
            session.step(loss_of(session.model, step.batch))

    def test_a_step_without_a_loss(self, make_session):
        session = make_session(FakeReplica(), make_model())
        next(iter(session.steps(2)))
        with pytest.raises(UsageError, match="needs a loss"):
            session.step()

    def test_no_steps_at_all(self, make_session):
        with pytest.raises(UsageError, match="at least one step"):
            next(iter(make_session(FakeReplica(), make_model()).steps(0)))

    def test_one_who_comes_back_too_late_is_told(self, make_session):
        replica = FakeReplica(progress=5)
        replica.control.end_run()
        with pytest.raises(RunOver):
            next(iter(make_session(replica, make_model()).steps(9)))

    def test_backward_and_step_apart(self, make_session):
        model = make_model()
        session = make_session(FakeReplica(), model)
        for step in session.steps(2):
            session.backward(loss_of(session.model, step.batch))
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            session.step()
        assert session.step_number == 2
