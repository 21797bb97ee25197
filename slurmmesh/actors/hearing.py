"""Which failures somebody in this process hears of: their errors reached a call's future."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

About = tuple[int, int, int]
"""An actor that is gone: mesh, rank and number."""

listeners: list[Callable[[BaseException, About | None], Any]] = []
"""Told each error that says why somebody who owed an answer is gone. They must be short."""


def hear(error: BaseException, about: About | None) -> None:
    """An error has reached somebody who waits, or can."""
    for listener in list(listeners):
        listener(error, about)
