"""Visibility masks: which GPUs a process sees by its environment, and shares of those. Pure.

A mask is a variable with a list of indexes or uuids. On ROCm there are two layers. The lower one,
``ROCR_VISIBLE_DEVICES``, counts what the kernel shows. HIP counts what that leaves, from 0 again,
by the first of ``HIP_VISIBLE_DEVICES``, ``CUDA_VISIBLE_DEVICES`` and ``GPU_DEVICE_ORDINAL``: so two
masks that name the same GPUs hide some or all of them. CUDA knows ``CUDA_VISIBLE_DEVICES`` only.
A list ends at the first entry that is no device, and an empty one hides all.

So a process gets exactly one mask, of devices that its parent sees.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import NamedTuple

ROCR = "ROCR_VISIBLE_DEVICES"
HIP = "HIP_VISIBLE_DEVICES"
CUDA = "CUDA_VISIBLE_DEVICES"
ORDINAL = "GPU_DEVICE_ORDINAL"
VARIABLES = (ROCR, HIP, CUDA, ORDINAL)
_OF_HIP = (HIP, CUDA, ORDINAL)


class Machine(NamedTuple):
    """What the kernel of a machine has.

    Attributes:
        rocm, cuda: whether there is that driver.
        gpus: so many GPUs it shows to this process; on ROCm those that its cgroup allows.
    """

    rocm: bool = False
    cuda: bool = False
    gpus: int = 0


class Visible(NamedTuple):
    """What a process sees.

    Attributes:
        variable: the mask of its children; empty where there is no GPU to be masked.
        devices: as that mask takes them, in order.
        note: what was not as it should be, and how it is understood.
        conflict: why it is not known what is seen; then there are no devices.
    """

    variable: str = ""
    devices: tuple[str, ...] = ()
    note: str = ""
    conflict: str = ""

    def why_not(self, wanted: int) -> str:
        """Why so many devices cannot be given away; empty if they can."""
        if wanted <= len(self.devices):  # of 0 there are always enough
            return ""
        if self.conflict:
            return self.conflict
        named = f" ({self.variable}={','.join(self.devices)})" if self.variable else ""
        return f"it sees {len(self.devices)} GPUs{named}, and {wanted} are wanted"

    def shares(self, procs: int, each: int, first: int = 0) -> Mask:
        """Masks of so many procs, ``each`` devices for one, in order from the ``first`` on.

        Raises ValueError where ``why_not`` says so.
        """
        if reason := self.why_not(first + procs * each):
            raise ValueError(reason)
        starts = (first + number * each for number in range(procs))
        values = (",".join(self.devices[start : start + each]) for start in starts)
        return Mask(self.variable or CUDA, tuple(values))


class Mask(NamedTuple):
    """The one mask of each proc of a host: a variable, and its value by local rank."""

    variable: str
    values: tuple[str, ...]

    def apply(self, environ: MutableMapping[str, str], local_rank: int) -> None:
        """Leave this as the only mask."""
        for name in VARIABLES:
            environ.pop(name, None)
        environ[self.variable] = self.values[local_rank]


def visible(environ: Mapping[str, str], machine: Machine) -> Visible:
    """What a process with this environment sees.

    The driver says how masks are to be read. Where there is none, AMD's variables make it ROCm.
    """
    given = {name: environ[name] for name in VARIABLES if name in environ}
    amds = any(name in given for name in (ROCR, HIP, ORDINAL))
    try:
        if machine.rocm or (amds and not machine.cuda):
            return _on_rocm(given, machine.gpus)
        if CUDA in given:
            devices = _entries(CUDA, given[CUDA])
            return Visible(CUDA, *_counted_here(CUDA, devices, machine.gpus))
    except _Conflict as error:
        return Visible(conflict=str(error))
    if machine.cuda:
        return Visible(CUDA, _first(machine.gpus))
    return Visible()


class _Conflict(Exception):
    """Masks that cannot be understood."""


def _on_rocm(given: Mapping[str, str], gpus: int) -> Visible:
    """``gpus``: 0 where nobody tells."""
    upper = next((name for name in _OF_HIP if name in given), "")
    lower = ROCR if ROCR in given else ""
    if not upper and not lower:
        return Visible(ROCR, _first(gpus))
    outermost = lower or upper
    named = _entries(outermost, given[outermost])
    devices, note = _counted_here(outermost, named, gpus)
    if not lower:
        return Visible(HIP if upper == ORDINAL else upper, devices, note)
    if not upper:
        return Visible(ROCR, devices, note)
    within = _entries(upper, given[upper])
    both = f"{ROCR}={given[ROCR]} and {upper}={given[upper]}"
    beyond = [entry for entry in within if _is_index(entry) and int(entry) >= len(devices)]
    if beyond and within == named:
        twice = f"{both} name the same GPUs twice, which hides some or all of them from HIP"
        return Visible(ROCR, devices, "; ".join(filter(None, [note, twice])))
    if beyond:
        raise _Conflict(
            f"{both} are both set: the second counts from 0 within the first, which has no number "
            f"{beyond[0]}. Unset one of them"
        )
    if strange := [entry for entry in within if _is_uuid(entry) and entry not in devices]:
        raise _Conflict(
            f"{both} are both set: whether {strange[0]} is among the first cannot be told. "
            "Unset one of them"
        )
    chosen = tuple(devices[int(entry)] if _is_index(entry) else entry for entry in within)
    if len(set(chosen)) < len(chosen):
        raise _Conflict(f"{both} are both set, and together name a GPU twice. Unset one of them")
    return Visible(ROCR, chosen, note)


def _counted_here(name: str, devices: tuple[str, ...], gpus: int) -> tuple[tuple[str, ...], str]:
    """A mask's devices as they are counted now, and a note if they were counted anew.

    A cgroup or a container that leaves some GPUs counts these from 0. A mask made outside of it
    then names others, or none.
    """
    beyond = [entry for entry in devices if _is_index(entry) and int(entry) >= gpus > 0]
    if not beyond:
        return devices, ""
    text = f"{name}={','.join(devices)}"
    if len(devices) == gpus and all(map(_is_index, devices)):
        here = f"0-{gpus - 1}" if gpus > 1 else "0"
        return _first(gpus), f"{text} is from outside of a cgroup within which they are {here}"
    raise _Conflict(
        f"{text} names GPU {beyond[0]}, but this host shows {gpus}, counted from 0 (a cgroup or a "
        f"container numbers them anew). Unset {name}, or count within these"
    )


def _entries(name: str, text: str) -> tuple[str, ...]:
    """The devices of a mask's value, up to the first entry that is none."""
    found: list[str] = []
    for word in map(str.strip, text.split(",")):
        if _is_index(word):
            word = str(int(word))
        elif not _is_uuid(word):
            break
        if word in found:
            raise _Conflict(f"{name}={text} names {word} twice, and the libraries then see no GPU")
        found.append(word)
    return tuple(found)


def _is_index(entry: str) -> bool:
    return entry.isascii() and entry.isdecimal()


def _is_uuid(entry: str) -> bool:
    return entry.upper().startswith(("GPU-", "MIG-"))


def _first(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))
