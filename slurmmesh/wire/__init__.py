"""Bytes between processes: frames, codec, links, and who may speak on them."""

from slurmmesh.wire.frames import Buffer, Frame, FrameDecoder, Kind
from slurmmesh.wire.identity import same_user
from slurmmesh.wire.links import Link
from slurmmesh.wire.listener import Listener, wrap
from slurmmesh.wire.reactor import READ, WRITE, Reactor, Timer

__all__ = [
    "READ",
    "WRITE",
    "Buffer",
    "Frame",
    "FrameDecoder",
    "Kind",
    "Link",
    "Listener",
    "Reactor",
    "Timer",
    "same_user",
    "wrap",
]
