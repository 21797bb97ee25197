"""A state dict as bytes: one small header and the raw memory of its tensors.

The header is a pickle in which each tensor is only a place; the tensors themselves are sent
from, and received into, their own memory. Decode a header only from a peer whose identity has
been proved: unpickling runs code.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from typing import Any

import torch

from slurmmesh.wire.storages import memory_of


@dataclass(frozen=True)
class TensorSpec:
    """What is needed to make room for a tensor: its dtype and shape."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        size = self.dtype.itemsize
        for length in self.shape:
            size *= length
        return size


@dataclass(frozen=True)
class Packed:
    """A state dict ready to be sent. ``views`` are the tensors' memory, in the header's order."""

    header: bytes
    tensors: tuple[torch.Tensor, ...]

    @property
    def views(self) -> list[memoryview]:
        """The memory of the tensors."""
        return [memory_of(tensor) for tensor in self.tensors]

    @property
    def nbytes(self) -> int:
        """Bytes of header and tensors together."""
        return len(self.header) + sum(tensor.nbytes for tensor in self.tensors)


def pack(state: Any) -> Packed:
    """Pack ``state``. Dense CPU tensors are not copied; those of a device come to the host first.

    Raises:
        pickle.PicklingError, TypeError: a part that is no tensor cannot be pickled.
    """
    stream = io.BytesIO()
    pickler = _Pickler(stream)
    pickler.dump(state)
    return Packed(stream.getvalue(), tuple(pickler.tensors))


def make_room(header: bytes) -> tuple[Any, list[torch.Tensor]]:
    """The state of ``header`` with uninitialised tensors, and these tensors in order to be filled.

    Raises:
        pickle.UnpicklingError: not a header.
    """
    unpickler = _Unpickler(io.BytesIO(header))
    state = unpickler.load()
    return state, unpickler.tensors


class _Pickler(pickle.Pickler):
    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, protocol=5)
        self.tensors: list[torch.Tensor] = []
        self._seen: dict[int, tuple[int, TensorSpec]] = {}

    def persistent_id(self, obj: Any) -> tuple[int, TensorSpec] | None:
        if not _is_plain_tensor(obj):
            return None
        if id(obj) not in self._seen:
            dense = obj.detach().to("cpu").contiguous()
            spec = TensorSpec(dense.dtype, tuple(dense.shape))
            self._seen[id(obj)] = (len(self.tensors), spec)
            self.tensors.append(dense)
        return self._seen[id(obj)]


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream)
        self.tensors: list[torch.Tensor] = []

    def persistent_load(self, pid: tuple[int, TensorSpec]) -> torch.Tensor:
        index, spec = pid
        if index == len(self.tensors):
            self.tensors.append(torch.empty(spec.shape, dtype=spec.dtype))
        return self.tensors[index]


def _is_plain_tensor(obj: Any) -> bool:
    """Tensors whose memory can be sent as it is; others (sparse, quantized) are pickled."""
    return (
        type(obj) in (torch.Tensor, torch.nn.Parameter)
        and obj.layout == torch.strided
        and not obj.is_quantized
        and not obj.is_conj()
        and not obj.is_neg()
    )
