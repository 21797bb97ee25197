"""The environment of RCCL, NCCL and libfabric, and what is known to go wrong with it. Pure.

What templates set, and the pages it is from: docs/templates.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from slurmmesh.config import NODE_FOLDERS
from slurmmesh.doctor.checks import Check, State

SECTION = "RCCL and NCCL"

_SHOWN = re.compile(
    r"(R?NCCL|TORCH_NCCL|HSA|FI|MIOPEN|GLOO|TP)_\w+|HIP_FORCE_DEV_KERNARG|GPU_MAX_HW_QUEUES"
)
_SLINGSHOT = re.compile(r"hsn\d+")
_RECLAIM_FIXED = (6, 4, 3)
_CACHES = ("MIOPEN_USER_DB_PATH", "MIOPEN_CUSTOM_CACHE_DIR")


class Node(NamedTuple):
    """What this node is.

    Attributes:
        rocm: it has AMD's GPUs, or ROCm is what slurmmesh found.
        hip: the version of HIP, as in ``6.4.3``; empty if not known.
        interfaces: names of those by which other nodes can reach it.
    """

    rocm: bool
    hip: str
    interfaces: tuple[str, ...]

    @property
    def slingshot(self) -> list[str]:
        """Its interfaces of HPE Slingshot."""
        return [name for name in self.interfaces if _SLINGSHOT.fullmatch(name)]


def checks(environ: Mapping[str, str], node: Node) -> Iterator[Check]:
    """What is set, and advice on what is not."""
    shown = sorted(filter(_SHOWN.fullmatch, environ))
    for name in shown:
        yield Check(SECTION, "set", "ok", f"{name}={environ[name]}")
    if not shown:
        yield Check(SECTION, "set", "ok", "no variable of theirs")
    yield from _interface(environ, node)
    if node.slingshot:
        yield from _slingshot(environ)
    if node.rocm:
        yield from _rocm(environ, node)


def _interface(environ: Mapping[str, str], node: Node) -> Iterator[Check]:
    name = "NCCL_SOCKET_IFNAME"
    wish = environ.get(name, "")
    wished = [item for item in wish.lstrip("=^").split(",") if item]
    if wish and not wish.startswith("^") and not _fitting(wish, wished, node.interfaces):
        have = ", ".join(node.interfaces) or "none"
        advice = f"usable are: {have}. Unset it: each host chooses for its processes"
        yield Check(SECTION, name, "error", f"{wish}: there is no such interface", advice)
    elif node.slingshot and not wish and not environ.get("SLURMMESH_INTERFACE"):
        advice = "submit --interface hsn, or --template mi300-slingshot, sets it for all libraries"
        text = f"not set, and this node has Slingshot ({', '.join(node.slingshot)})"
        yield Check(SECTION, name, "warning", text, advice)
    elif node.slingshot and wish and not _fitting(wish, wished, node.slingshot):
        advice = f"export {name}=hsn0, or unset it and submit --interface hsn"
        yield Check(SECTION, name, "warning", f"{wish} passes Slingshot by", advice)


def _fitting(wish: str, wished: Iterable[str], interfaces: Iterable[str]) -> bool:
    exactly = wish.startswith("=")
    return any(
        name == item if exactly else name.startswith(item) for name in interfaces for item in wished
    )


def _slingshot(environ: Mapping[str, str]) -> Iterator[Check]:
    monitor = environ.get("FI_MR_CACHE_MONITOR")
    if monitor not in ("userfaultfd", "kdreg2"):
        text = f"{monitor or 'not set'}: with the usual one libfabric may use memory that is gone"
        advice = "export FI_MR_CACHE_MONITOR=userfaultfd (the template mi300-slingshot does)"
        yield Check(SECTION, "FI_MR_CACHE_MONITOR", "warning", text, advice)
    if "SLURM_JOB_ID" in environ and not environ.get("SLINGSHOT_VNIS"):
        text = "this job has no network id of Slingshot, so RCCL's plugin cannot use it"
        advice = "submit --network=job_vni,single_node_vni"
        yield Check(SECTION, "--network", "warning", text, advice)


def _rocm(environ: Mapping[str, str], node: Node) -> Iterator[Check]:
    version = tuple(int(word) for word in node.hip.split(".") if word.isdecimal())
    known = f"HIP {node.hip}" if version else "a HIP of unknown version"
    if environ.get("HSA_NO_SCRATCH_RECLAIM") != "1":
        state: State = "note" if version >= _RECLAIM_FIXED else "warning"
        text = f"not 1, with {known}: RCCL is slow or refuses to start"
        if state == "note":
            text += " unless the GPU's firmware (MEC) is 177 or later"
        advice = "export HSA_NO_SCRATCH_RECLAIM=1 (the template mi300 does)"
        yield Check(SECTION, "HSA_NO_SCRATCH_RECLAIM", state, text, advice)
    level = environ.get("NCCL_NET_GDR_LEVEL", "").upper()
    if level in ("PHB", "SYS", "3", "5") and (not version or version >= (7,)):
        text = f"{level}, with {known}: jobs were seen to hang with it since ROCm 7"
        yield Check(SECTION, "NCCL_NET_GDR_LEVEL", "warning", text, "unset it: RCCL finds out")
    private = environ.get(NODE_FOLDERS, "").replace(",", " ").split()
    open_ones = [name for name in _CACHES if name not in private and not environ.get(name)]
    if open_ones:
        text = f"{' and '.join(open_ones)} not set: the cache is in the home folder, whose locks "
        advice = f'export {NODE_FOLDERS}="{" ".join(_CACHES)}" (the template mi300 does)'
        yield Check(SECTION, "MIOpen", "warning", f"{text}break with many nodes", advice)
    for name in _CACHES:
        path = environ.get(name, "")
        if path.startswith(("/tmp/", "/var/tmp/")) and not re.search(r"\d", path):
            text = f"{name}={path} is the same for all users and jobs of a node"
            advice = f"have your uid and the job's id in it, or name it in {NODE_FOLDERS}"
            yield Check(SECTION, "MIOpen", "warning", text, advice)
