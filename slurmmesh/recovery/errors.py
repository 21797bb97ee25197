"""What can go wrong in a run beyond the death of single replicas."""

from __future__ import annotations

from slurmmesh.errors import SupervisionError


class NoQuorum(SupervisionError):
    """A replica waited for a quorum in vain: the Lighthouse or the other replicas are out of reach.

    The text has TorchFT's words and how long was waited.
    """


class StateLost(SupervisionError):
    """All replicas were down at one time: nobody is left to take the state from.

    The run's progress is lost. Use more replicas, or write checkpoints and start from them.
    """


class HistoryDiffers(RuntimeError):
    """Replicas at one step number committed different steps; those of one history are healed."""
