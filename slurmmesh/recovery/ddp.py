"""Per-step data parallelism over replicas that may die."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed import ReduceOp
from torch.optim import Optimizer

from slurmmesh.errors import UsageError
from slurmmesh.recovery.hook import ReplicatedModel
from slurmmesh.recovery.session import MISSING_PAUSE_S, Session, Step

if TYPE_CHECKING:
    from slurmmesh.recovery.replica import Replica, Stateful


class DdpSession(Session):
    """Gradients are averaged over the replicas of the quorum in every step.

    ::

        session = replica.ddp(model, optimizer)
        for step in session.steps(1000):
            inputs, targets = batch(step.batch)
            loss = loss_of(session.model(inputs), targets)
            session.step(loss)

    A step in which a replica died is tried again with those that are left: the loop gives the
    same ``step.number`` once more. Made by :meth:`Replica.ddp`.

    Attributes:
        model: the model to call in the loop; its gradients are averaged during backward.
    """

    def __init__(
        self,
        replica: Replica,
        model: nn.Module,
        optimizer: Optimizer,
        state: Mapping[str, Stateful],
    ) -> None:
        super().__init__(replica, model, state)
        self._optimizer = optimizer
        self.model = ReplicatedModel(
            self._manager, model, replica.average_in_group if replica.group_size > 1 else None
        )
        self._began = 0.0
        self._loss: torch.Tensor | None = None
        self._stepped = True
        self._last_loss = float("nan")

    @property
    def step_number(self) -> int:
        """Steps committed so far by the run."""
        return int(self._manager.current_step())

    def steps(self, total: int) -> Iterator[Step]:
        """Yield what to do until ``total`` steps are committed.

        Raises:
            UsageError: the body did not call ``step`` exactly once.
            RunOver: the run ended before this replica, restarted, was back in it.
            NoQuorum: the Lighthouse or the other replicas cannot be reached.
        """
        self._begin(total)
        while True:
            if not self._join():
                continue
            if self.step_number >= total:
                if self._part_in_peace():
                    break
                continue
            if self.step_number == total - 1 and not self._everyone_is_here():
                continue
            self._began = time.perf_counter()
            self._stepped = False
            self._optimizer.zero_grad()
            yield Step(self.step_number, self._my_batch())
            if not self._stepped:
                raise UsageError("call session.step(loss) once in each turn of the loop")
        self._replica.emit("replica_finished", step=self.step_number, loss=self._last_loss)
        self._close()

    def backward(self, loss: torch.Tensor) -> None:
        """Compute the gradients, averaged over the replicas. Then call :meth:`step` without loss.

        For what has to happen in between, such as clipping.
        """
        self._loss = loss.detach()
        loss.backward()

    def step(self, loss: torch.Tensor | None = None) -> bool:
        """Backward (if given a loss), vote, and step the optimizer if the vote is for it.

        Returns:
            whether the step was committed.

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
        committed = self._vote()
        if committed:
            self._optimizer.step()
            self._next_batch += self.participants * self._replica.group_size
            self._tell_committed()
        self._last_loss, self._loss = float(self._loss), None
        self._replica.emit(
            "step",
            step=self.step_number,
            loss=self._last_loss,
            participants=self.participants,
            quorum=self._view.quorum,
            participating=True,
            committed=committed,
            duration_s=time.perf_counter() - self._began,
        )
        return committed

    def _everyone_is_here(self) -> bool:
        """Before the last step: False as long as a member waits for a replica that died."""
        missed = torch.tensor([float(self._is_missed())])
        self._manager.allreduce(missed, reduce_op=ReduceOp.MAX).wait()
        if not self._replica.all_in_group(self._manager.errored() is None):
            self._give_up_try()
            return False
        if missed.item():
            time.sleep(MISSING_PAUSE_S)
        return not missed.item()

    def _my_batch(self) -> int:
        group_size = self._replica.group_size
        return self._next_batch + self._view.rank * group_size + self._replica.group_rank

    def _save_state(self) -> dict[str, Any]:
        return {
            **super()._save_state(),
            "model": {**self._module.state_dict(), **self._buffers()},
            "optimizer": self._optimizer.state_dict(),
        }

    def _load_state(self, state: dict[str, Any]) -> None:
        super()._load_state(state)
        self._module.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
