"""DiLoCo over replicas that may die: train apart, average now and then, lose nothing.

Each replica takes inner steps by itself. After ``sync_every`` of them the replicas meet: the
change of the parameters since the last sync is averaged over them, and an outer optimizer
applies it to the parameters they had in common ("the common parameters" below).

Every meeting is a *round*: a quorum, one small allreduce in which the members tell where they
stand, and a vote. If all who have state stand at the end of their window, the round is a sync.
If not, nothing is averaged: the round only lets somebody in. So a restarted replica is let in
at once, between two syncs: whoever is asked for comes to a round after its present inner step
and goes on where it was. A replica that was let in has the common parameters and trains for
what is left of the window; its share in the next average is weighed with the steps it took.

Unlike TorchFT's own DiLoCo, replicas whose sync fails keep their inner steps and try the same
sync again without the dead, and a restarted replica takes no inner step before it is healed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed import ReduceOp
from torch.optim import SGD, Optimizer

from slurmmesh.errors import UsageError
from slurmmesh.recovery.session import MISSING_PAUSE_S, Session, Step

if TYPE_CHECKING:
    from slurmmesh.recovery.replica import Replica, Stateful


class DilocoSession(Session):
    """Replicas train apart and average every ``sync_every`` inner steps.

    ::

        session = replica.diloco(model, optimizer, sync_every=20)
        for step in session.steps(50):                  # 50 syncs, 1000 inner steps
            inputs, targets = batch(step.batch)
            loss = loss_of(session.model(inputs), targets)
            session.step(loss)

    Made by :meth:`Replica.diloco`. A committed step is one sync (of one fragment).

    Attributes:
        model: the model to call in the loop.
        window: inner steps between two syncs (of whatever fragment).
    """

    def __init__(
        self,
        replica: Replica,
        model: nn.Module,
        inner_optimizer: Optimizer,
        outer_optimizer: Optimizer | None,
        sync_every: int,
        fragments: Sequence[nn.Module] | None,
        state: Mapping[str, Stateful],
    ) -> None:
        self.model = model
        self._fragments = split_parameters(model, fragments)
        if sync_every < 1 or sync_every % len(self._fragments):
            raise UsageError(
                f"sync_every must be a positive multiple of the {len(self._fragments)} "
                f"fragment(s), not {sync_every}"
            )
        self.window = sync_every // len(self._fragments)
        self._inner_optimizer = inner_optimizer
        self._outer_optimizer = outer_optimizer or SGD(
            model.parameters(), lr=0.7, momentum=0.9, nesterov=True
        )
        self._common = {name: p.detach().clone() for name, p in model.named_parameters()}
        self._syncs = 0
        self._inner = 0
        self._taken = 0
        self._first_batch = 0
        self._to_be_let_in = True
        self._losses: list[float] = []
        self._loss: torch.Tensor | None = None
        self._stepped = True
        self._began = time.perf_counter()
        super().__init__(replica, model, state)

    @property
    def step_number(self) -> int:
        """Syncs committed so far by the run."""
        return self._syncs

    def steps(self, total: int) -> Iterator[Step]:
        """Yield the inner steps to take until ``total`` syncs are committed.

        Raises:
            UsageError: the body did not call ``step`` exactly once.
            RunOver: the run ended before this replica, restarted, was back in it.
            NoQuorum: the Lighthouse or the other replicas cannot be reached.
        """
        self._begin(total)
        finished = False
        while not finished:
            if self._syncs >= total or self._wants_round():
                finished = self._round(total)
                continue
            self._stepped = False
            self._inner_optimizer.zero_grad()
            yield Step(self._syncs, self._my_batch(), self._inner)
            if not self._stepped:
                raise UsageError("call session.step(loss) once in each turn of the loop")
        self._take_common()
        self._replica.emit("replica_finished", step=self._syncs, loss=self._mean_loss())
        self._close()

    def backward(self, loss: torch.Tensor) -> None:
        """Compute this replica's gradients. Then call :meth:`step` without a loss."""
        self._loss = loss.detach()
        loss.backward()

    def step(self, loss: torch.Tensor | None = None) -> bool:
        """Backward (if given a loss) and one inner step. Always True: inner steps are not voted on.

        Raises:
            UsageError: called twice in one turn, or without a loss when there was no backward.
        """
        if self._stepped:
            raise UsageError("session.step was called twice in one turn of the loop")
        if loss is not None:
            self.backward(loss)
        if self._loss is None:
            raise UsageError("session.step() needs a loss, or session.backward(loss) before it")
        self._stepped = True
        if self._replica.group_size > 1:
            self._average_gradients_in_group()
        self._inner_optimizer.step()
        self._inner += 1
        self._taken += 1
        value, self._loss = float(self._loss), None
        self._losses.append(value)
        self._replica.emit("inner_step", step=self._syncs, inner=self._inner, loss=value)
        return True

    # ------------------------------------------------------------------ rounds

    def _wants_round(self) -> bool:
        return (
            self._to_be_let_in or self._inner >= self.window or self._replica.control.meeting_wanted
        )

    def _round(self, total: int) -> bool:
        """Meet the others once. True when the run is finished."""
        self._replica.control.met()  # a call that comes from here on asks for another round
        if not self._join():
            return False
        if self._syncs >= total:
            return self._part_in_peace()
        is_sync, newcomers = self._take_stock(is_last=self._syncs == total - 1)
        average = self._average_change() if is_sync else None
        if not self._replica.all_in_group(self._manager.errored() is None):
            self._give_up_try()
            self._tell_step(committed=False)
            return False
        if not self._vote():
            self._tell_step(committed=False)
            return False
        if average is not None:
            self._apply(average)
            self._hand_out_batches(self._view.rank, len(self._view.replicas))
            self._tell_step(committed=True)
            self._inner = self._taken = 0
            if self._syncs < total:
                self._losses = []
            if self._syncs == total - 1:
                self._tell("ending", time.time())
        else:
            mine = newcomers.index(self._view.rank) if self._to_be_let_in else None
            self._hand_out_batches(mine, len(newcomers))
            if self._to_be_let_in:  # a share in the next sync needs a step at least
                self._inner = min(self._inner, self.window - 1)
        self._to_be_let_in = False
        return False

    def _take_stock(self, is_last: bool) -> tuple[bool, list[int]]:
        """Whether this round is a sync, and which places are newcomers, the same on all members."""
        standing = torch.zeros(3 + len(self._view.replicas))
        if self._to_be_let_in:
            standing[3 + self._view.rank] = 1
        elif self._inner >= self.window:
            standing[0] = 1
            standing[2] = float(is_last and self._is_missed())
        else:
            standing[1] = 1
        self._manager.allreduce(standing, reduce_op=ReduceOp.SUM).wait()
        if self._manager.errored() is not None:
            return False, []  # a failed allreduce leaves anything in its tensor
        ready, under_way, missed, *is_newcomer = (int(count) for count in standing)
        newcomers = [place for place, count in enumerate(is_newcomer) if count]
        if missed:
            time.sleep(MISSING_PAUSE_S)
        # Who came back for the last sync of all is let in first, to have a share in it.
        waits = missed > 0 or (is_last and bool(newcomers))
        return ready > 0 and under_way == 0 and not waits, newcomers

    def _average_change(self) -> torch.Tensor:
        """The change of the next fragment, averaged with each replica's steps as its weight."""
        parameters = self._fragments[self._syncs % len(self._fragments)]
        weight = 0.0 if self._to_be_let_in else self._taken / self.window
        change = torch.cat(
            [(self._common[name] - p.detach()).flatten() for name, p in parameters.items()]
        )
        message = torch.cat([change * weight, change.new_tensor([weight])])
        self._manager.allreduce(message, reduce_op=ReduceOp.SUM).wait()
        return message[:-1] / message[-1].clamp(min=1e-6)

    def _apply(self, average: torch.Tensor) -> None:
        """Take the outer step on the common parameters of the fragment, and train on from them."""
        parameters = self._fragments[self._syncs % len(self._fragments)]
        for p in self._module.parameters():
            p.grad = None
        sizes = [p.numel() for p in parameters.values()]
        for (name, p), part in zip(parameters.items(), average.split(sizes), strict=True):
            p.data.copy_(self._common[name])
            p.grad = part.view_as(p)
        self._outer_optimizer.step()
        for name, p in parameters.items():
            self._common[name].copy_(p.detach())
            p.grad = None
        self._syncs += 1

    def _tell_step(self, committed: bool) -> None:
        contributes = not self._to_be_let_in and self._taken > 0
        loss = self._mean_loss()
        if committed and contributes and loss is not None:
            self._tell_committed()
        self._replica.emit(
            "step",
            step=self._syncs,
            loss=loss,
            participants=self.participants,
            quorum=self._view.quorum,
            participating=contributes,
            committed=committed,
            duration_s=time.perf_counter() - self._began,
        )
        self._began = time.perf_counter()
        if not committed:
            # Others may have committed and be in their next window, and we wait for them.
            self._replica.report("waits")

    def _mean_loss(self) -> float | None:
        return sum(self._losses) / len(self._losses) if self._losses else None

    # ------------------------------------------------------------------ data

    def _hand_out_batches(self, place: int | None, count: int) -> None:
        """Give ``count`` members their batches for the window; ``place`` is ours among them."""
        if place is not None:
            self._first_batch = self._next_batch + place * self.window
        self._next_batch += count * self.window

    def _my_batch(self) -> int:
        index = self._first_batch + self._taken
        return index * self._replica.group_size + self._replica.group_rank

    def _average_gradients_in_group(self) -> None:
        for p in self._module.parameters():
            if p.grad is not None:
                self._replica.average_in_group(p.grad)

    # ------------------------------------------------------------------ the state

    def _save_state(self) -> dict[str, Any]:
        return {
            **super()._save_state(),
            "common": self._common,
            "buffers": self._buffers(),
            "inner_optimizer": self._inner_optimizer.state_dict(),
            "outer_optimizer": self._outer_optimizer.state_dict(),
            "syncs": self._syncs,
            "inner": self._inner,
        }

    def _take_common(self) -> None:
        """Set the model to the common parameters, which are the same on all replicas."""
        with torch.no_grad():
            for name, p in self._module.named_parameters():
                p.copy_(self._common[name])

    def _load_state(self, state: dict[str, Any]) -> None:
        super()._load_state(state)
        for name, common in self._common.items():
            common.copy_(state["common"][name])
        self._take_common()
        self._module.load_state_dict(state["buffers"], strict=False)
        self._inner_optimizer.load_state_dict(state["inner_optimizer"])
        self._outer_optimizer.load_state_dict(state["outer_optimizer"])
        self._syncs, self._inner, self._taken = state["syncs"], state["inner"], 0
        self._to_be_let_in = True
        self._losses = []


def split_parameters(
    model: nn.Module, fragments: Sequence[nn.Module] | None
) -> list[dict[str, nn.Parameter]]:
    """The model's parameters by fragment, each under its name in the model.

    Raises:
        UsageError: a parameter is in no fragment, or in two, or a fragment has none.
    """
    names = {id(p): name for name, p in model.named_parameters()}
    if fragments is None:
        return [dict(model.named_parameters())]
    split: list[dict[str, nn.Parameter]] = []
    for index, fragment in enumerate(fragments):
        mine = {}
        for p in fragment.parameters():
            if id(p) not in names:
                raise UsageError(
                    f"fragment {index} holds a parameter that is not in the model or is in an "
                    "earlier fragment too"
                )
            mine[names.pop(id(p))] = p
        if not mine:
            raise UsageError(f"fragment {index} has no parameters")
        split.append(mine)
    if names:
        raise UsageError(f"in no fragment: {', '.join(sorted(names.values()))}")
    return split
