"""Giving memory back while collectives run on its device.

The library waits until the device has done all that is queued on it before it unmaps memory, with
no limit: a collective that hangs would hang whoever frees memory, too. So that is asked first.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from slurmmesh.errors import GpuError
from slurmmesh.gpu import live
from slurmmesh.gpu.ranges import Range
from slurmmesh.gpu.waiting import Deadline

if TYPE_CHECKING:
    from slurmmesh.gpu.engine import Engine

_kept: list[Range] = []  # that could not be given back: were nobody to have them, that would hang


def release(memory: Range, deadline: Deadline) -> None:
    """Give it back once no collective is under way on its device. No tensors of it live.

    Raises:
        DeviceBusy: one did not end in time. The memory is kept, for ``release_kept``.
        GpuError: the library refused.
    """
    with contextlib.suppress(ValueError):
        _kept.remove(memory)
    try:
        while not memory.dropped and (at_work := _at_work(memory.device)):
            if deadline.over:
                raise at_work.busy_error()
            deadline.pause()
    except BaseException:
        _kept.append(memory)
        raise
    memory.drop()
    release_kept()


def release_kept() -> None:
    """Give back what could not be before, where it can be now."""
    for memory in tuple(_kept):
        if not _at_work(memory.device):
            with contextlib.suppress(ValueError, GpuError):  # another thread may come first
                _kept.remove(memory)
                memory.drop()


def _at_work(device: int) -> Engine | None:
    """A communicator whose operation the device is at."""
    on_it = (engine for engine in live.engines() if engine.membership.device == device)
    return next((engine for engine in on_it if engine.busy), None)
