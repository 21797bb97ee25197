"""Streams: queues of work on a device."""

from __future__ import annotations

import sys
import weakref
from typing import Any

from slurmmesh.errors import UsageError
from slurmmesh.gpu.device import device_at
from slurmmesh.gpu.library import Library, load


class Stream:
    """A stream of one's own. It does not wait for the default stream.

    It ends with the last reference, or when the interpreter does; work that is in it is still done.

    Attributes:
        number: the library's handle: a hipStream_t or CUstream.
        device: index of its device.
    """

    def __init__(self, device: int = 0) -> None:
        """Make one.

        Raises:
            UsageError: there is no such device.
            GpuUnavailable: there is no GPU library or no device.
            GpuError: the library refused.
        """
        library = load()
        self.device = device_at(device).index
        self.number = library.ask("sm_stream_create", self.device)
        self._library = library
        weakref.finalize(self, library.lib.sm_stream_destroy, self.number, library.ffi.NULL)

    @property
    def busy(self) -> bool:
        """Work is queued.

        Raises:
            GpuError: work that was queued has failed.
        """
        return is_busy(self._library, self.device, self.number)

    def synchronize(self) -> None:
        """Wait until all work is done, without a limit.

        Raises:
            GpuError: work that was queued has failed.
        """
        self._library.call("sm_stream_synchronize", self.number)


def is_busy(library: Library, device: int, stream: int) -> bool:
    """Whether work is queued in a stream; 0 is the device's default one."""
    return bool(library.ask("sm_stream_query", device, stream))


def number_of(stream: Any) -> int:
    """The library's handle of a stream: ours, torch's, a handle itself, or 0.

    Raises:
        UsageError: it is none.
    """
    if isinstance(stream, Stream):
        return stream.number
    if type(stream) is int and 0 <= stream < 1 << 64:
        return stream
    number = getattr(stream, "cuda_stream", None)  # torch, also over ROCm
    if type(number) is int:
        return number
    raise UsageError(
        f"{stream!r} is no stream: pass slurmmesh.gpu.Stream, torch.cuda.Stream, a handle, or 0 "
        "for the default stream"
    )


def torch_stream(device: int) -> int:
    """Torch's current stream of a device, for this thread."""
    return int(sys.modules["torch"].cuda.current_stream(device).cuda_stream)
