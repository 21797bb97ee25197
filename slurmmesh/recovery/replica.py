"""What the user's function gets: its replica, and the way to train under TorchFT with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer
from torchft.manager import Manager

from slurmmesh import telemetry
from slurmmesh.errors import UsageError
from slurmmesh.recovery.assignment import Assignment
from slurmmesh.recovery.binding import manager_at
from slurmmesh.recovery.control import Control
from slurmmesh.recovery.gloo import AbortableGloo
from slurmmesh.recovery.membership import Membership, member_name
from slurmmesh.recovery.quorum import QuorumClient
from slurmmesh.recovery.transport import SecureTransport
from slurmmesh.wire.addresses import in_url
from slurmmesh.wire.identity import Credentials

if TYPE_CHECKING:
    from slurmmesh.recovery.ddp import DdpSession
    from slurmmesh.recovery.diloco import DilocoSession


class Stateful(Protocol):
    """Anything with a state to be healed: a scheduler, a data loader, a random generator."""

    def state_dict(self) -> Any:
        """Its state, of tensors and picklable values."""

    def load_state_dict(self, state: Any) -> Any:
        """Take such a state."""


class Replica:
    """One process of one replica.

    The function given to :func:`slurmmesh.recovery.train` is called with it in every process.
    Build the model and the optimizer, then get a session with :meth:`ddp` or :meth:`diloco`.

    Args:
        assignment: who this process is.
        address: this host's address on the fabric.
        credentials: this process's certificate of the job.
        control: where news from the controller arrive.
        report: told what the controller should know, as a word and a dictionary of details,
            from any thread. The first process of each group reports: its milestones ``ready``,
            ``joined``, ``healed``, ``stepped`` and ``ending``, each with ``at`` and ``step``,
            ``joined`` also with its name as a ``member``;
            ``committed`` now and then, with the ``step``;
            ``saw_death`` with the ``peer`` and the ``step`` it was at; ``waits`` when it wants the
            others to come to a meeting; and ``done`` as the last.
    """

    def __init__(
        self,
        assignment: Assignment,
        address: str,
        credentials: Credentials,
        control: Control | None = None,
        report: Callable[[str, dict[str, Any]], object] = lambda _word, _details: None,
    ) -> None:
        self.assignment = assignment
        self.address = address
        self.control = control or Control()
        self._report = report
        self.step_number: Callable[[], int] = lambda: 0
        """Steps committed so far; set by the session."""
        self._credentials = credentials
        self._manager: Manager | None = None
        self._in_session = False
        self.group: dist.ProcessGroup | None = None
        """Process group of the replica's own processes (Gloo); None if there is only one."""

    @property
    def rank(self) -> int:
        """Number of this replica, from 0."""
        return self.assignment.replica

    @property
    def replicas(self) -> int:
        """How many replicas the run has, dead or alive."""
        return self.assignment.replicas

    @property
    def group_rank(self) -> int:
        """Rank of this process within its replica."""
        return self.assignment.group_rank

    @property
    def group_size(self) -> int:
        """Processes in each replica."""
        return self.assignment.group_size

    @property
    def device_index(self) -> int:
        """Which of the devices that it sees this process should use, where there are any."""
        first = self.assignment.first_device
        return 0 if first is None else first + self.group_rank

    @property
    def is_restart(self) -> bool:
        """Whether this replica died before and was started again."""
        return self.assignment.incarnation > 0

    def ddp(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        state: Mapping[str, Stateful] | None = None,
    ) -> DdpSession:
        """Train with gradients averaged over all replicas in every step.

        Args:
            model: its parameters on one device.
            optimizer: over the model's parameters.
            state: more things that a restarted replica must get from a donor, by name (a
                learning-rate scheduler, say).

        Raises:
            UsageError: this process has a session already.
        """
        from slurmmesh.recovery.ddp import DdpSession

        self._enter_session()
        return DdpSession(self, model, optimizer, state or {})

    def diloco(
        self,
        model: nn.Module,
        inner_optimizer: Optimizer,
        outer_optimizer: Optimizer | None = None,
        *,
        sync_every: int,
        fragments: Sequence[nn.Module] | None = None,
        state: Mapping[str, Stateful] | None = None,
    ) -> DilocoSession:
        """Train each replica by itself and average every ``sync_every`` inner steps (DiLoCo).

        Args:
            model: its parameters on one device.
            inner_optimizer: takes the local steps.
            outer_optimizer: applies the averaged change of a window to the model's parameters;
                SGD with learning rate 0.7, momentum 0.9 and Nesterov if None.
            sync_every: inner steps between two syncs of the same parameter.
            fragments: disjoint parts of the model that together hold all its parameters; they
                are synced one after the other, evenly over the ``sync_every`` steps. None: all
                at once.
            state: as for :meth:`ddp`.

        Raises:
            UsageError: a bad ``sync_every`` or ``fragments``, or there is a session already.
        """
        from slurmmesh.recovery.diloco import DilocoSession

        self._enter_session()
        return DilocoSession(
            self, model, inner_optimizer, outer_optimizer, sync_every, fragments, state or {}
        )

    def _enter_session(self) -> None:
        if self._in_session:
            raise UsageError("a replica trains in one session: it has one already")
        self._in_session = True

    # ------------------------------------------------------------------ under the sessions

    def prepare(self) -> None:
        """Announce this replica to the Lighthouse, so that quorums wait for it.

        Called at once on a first start, so that all begin together; a restarted replica is
        announced only when its model is built, so that nobody waits for that.
        """
        if self._manager is not None:
            return
        place, settings = self.assignment, self.assignment.settings
        self.membership = Membership(place.alive_from, place.gone)
        self.process_group = AbortableGloo(
            self.address,
            self.membership,
            timeout=timedelta(seconds=settings.collective_timeout_s),
            connect_timeout=timedelta(seconds=settings.connect_timeout_s),
        )
        self.transport = SecureTransport(
            self.address,
            self._credentials,
            settings.timeout_s,
            give_up=lambda: bool(self.membership.dead_members()),
        )
        with manager_at(self.address):
            self._manager = Manager(
                pg=self.process_group,
                load_state_dict=None,
                state_dict=None,
                min_replica_size=settings.min_replicas,
                # A restarted replica then heals before its first step and takes part in it.
                use_async_quorum=False,
                timeout=settings.timeout,
                quorum_timeout=timedelta(seconds=settings.quorum_timeout_s),
                connect_timeout=timedelta(seconds=settings.connect_timeout_s),
                rank=place.group_rank,
                world_size=place.group_size,
                store_addr=place.store[0],
                store_port=place.store[1],
                lighthouse_addr=place.lighthouse,
                replica_id=member_name(place.replica, place.incarnation),
                hostname=in_url(self.address),
                heartbeat_interval=timedelta(seconds=settings.heartbeat_interval_s),
                checkpoint_transport=self.transport,
                init_sync=settings.init_sync,
                quorum_retries=settings.quorum_retries,
            )
        self.quorums = QuorumClient(self._manager._client, self.membership)
        self._manager._client = self.quorums  # type: ignore[assignment]
        self.control.listen(self._peer_died, self.membership.gone)

    @property
    def manager(self) -> Manager:
        """TorchFT's Manager of this process; made on first use."""
        self.prepare()
        assert self._manager is not None
        return self._manager

    def _peer_died(self, replica: int, incarnation: int) -> None:
        """Stop waiting for a dead replica, from the controller's thread."""
        if self.process_group.peer_died(replica, incarnation):
            view = self.quorums.view
            if view is not None and view.healed_from == replica:
                self.transport.break_off()
        self.report("saw_death", peer=replica)

    def emit(self, kind: str, **fields: Any) -> None:
        """Write an event for this replica; only the first process of its group does."""
        if self.group_rank == 0:
            telemetry.emit(kind, replica=self.rank, **fields)

    def report(self, word: str, **details: Any) -> None:
        """Tell the controller something; only the first process of the group does."""
        if self.group_rank == 0:
            self._report(word, {"step": self.step_number(), **details})

    def average_in_group(self, tensor: torch.Tensor) -> None:
        """Average a tensor in place over the processes of this replica."""
        assert self.group is not None
        self.group.allreduce([tensor]).wait()
        tensor /= self.group_size

    def all_in_group(self, value: bool) -> bool:
        """Whether ``value`` is true in every process of this replica."""
        if self.group is None:
            return value
        count = torch.tensor([int(value)])
        self.group.allreduce([count]).wait()
        return int(count) == self.group_size
