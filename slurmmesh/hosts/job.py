"""The job this program runs in: its hosts, its folder, and what it was given."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurmmesh import config
from slurmmesh.errors import SetupError, UsageError
from slurmmesh.folders import make_local_folder
from slurmmesh.hosts.endings import explain_errors
from slurmmesh.hosts.local import LocalHost, start_local_hosts
from slurmmesh.record import this_process, write_record

if TYPE_CHECKING:
    from slurmmesh.hosts.controller import Controller
    from slurmmesh.hosts.mesh import HostMesh
    from slurmmesh.hosts.roster import HostRecord

START_TIMEOUT_S = 120.0

# Held while a job starts, so that two threads get the same one.
_lock = threading.RLock()
_job: Job | None = None


class Job:
    """A running job. Its hosts are being started from the beginning; ``hosts`` waits for them.

    Attributes:
        id: Slurm's job id, or ``local-…``.
        cluster: ``slurm`` or ``local``.
        folder: the job folder; None for a program that was started outside of a job.
        gpus_per_node: as asked for; 0 if none.
    """

    def __init__(
        self,
        job_id: str,
        cluster: str,
        folder: Path | None,
        nodes: int,
        spares: int = 0,
        gpus_per_node: int = 0,
    ) -> None:
        self.id = job_id
        self.cluster = cluster
        self.folder = folder
        self.gpus_per_node = gpus_per_node
        self._nodes = nodes
        self._hosts: HostMesh | None = None
        started: list[LocalHost] = []
        if cluster == "local":
            names = [f"local{index}" for index in range(nodes + spares)]
            started = start_local_hosts(names, folder / "logs" if folder else None)
        try:
            self._controller = _controller_of(job_id, folder)
        except BaseException:
            for host in started:
                host.end()
            raise
        self._controller.emit(
            "job_started",
            job_id=job_id,
            cluster=cluster,
            nodes=nodes,
            spares=spares,
            argv=list(sys.argv),
        )
        try:
            self._records = self._start(nodes + spares, started)
        except BaseException:
            self.close()
            raise

    def _start(self, total: int, started: list[LocalHost]) -> list[HostRecord]:
        if self.cluster == "slurm":
            from slurmmesh.hosts.allocated import start_allocated_hosts

            return start_allocated_hosts(self._controller, total)
        records = []
        for host in started:
            records.append(self._controller.roster.add_host(host.name, launched=host.agent))
            self._controller.roster.attach(records[-1], host.sock)
        return records

    @property
    def hosts(self) -> HostMesh:
        """All hosts but the spares, as a mesh over ``hosts``.

        Raises:
            SetupError: some did not start; names them and says what is known.
        """
        if self._hosts is None:  # one that is lost later does not take the others away
            self._hosts = self._mesh(self._records[: self._nodes])
        return self._hosts

    @property
    def spares(self) -> HostMesh | None:
        """The spare hosts, or None if there are none. Raises SetupError as ``hosts`` does."""
        records = self._records[self._nodes :]
        return self._mesh(records) if records else None

    def _mesh(self, records: list[HostRecord]) -> HostMesh:
        from slurmmesh.hosts.mesh import HostMesh
        from slurmmesh.shape import Extent, Region

        self._controller.roster.wait_ready(records, START_TIMEOUT_S)
        extent = Extent.of({"hosts": len(records)})
        region = Region.from_ranks(extent, [record.index for record in records])
        return HostMesh(self._controller.runtime, region)

    @property
    def closed(self) -> bool:
        """Whether it has been stopped."""
        return self._controller.closed

    def expect_end(self) -> None:
        """See ``Controller.expect_end``."""
        self._controller.expect_end()

    def close(self, exit_code: int | None = None) -> None:
        """End the job's hosts and all that runs on them. Idempotent.

        Args:
            exit_code: of the program, where it is known; for the last event of the job.
        """
        self._controller.close(exit_code=exit_code)


def _controller_of(job_id: str, folder: Path | None) -> Controller:
    # Imported here: meanwhile the agents of this machine, if there are any, start.
    from slurmmesh.hosts.controller import Controller

    try:
        return Controller(job_id, folder)
    except OSError as error:
        raise SetupError(f"a job cannot be started in folder {folder}: {error}") from error


def start_job(environ: Mapping[str, str]) -> Job:
    """Start the hosts of the job that the environment describes; for the controller's entry.

    Raises:
        UsageError: the environment is not that of a job.
        SetupError: hosts could not be launched.
    """
    folder = environ.get("SLURMMESH_JOB_FOLDER")
    if not folder:
        raise UsageError(
            "not inside a slurmmesh job: start the program with `python -m slurmmesh.submit`, "
            "or use slurmmesh.local_hosts()"
        )
    path = Path(folder).absolute()
    try:
        job_id, cluster = environ["SLURMMESH_JOB_ID"], environ["SLURMMESH_CLUSTER"]
        nodes = int(environ["SLURMMESH_NODES"])
        spares = int(environ.get("SLURMMESH_SPARES") or 0)
        gpus = int(environ.get("SLURMMESH_GPUS_PER_NODE") or 0)
    except (KeyError, ValueError) as error:
        raise UsageError(f"the job's environment is not complete: {error}") from error
    if nodes < 1 or spares < 0 or gpus < 0:
        raise UsageError(f"no job has {nodes} nodes, {spares} spares and {gpus} GPUs per node")
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(f"the job folder {path} cannot be used: {error}") from error
    return _adopt(lambda: Job(job_id, cluster, path, nodes, spares, gpus))


def this_job() -> Job:
    """The job this program runs in.

    Raises:
        UsageError: it does not run in one.
    """
    with _lock:
        return running_job() or start_job(os.environ)


def job_or_local(nodes: int = 1) -> Job:
    """The job this program runs in or, outside of one, a local job of that many hosts.

    The local job's folder is made where ``submit`` makes it: in ``SLURMMESH_JOB_ROOT``, or in
    ``slurmmesh-jobs`` below the working folder. Errors of slurmmesh then end the program as they
    do under ``submit``, see :func:`explain_errors`.

    Raises:
        UsageError: ``nodes`` is below 1, or a setting has a wrong value.
        SetupError: no job folder can be made, or the hosts could not be launched.
    """
    explain_errors()
    if nodes < 1:
        raise UsageError(f"at least one host is needed, not {nodes}")
    with _lock:
        if job := running_job():
            return job
        if "SLURMMESH_JOB_FOLDER" in os.environ:
            return start_job(os.environ)
        root = config.load_settings().job_root
        try:
            job_id, folder = make_local_folder(root)
        except OSError as error:
            raise SetupError(f"a job folder cannot be made in {root}: {error}") from error
        with contextlib.suppress(OSError):  # without it the job only looks unknown to others
            write_record(folder, {"job_id": job_id, "nodes": nodes, **_of_this_program()})
        job = _adopt(lambda: Job(job_id, "local", folder, nodes))
        _say(f"slurmmesh: local job {job_id}, logs in {folder}")
        return job


def local_hosts(nodes: int, folder: Path | str | None = None) -> HostMesh:
    """Hosts on this machine, as a mesh over ``hosts``; ``stop()`` ends them.

    Args:
        nodes: how many.
        folder: a job folder for logs and events; None: output goes to our stderr.

    Raises:
        ValueError: ``nodes`` is below 1.
        SetupError: they could not be started.
    """
    if nodes < 1:
        raise UsageError(f"at least one host is needed, not {nodes}")
    where = Path(folder).absolute() if folder else None
    job = Job(f"local-{os.getpid()}", "local", where, nodes)
    if where is not None:
        _say(f"slurmmesh: logs in {where}")
    try:
        return job.hosts
    except BaseException:
        job.close()
        raise


def _say(text: str) -> None:
    from slurmmesh.wire.reactor import say  # here: the agents start before all that is imported

    say(text)


def _of_this_program() -> dict[str, Any]:
    """What a record tells of a program that was not submitted; how it ends nobody will know."""
    return {
        "cluster": "local",
        "argv": list(sys.argv),
        "cwd": os.getcwd(),
        **this_process(),
        "started": time.time(),
    }


def running_job() -> Job | None:
    """The one that this program runs in, if it has been started and not been stopped."""
    return _job if _job is not None and not _job.closed else None


def _adopt(start: Callable[[], Job]) -> Job:
    global _job
    with _lock:
        _job = start()
        return _job
