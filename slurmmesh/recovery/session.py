"""What per-step DDP and DiLoCo have in common: joining quorums, healing, and telling of it."""

from __future__ import annotations

import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed import ReduceOp

from slurmmesh.errors import UsageError
from slurmmesh.recovery.control import RunOver
from slurmmesh.recovery.errors import HistoryDiffers, NoQuorum
from slurmmesh.recovery.quorum import QuorumView

if TYPE_CHECKING:
    from slurmmesh.recovery.replica import Replica, Stateful

_DONOR_PAUSE_S = 0.05
MISSING_PAUSE_S = 0.02
_PROGRESS_EVERY_S = 0.5


@dataclass(frozen=True)
class Step:
    """What to do in one turn of the training loop.

    Attributes:
        number: committed steps before this one. It stays the same when a step is tried again.
        batch: number of the batch to train on. No two replicas get the same, none is given out
            again once its step is committed, and a step that failed gives its batches again.
        inner: steps this replica took since the last sync; always 0 with per-step DDP.
    """

    number: int
    batch: int
    inner: int = 0


class Session(ABC):
    """Base of the sessions; not for use by itself.

    The state that a restarted replica takes from a donor is the model, the optimizers, the
    user's own stateful objects and the session's counters.
    """

    def __init__(self, replica: Replica, model: nn.Module, state: Mapping[str, Stateful]) -> None:
        self._replica = replica
        self._module = model
        self._extra = dict(state)
        self._manager = replica.manager
        self._has_state = replica.assignment.progress == 0
        self._known_quorum: int | None = None
        self._history = 0
        self._next_batch = 0
        self._told: set[str] = set()
        self._progress_told_at = 0.0
        self._wait_until: float | None = None
        replica.step_number = lambda: self.step_number
        replica.emit(
            "replica_started",
            incarnation=replica.assignment.incarnation,
            device=_device_of(model),
        )
        self._manager.register_state_dict_fn("session", self._load_state, self._save_state)

    @property
    @abstractmethod
    def step_number(self) -> int:
        """Steps committed so far by the run."""

    def _begin(self, total: int) -> None:
        """Check what ``steps`` was given and tell the controller that the training starts."""
        if total < 1:
            raise UsageError(f"at least one step is needed, not {total}")
        self._tell("ready", time.time())

    @property
    def participants(self) -> int:
        """Replicas in the current quorum."""
        return len(self._view.replicas)

    @property
    def _view(self) -> QuorumView:
        view = self._replica.quorums.view
        assert view is not None, "there was no quorum yet"
        return view

    # ------------------------------------------------------------------ the state

    def _save_state(self) -> dict[str, Any]:
        """References to the state, valid until the next commit. Called by the quorum's thread."""
        return {
            "extra": {name: each.state_dict() for name, each in self._extra.items()},
            "history": self._history,
            "next_batch": self._next_batch,
        }

    def _load_state(self, state: dict[str, Any]) -> None:
        for name, each in self._extra.items():
            each.load_state_dict(state["extra"][name])
        self._history = state["history"]
        self._next_batch = state["next_batch"]

    def _buffers(self) -> dict[str, torch.Tensor]:
        """Copies of the model's buffers: a forward pass may change them during the transfer."""
        kept = self._module.state_dict().keys()
        named = self._module.named_buffers()
        return {name: value.detach().clone() for name, value in named if name in kept}

    # ------------------------------------------------------------------ quorums

    def _join(self) -> bool:
        """Get into a quorum, with the run's state. False: it did not work out, try again.

        Raises:
            RunOver: the run ended before this replica had the state.
            NoQuorum: none was formed in time.
        """
        if self._replica.control.run_over and not self._has_state:
            raise RunOver(f"replica {self._replica.rank} came back after the run had ended")
        self._start_quorum()
        if not self._replica.all_in_group(self._manager.errored() is None):
            self._give_up_try()
            return False
        if self.step_number < self._replica.assignment.progress and not self._has_state:
            # Only other latecomers are in this quorum: nobody has the state.
            self._replica.transport.disallow_checkpoint()
            time.sleep(_DONOR_PAUSE_S)
            return False
        self._has_state = True
        changed = self._manager._quorum_id != self._known_quorum
        if changed and not self._same_history():
            return False
        self._known_quorum = self._manager._quorum_id
        self._tell(
            "joined",
            self._replica.process_group.configured_at,
            member=self._view.names[self._view.rank],
        )
        self._tell("healed", time.time())
        if changed or self._view.healed_from is not None:
            self._replica.emit(
                "quorum",
                quorum=self._view.quorum,
                participants=self.participants,
                step=self.step_number,
                healed_from=self._view.healed_from,
            )
        return True

    def _start_quorum(self) -> None:
        started = time.monotonic()
        try:
            self._manager.start_quorum()
        except (TimeoutError, RuntimeError) as error:
            waited = time.monotonic() - started
            raise NoQuorum(
                f"replica {self._replica.rank} got no quorum within {waited:.0f} s from the "
                f"Lighthouse at {self._replica.assignment.lighthouse}: {error}"
            ) from error

    def _give_up_try(self) -> None:
        """Discard a failed try: free peers that wait for us, and vote against the commit."""
        self._replica.process_group.abort(errored=False)
        self._manager.should_commit()

    def _same_history(self) -> bool:
        """Whether all members committed the same steps; those who did not are healed next.

        A replica that commits a step which all others fail, and then is out of reach for longer
        than a quorum waits, would meet them again at the same step number with other weights.
        """
        both = torch.tensor([self._history, -self._history], dtype=torch.float64)
        self._manager.allreduce(both, reduce_op=ReduceOp.MAX).wait()
        if self._manager.errored() is None:  # else the tensor holds anything
            highest, lowest = int(both[0]), -int(both[1])
            if highest != lowest:
                self._manager.report_error(HistoryDiffers(f"{highest} and {lowest}"))
            if self._history != highest:
                self._manager.load_state_dict({"step": 0, "batches_committed": 0})
        if not self._replica.all_in_group(self._manager.errored() is None):
            self._give_up_try()
            return False
        return True

    def _vote(self) -> bool:
        """Whether the step is committed; call it once in each quorum that has work to commit."""
        if self._manager.errored() is not None:
            # Peers may still wait for us in the collective that failed here.
            self._replica.process_group.abort(errored=False)
        committed = bool(self._manager.should_commit())
        if committed:
            self._history = _chain(self._history, self._view, self._manager.current_step())
        return committed

    def _tell_committed(self) -> None:
        """Report a step that was committed; the first and then one at times."""
        self._tell("stepped", time.time())
        now = time.monotonic()
        if now - self._progress_told_at >= _PROGRESS_EVERY_S:
            self._progress_told_at = now
            self._replica.report("committed")

    def _is_missed(self) -> bool:
        """Whether this replica, before the last step, still waits for one that died.

        So a replica that was killed shortly before the end is back for the last step, and all
        end with the same weights.
        """
        if self._wait_until is None:
            self._wait_until = time.monotonic() + self._replica.assignment.settings.last_step_wait_s
            self._tell("ending", time.time())
        missed = bool(self._replica.membership.missing())
        return missed and time.monotonic() < self._wait_until

    def _part_in_peace(self) -> bool:
        """Last meeting: nobody leaves while another still needs its state. False: try again."""
        self._manager.allreduce(torch.zeros(1)).wait()
        if not self._replica.all_in_group(self._manager.errored() is None):
            self._give_up_try()
            return False
        self._replica.transport.disallow_checkpoint()
        return True

    def _tell(self, milestone: str, at: float, **details: Any) -> None:
        """Report a milestone of this start of the replica, once."""
        if milestone not in self._told:
            self._told.add(milestone)
            self._replica.report(milestone, at=at, **details)

    def _close(self) -> None:
        """Leave the run: stop asking for quorums and giving signs of life."""
        self._manager.shutdown(wait=False)
        self._replica.process_group.abort(errored=False)


def _device_of(model: nn.Module) -> str:
    """What the model computes on: ``cpu``, or the type and name of an accelerator."""
    parameter = next(model.parameters(), None)
    if parameter is None or parameter.device.type == "cpu":
        return "cpu"
    kind = parameter.device.type
    if kind == "cuda":  # ROCm's devices too
        return f"{kind} {torch.cuda.get_device_name(parameter.device)}"
    return kind


def _chain(history: int, view: QuorumView, step: int) -> int:
    """A number that stands for all steps committed so far; exact in a float64."""
    text = f"{history}/{step}/{view.quorum}/{view.replicas}".encode()
    return zlib.crc32(text) << 16 | zlib.adler32(text) & 0xFFFF
