"""A lab's root folder: where it can lie, made and removed."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from slurmmesh.errors import LabError, UsageError
from slurmmesh.lab.spec import Layout

# A unix socket's path holds 107 bytes. The longest under a root is a step daemon's:
# /spool/node512/node512_<job>.<step>.<component>, with room for numbers of 10 digits.
MAX_ROOT_BYTES = 107 - len("/spool/node512/node512_4294967295.4294967295.0")
_PREFIX = "slurmmesh-"
_RANDOM_BYTES = 8  # what mkdtemp adds

# slurm.conf has no way to quote: '#' begins a comment, '%' a pattern, ',' ends a value.
_PLAIN = re.compile(r"/[A-Za-z0-9_./+@:~-]*\Z")

_PROBE_BYTES = 1 << 20
_ROOM_BYTES = 16 << 20
_ROOM_WITH_DATABASE_BYTES = 160 << 20


def make_root(
    directory: str | None, *, accounting: bool, environ: Mapping[str, str]
) -> tuple[Layout, bool]:
    """Make a lab's root folder (mode 0700) and the folders in it.

    Args:
        directory: the folder to use, absent or empty; or None for a temporary one, in the first
            of TMPDIR, /tmp, /var/tmp, /dev/shm and XDG_RUNTIME_DIR that a lab can live in.

    Returns:
        the layout, and whether the folder is temporary.

    Raises:
        UsageError: the folder given cannot be used.
        LabError: no place is good for a temporary one; each is told with its reason.
    """
    room = _ROOM_WITH_DATABASE_BYTES if accounting else _ROOM_BYTES
    if directory is not None:
        return _make_given(Path(directory), room), False
    reasons = []
    for base in _bases(environ):
        reason = _unfit(base, len(_PREFIX) + _RANDOM_BYTES + 1, room)
        if reason is None:
            try:
                return _make_temporary(base), True
            except OSError as error:
                reason = error.strerror or str(error)
        reasons.append(f"\n  {base}: {reason}")
    raise LabError(
        "no folder a lab can live in; set TMPDIR to one that is short, writable and has "
        f"{room >> 20} MB free:" + "".join(reasons)
    )


def _bases(environ: Mapping[str, str]) -> Iterable[str]:
    wanted = [environ.get("TMPDIR", ""), "/tmp", "/var/tmp", "/dev/shm"]
    wanted.append(environ.get("XDG_RUNTIME_DIR", ""))
    return dict.fromkeys(os.path.abspath(base) for base in wanted if base)


def _unfit(base: str, name_bytes: int, room: int) -> str | None:
    """Why a lab cannot live in a folder below ``base``; None if it can."""
    if not _PLAIN.match(base):
        return "its path has characters slurm.conf cannot hold"
    if len(os.fsencode(base)) + name_bytes > MAX_ROOT_BYTES:
        return (
            f"its path is too long for the sockets in it (over {MAX_ROOT_BYTES - name_bytes} bytes)"
        )
    if not os.path.isdir(base):
        return "it is not there"
    if not os.access(base, os.W_OK | os.X_OK):
        return "it is not writable"
    return _unfit_disk(base, room)


def _unfit_disk(folder: str, room: int) -> str | None:
    """Slurm runs job scripts from its spool folder, so a "noexec" mount will not do either."""
    try:
        if os.statvfs(folder).f_flag & os.ST_NOEXEC:
            return "it is mounted noexec"
    except OSError as error:
        return error.strerror or str(error)
    return no_room(folder, room)


def no_room(folder: str | Path, room: int) -> str | None:
    """Why ``room`` bytes cannot be written to a folder; None if they can.

    Writes a megabyte and removes it again.
    """
    try:
        stat = os.statvfs(folder)
        if stat.f_bavail * stat.f_frsize < room:
            return f"it has less than {room >> 20} MB free"
        # Quotas show only when one writes.
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(_PROBE_BYTES))
    except OSError as error:
        return error.strerror or str(error)
    return None


def _make_temporary(base: str) -> Layout:
    layout = Layout(Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base)))
    try:
        _make_folders(layout)
    except BaseException:
        shutil.rmtree(layout.root, ignore_errors=True)
        raise
    return layout


def _make_given(directory: Path, room: int) -> Layout:
    root = Path(os.path.abspath(directory.expanduser()))
    layout = Layout(root)
    if not _PLAIN.match(str(root)):
        raise UsageError(f"{root}: slurm.conf cannot hold a path with such characters")
    if len(os.fsencode(root)) > MAX_ROOT_BYTES:
        raise UsageError(
            f"{root}: too long a path for the sockets in it; at most {MAX_ROOT_BYTES} bytes"
        )
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(root.iterdir()):
            raise UsageError(f"{root} is not empty; give a lab a folder of its own")
        reason = _unfit_disk(str(root), room)
        if reason is not None:
            raise UsageError(f"{root}: {reason}")
        _make_folders(layout)
    except OSError as error:
        raise UsageError(f"{root}: {error.strerror or error}") from error
    return layout


def _make_folders(layout: Layout) -> None:
    for folder in layout.folders:
        folder.mkdir(mode=0o700)


def remove_root(layout: Layout, *, temporary: bool) -> None:
    """Remove a temporary root; of a given one keep configuration and logs, remove the rest."""
    if temporary:
        shutil.rmtree(layout.root, ignore_errors=True)
        return
    for path in layout.scratch:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
