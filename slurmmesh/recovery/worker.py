"""The actors in each process of a replica.

Three, because an actor handles one message at a time: the trainer is busy for the whole run,
on the main thread; the control takes news meanwhile; the reporter waits for something to report.
"""

from __future__ import annotations

import os
import queue
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from slurmmesh.actors import Actor, context, endpoint
from slurmmesh.errors import UsageError
from slurmmesh.recovery.assignment import Assignment
from slurmmesh.recovery.control import Control, RunOver

EXIT_DEVICE_FAILED = 70
"""Exit code of a process whose device or network failed under it: it is restarted."""


@dataclass(frozen=True)
class Outcome:
    """How a process's part in the run ended.

    Attributes:
        finished: False if the run ended before this restarted replica was back in it.
        value: what the user's function returned.
        step: committed steps in the end.
    """

    finished: bool
    value: Any = None
    step: int = 0


@dataclass(frozen=True)
class Report:
    """Something the controller should know: a word of ``Replica.report`` and its details."""

    word: str
    details: dict[str, Any]


class _Process:
    """What the three actors of this process share."""

    def __init__(self) -> None:
        self.control = Control()
        self.reports: queue.SimpleQueue[Report | None] = queue.SimpleQueue()
        self.store: Any = None
        self.replica: Any = None


_process = _Process()


class TrainerActor(Actor):
    """Runs the user's function as one process of a replica."""

    @endpoint
    def open_store(self) -> tuple[str, int]:
        """Host the TCPStore of this replica's group; returns where it is."""
        from slurmmesh.recovery.binding import make_store

        address = context().host_address
        _process.store = make_store(address)
        return address, int(_process.store.port)

    @endpoint
    def prepare(self, assignment: Assignment) -> None:
        """Announce this process, so that the first quorum is one of all replicas."""
        _process.replica = self._make_replica(assignment)
        _process.replica.prepare()

    @endpoint
    def run(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        assignment: Assignment,
    ) -> Outcome:
        """Call ``function(replica, *args)``.

        What the user's code raises is raised here, with one exception: when a device or the
        network failed, the process prints the traceback and exits, to be restarted.
        """
        replica = _process.replica or self._make_replica(assignment)
        try:
            value = function(replica, *args)
        except RunOver:
            replica.report("done")
            return Outcome(finished=False)
        except SystemExit as error:
            raise UsageError(f"the training function left by sys.exit({error.code!r})") from error
        except Exception as error:
            if is_infrastructure(error):
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(EXIT_DEVICE_FAILED)
            raise
        replica.report("done")
        return Outcome(True, value, replica.step_number())

    def _make_replica(self, assignment: Assignment) -> Any:
        import torch

        assignment = replace(assignment, group_rank=context().proc_rank)
        torch.set_num_threads(assignment.threads)
        _export(assignment)
        from slurmmesh.recovery.replica import Replica

        here = context()
        assert here.credentials is not None, "a proc without the job's credentials"
        replica = Replica(
            assignment,
            here.host_address,
            here.credentials,
            _process.control,
            lambda word, details: _process.reports.put(Report(word, details)),
        )
        if assignment.group_size > 1:
            replica.group = _group_of(assignment, here.host_address)
        return replica

    def __cleanup__(self, error: BaseException | None) -> None:
        """Let the reporter end too."""
        _process.reports.put(None)


class ControlActor(Actor):
    """Takes news from the controller while the trainer is busy."""

    @endpoint
    def pid(self) -> int:
        """The process id, for whoever wants to hit this process and no other."""
        return os.getpid()

    @endpoint
    def peer_died(self, replica: int, incarnation: int) -> None:
        """See ``Control.peer_died``."""
        _process.control.peer_died(replica, incarnation)

    @endpoint
    def peer_gone(self, replica: int) -> None:
        """See ``Control.peer_gone``."""
        _process.control.peer_gone(replica)

    @endpoint
    def call_together(self) -> None:
        """See ``Control.call_together``."""
        _process.control.call_together()

    @endpoint
    def end_run(self) -> None:
        """See ``Control.end_run``."""
        _process.control.end_run()


class ReporterActor(Actor):
    """Hands the process's reports to the controller, which asks for the next ones."""

    @endpoint
    def next(self) -> list[Report]:
        """Wait for a report; returns all there are. Empty: the process is being stopped."""
        reports = [_process.reports.get()]
        while not _process.reports.empty():
            reports.append(_process.reports.get())
        return [report for report in reports if report is not None]


def is_infrastructure(error: BaseException) -> bool:
    """Whether an exception of the user's code means that hardware or network failed.

    Those are device errors and errors of torch's communication; anything else is taken as a
    mistake in the program, which a restart would only repeat.
    """
    import torch

    kinds: list[type[BaseException]] = [torch.distributed.DistError]
    accelerator = getattr(torch, "AcceleratorError", None)
    if accelerator is not None:
        kinds.append(accelerator)
    return isinstance(error, tuple(kinds)) and not isinstance(error, torch.OutOfMemoryError)


def _export(assignment: Assignment) -> None:
    """Set the environment that TorchFT and ``torch.distributed`` read."""
    os.environ.update(assignment.settings.environment())
    host, port = assignment.store
    os.environ.update(
        MASTER_ADDR=host,
        MASTER_PORT=str(port),
        RANK=str(assignment.group_rank),
        LOCAL_RANK=str(assignment.group_rank),
        WORLD_SIZE=str(assignment.group_size),
        # The store exists: a later init_process_group of the user must not host another.
        TORCHELASTIC_USE_AGENT_STORE="True",
    )


def _group_of(assignment: Assignment, address: str) -> Any:
    """The process group of a replica's own processes."""
    from torch.distributed import PrefixStore, TCPStore

    from slurmmesh.recovery.gloo import make_group

    settings = assignment.settings
    host, port = assignment.store
    client = TCPStore(
        host, port, is_master=False, timeout=timedelta(seconds=settings.connect_timeout_s)
    )
    return make_group(
        PrefixStore("slurmmesh/group", client),
        assignment.group_rank,
        assignment.group_size,
        address,
        timedelta(seconds=settings.collective_timeout_s),
    )
