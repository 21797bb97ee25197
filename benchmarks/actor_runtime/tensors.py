"""The tensors that are sent: how both ends make and read them. torch is imported on first use."""

from __future__ import annotations

from typing import Any

_PER_PAGE = 1024
"""float32 elements."""


def filled(elements: int) -> Any:
    """A float32 tensor whose memory is there."""
    import torch

    return torch.ones(elements)


def as_bytes(tensor: Any) -> memoryview:
    """Its memory."""
    return memoryview(tensor.numpy()).cast("B")


def read(tensor: Any) -> None:
    """Read one element of each page, so that no peer gains by handing over what it did not move.

    Raises RuntimeError if the tensor is not as it was made.
    """
    pages = tensor.numpy()[::_PER_PAGE]  # not torch, which would wake threads for it
    if pages.sum() != len(pages):
        raise RuntimeError("the tensor came wrong")
