"""What a proc runs before any actor."""

from __future__ import annotations

import inspect
from dataclasses import replace

from slurmmesh.actors.context import context, set_process_context
from slurmmesh.shape import Point
from slurmmesh.wire.codec import loads


def run_bootstrap(pickled: bytes, rank: Point) -> None:
    """Run the function (or coroutine function) that ``spawn_procs`` was given.

    What it raises ends the proc. It sees ``rank`` as its ``current_rank()``.
    """
    before = context()
    set_process_context(replace(before, message_rank=rank))
    try:
        result = loads(pickled)()
        if inspect.iscoroutine(result):
            import asyncio  # late: few need it, and each start would pay for it

            asyncio.run(result)
    finally:
        set_process_context(before)
