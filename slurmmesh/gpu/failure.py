"""The errors of collectives: put together from what the library said and what was found out."""

from __future__ import annotations

from typing import TypeVar

from slurmmesh.errors import CollectiveError, GpuError, GpuUnsupported
from slurmmesh.gpu.blame import Verdict
from slurmmesh.gpu.library import Library
from slurmmesh.gpu.live import Operation
from slurmmesh.gpu.membership import Membership

Kind = TypeVar("Kind", bound=CollectiveError)

# ncclResult_t.
_RESULTS = {
    1: "a call of the GPU library failed",
    2: "a call of the system failed",
    3: "an error inside the library",
    4: "an argument that the library did not take",
    5: "the library was used in a way that it does not allow: do all ranks call the same?",
    6: "another rank has ended, or the network failed",
}


def unsupported(library: Library, neutral: str) -> None:
    """Raises GpuUnsupported unless the library has a function, or GpuUnavailable without one."""
    if library.has(neutral):
        return
    path = library.path("ccl")
    symbol = next((row.hip or row.cuda for row in library.symbols() if row.neutral == neutral), "")
    raise GpuUnsupported(
        "the library has no such function: take a newer one, or do without"
        if path
        else "there is no library for collectives (RCCL, NCCL)",
        symbol=symbol,
        library=path,
    )


def failure_of(
    library: Library,
    membership: Membership,
    operation: Operation,
    verdict: Verdict,
    *,
    kind: type[Kind],
    seconds: float | None = None,
    code: int = 0,
    said: str = "",
    cause: GpuError | None = None,
) -> Kind:
    """The error of an operation.

    Args:
        kind: which.
        seconds: that it had, if it did not end in time.
        code: of the library, if it told one.
        said: the library's last words.
        cause: what a call of the library raised.
    """
    texts = []
    if seconds is not None:
        texts.append(_did_not_end(operation, seconds))
    if cause is not None:
        texts.append(cause.text)
        code = cause.code
    elif code:
        texts.append(_RESULTS.get(code, "an error that slurmmesh does not know"))
    texts += verdict.words
    if operation.peers:
        texts.append(f"it is with rank {', '.join(map(str, operation.peers))}")
    if said and said not in (cause.text if cause else ""):
        texts.append(f"the library's last words: {said}")
    if library.emulated:
        texts.append("EMULATED")
    return kind(
        "; ".join(texts),
        operation=operation.name,
        world=membership.name,
        rank=membership.rank,
        size=membership.size,
        peers=verdict.to_blame,
        late=verdict.late if not verdict.dead else (),
        code=code,
        symbol=cause.symbol if cause else "",
        library=cause.library if cause else library.path("ccl"),
    )


def _did_not_end(operation: Operation, seconds: float) -> str:
    if operation.name == "init":
        return f"not all ranks have joined within {seconds:g} s"
    if operation.name == "finalize":
        return f"the library has not given the communicator back within {seconds:g} s"
    which = "it" if operation.peers else f"operation {operation.sequence}"
    return f"{which} did not end within {seconds:g} s"
