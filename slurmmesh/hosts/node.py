"""What differs from node to node in the environment of a host and its procs."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, MutableMapping

from slurmmesh.config import NODE_FOLDER, NODE_FOLDERS, is_variable
from slurmmesh.errors import SetupError
from slurmmesh.wire.reactor import say

_VNIS = "SLINGSHOT_VNIS"


@contextlib.contextmanager
def at_home(environ: MutableMapping[str, str]) -> Iterator[None]:
    """Make ``environ`` fit this node; what was made for that on its disk is removed at the end.

    Raises:
        SetupError: ``SLURMMESH_NODE_FOLDERS`` names what is no variable.
    """
    _take_the_jobs_vni(environ)
    folder = _make_folders(environ)
    try:
        yield
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def _take_the_jobs_vni(environ: MutableMapping[str, str]) -> None:
    """Leave only the last of Slingshot's network ids: the job's, which all its steps share.

    libfabric takes the first, which is this step's own; so hosts would not reach each other.
    """
    if ids := environ.get(_VNIS):
        environ[_VNIS] = ids.rpartition(",")[2]


def _make_folders(environ: MutableMapping[str, str]) -> str | None:
    """Give a private folder to each variable of ``SLURMMESH_NODE_FOLDERS`` that is not set yet.

    They are in one folder, which is returned; None if there is nothing to do, or no room.
    """
    names = environ.get(NODE_FOLDERS, "").replace(",", " ").split()
    for name in names:
        if not is_variable(name):
            raise SetupError(f"{NODE_FOLDERS}: {name!r} is no name of a variable")
    missing = [name for name in names if name not in environ]
    if not missing:
        return None
    folder = None
    try:
        folder = tempfile.mkdtemp(prefix="slurmmesh-node-")
        for name in missing:
            os.mkdir(os.path.join(folder, name), mode=0o700)
    except OSError as error:
        say(f"slurmmesh host: no folder on this node for {', '.join(missing)}: {error}")
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
        return None
    environ[NODE_FOLDER] = folder
    environ.update((name, os.path.join(folder, name)) for name in missing)
    return folder
