"""``job.json``: what the controller of a job writes about itself, and whether it still lives."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurmmesh import files

RECORD = "job.json"


@dataclass(frozen=True)
class JobRecord:
    """What is known of an attempt of a job.

    Attributes:
        exit_code: of the program as a shell tells it; None until it ends.
        started, ended: seconds since the epoch.
        nodes, spares: hosts asked for.
        pid, host, process: the controller's; ``process`` tells it from all others that may get
            the same pid, on whatever machine.
    """

    exit_code: int | None = None
    started: float | None = None
    ended: float | None = None
    nodes: int | None = None
    spares: int | None = None
    argv: tuple[str, ...] = ()
    pid: int = 0
    host: str = ""
    process: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether the program wrote that it has ended."""
        return self.exit_code is not None

    def is_alive(self) -> bool | None:
        """Whether the controller runs on this machine; None if that cannot be seen from here."""
        machine, _, began = self.process.rpartition(":")
        if not began or self.pid <= 0:
            return None
        if machine != _machine():
            # The same machine after a restart, or another one.
            return False if self.host == socket.gethostname() and _rebooted(machine) else None
        return _began(self.pid) == began


def read_record(attempt: Path) -> JobRecord | None:
    """The record in an attempt's folder; None if there is none, or none that can be read yet."""
    try:
        content = json.loads((attempt / RECORD).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    code, argv = _integer(content.get("exit_code")), content.get("argv")
    return JobRecord(
        # A process ends with the low byte of what it was told to.
        exit_code=None if code is None else code & 0xFF,
        started=_time(content.get("started")),
        ended=_time(content.get("ended")),
        nodes=_integer(content.get("nodes")),
        spares=_integer(content.get("spares")),
        argv=tuple(map(str, argv)) if isinstance(argv, list) else (),
        pid=_integer(content.get("pid")) or 0,
        host=str(content.get("host") or ""),
        process=str(content.get("process") or ""),
    )


def write_record(attempt: Path, record: dict[str, Any]) -> None:
    """Write ``job.json`` so that a reader sees the old one or the new one, whole.

    Raises OSError.
    """
    files.write_whole(attempt / RECORD, json.dumps(record, indent=1).encode() + b"\n")


def this_process() -> dict[str, Any]:
    """The fields of a record that tell which process wrote it."""
    began = _began(os.getpid())
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "process": f"{_machine()}:{began}" if began else "",
    }


def _machine() -> str:
    """A boot of a machine, and the space of its pids that this process sees."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _rebooted(machine: str) -> bool:
    boot, _, _ = machine.partition(":")
    own, _, _ = _machine().partition(":")
    return bool(own) and boot != own


def _began(pid: int) -> str:
    """When a process began, in ticks since the boot; empty if it is gone or only waits for that."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()  # its name may hold blanks and brackets
    return "" if len(fields) < 20 or fields[0] in "ZX" else fields[19]


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _time(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value < 1e12 else None
