"""Per-step DDP across replicas, with a communication hook that survives a failed allreduce."""

# Not ``from __future__ import annotations``: torch compares a hook's annotations with classes.

from collections.abc import Callable

import torch
from torch import nn
from torch.distributed import GradBucket
from torchft.ddp import DistributedDataParallel
from torchft.manager import Manager


class ReplicatedModel(DistributedDataParallel):
    """A model whose gradients are averaged over the replicas of the quorum during backward.

    TorchFT's own hook returns the future of the allreduce, which a failed one on Gloo never
    sets, so that every survivor of a death dies with an assertion. This one waits, leaves the
    failure to be found in ``manager.errored()``, and returns the bucket as it is: the step is
    discarded anyway.

    Args:
        manager: TorchFT's Manager of this process.
        module: the model.
        within_group: averages a tensor, in place, over the processes of this replica's own
            group before it goes to the other replicas; None for groups of one process.
    """

    def __init__(
        self,
        manager: Manager,
        module: nn.Module,
        within_group: Callable[[torch.Tensor], None] | None = None,
    ) -> None:
        self._within_group = within_group
        super().__init__(manager, module)

    # TorchFT registers ``self._comm_hook`` with the manager as its state; as a bound method it
    # gets both.
    def _comm_hook(  # type: ignore[override]
        self, manager: Manager, bucket: GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        gradients = bucket.buffer()
        if self._within_group is not None:
            self._within_group(gradients)
        manager.allreduce(gradients).wait()
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(gradients)
        return done
