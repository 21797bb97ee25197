"""A submitit plugin that starts steps inside the allocation: srun where submitit has sbatch.

submitit's own pickles, paths and results are used; ``AutoExecutor(folder, cluster="slurmmesh")``
finds it by its entry points. A step survives the loss of other nodes and of other steps, and
shares the job's resources with them. Each option of srun is given in its argv; none comes from
the environment.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import shlex
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

from submitit.core import core, utils
from submitit.core.job_environment import JobEnvironment

from slurmmesh.errors import SetupError, UsageError
from slurmmesh.slurm import environment
from slurmmesh.slurm.allocation import Allocation
from slurmmesh.slurm.bootstrap import python_code
from slurmmesh.slurm.hostlists import expand
from slurmmesh.slurm.quoting import literal_pattern

R = TypeVar("R", covariant=True)

_NAME = "slurmmesh"
_TAG = "SLURMMESH_STEP_TAG"
# From SIGTERM to the srun of a cancelled step until srun itself is killed.
_CANCEL_GRACE_S = 10.0
_SRUN_WORDS = 2000
# What srun says to --cpu-bind=none where there is nothing to bind with anyway.
_NO_BINDING = "srun: cluster configuration lacks support for cpu binding"


@dataclass
class _Step:
    """The srun of one step. Only this module reaps it, so its pid stays its own until then."""

    process: subprocess.Popen[bytes]
    messages: Path
    cancelled: bool = False


_steps: dict[str, _Step] = {}


class StepWatcher(core.InfoWatcher):
    """The states of steps, from their srun processes: no question to Slurm."""

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        """RUNNING, COMPLETED, CANCELLED or FAILED; UNKNOWN for a step of another process."""
        step = _steps.get(job_id)
        if step is None:
            return "UNKNOWN"
        code = step.process.poll()
        if code is None:
            return "RUNNING"
        if code == 0:
            return "COMPLETED"
        return "CANCELLED" if step.cancelled else "FAILED"

    def _make_command(self) -> None:
        return None


class StepJob(core.Job[R]):
    """A step. Besides submitit's methods it tells of its srun, in the process that started it."""

    watcher = StepWatcher()
    # A result is there before srun ends; this is for slow file systems.
    _results_timeout_s = 2

    def poll(self) -> int | None:
        """None while srun runs, else its exit code (negative: the signal that killed srun)."""
        return self._step.process.poll()

    def pidfd(self) -> int:
        """A new descriptor that gets readable when srun ends; the caller closes it.

        Raises:
            ProcessLookupError: it has ended and ``poll()`` has told so.
        """
        return os.pidfd_open(self._step.process.pid)

    def wait_exit(self, timeout_s: float | None = None) -> bool:
        """Wait until srun has ended; false if ``timeout_s`` passed before."""
        if self.poll() is not None:
            return True
        with contextlib.suppress(ProcessLookupError):
            descriptor = self.pidfd()
            try:
                poller = select.poll()
                poller.register(descriptor, select.POLLIN)
                poller.poll(None if timeout_s is None else timeout_s * 1000)
            finally:
                os.close(descriptor)
        return self.poll() is not None

    def wait(self) -> None:
        """Wait until the step is over."""
        self.wait_exit()

    def cancel(self, check: bool = True) -> None:
        """End the step: srun has Slurm kill its tasks. ``check`` waits until that is done."""
        step = self._step
        if step.process.poll() is not None:
            return
        step.cancelled = True
        step.process.terminate()
        if check and not self.wait_exit(_CANCEL_GRACE_S):
            step.process.kill()
            step.process.wait()

    def kill(self) -> None:
        """Kill srun itself, without asking Slurm: for a step whose node does not answer."""
        process = self._step.process
        process.kill()
        process.wait()

    def describe_exit(self) -> str:
        """How the step ended, with the last that srun said; empty while it runs."""
        code = self.poll()
        if code is None:
            return ""
        how = f"exited with code {code}" if code >= 0 else f"was killed by signal {-code}"
        said = self.srun_messages()
        return f"its srun {how}" + (f": {said}" if said else "")

    def srun_messages(self) -> str:
        """The last lines that srun itself said (its tasks' output is in ``paths``)."""
        try:
            text = self._step.messages.read_text(errors="replace")[-_SRUN_WORDS:]
        except OSError:
            return ""
        return "\n".join(line for line in text.splitlines() if line != _NO_BINDING).strip()

    @property
    def _step(self) -> _Step:
        step = _steps.get(self.job_id)
        if step is None:
            raise SetupError(f"step {self.job_id} was started by another process")
        return step

    def _interrupt(self, timeout: bool = False) -> None:
        self._step.process.send_signal(signal.SIGUSR2)


class StepJobEnvironment(JobEnvironment):
    """What a function in a step sees of it, by submitit's names."""

    _env = {
        "job_id": _TAG,
        "num_tasks": "SLURM_STEP_NUM_TASKS",
        "num_nodes": "SLURM_STEP_NUM_NODES",
        "node": "SLURM_NODEID",
        "nodes": "SLURM_STEP_NODELIST",
        "global_rank": "SLURM_PROCID",
        "local_rank": "SLURM_LOCALID",
    }

    @classmethod
    def name(cls) -> str:
        """The cluster's name for submitit."""
        return _NAME

    @property
    def hostnames(self) -> Sequence[str]:
        """The nodes of the step."""
        return expand(os.environ.get(self._env["nodes"], "")) or [self.hostname]


@dataclass(frozen=True)
class StepParameters:
    """What a step asks for.

    Attributes:
        job_name: the step's name in squeue.
        nodes, ntasks_per_node: its shape.
        nodelist: host list of the nodes to use; any of the job's if empty.
        cpus_per_task: 0 for all that the job has on a node, shared by its tasks there.
        gpus_per_node: a number or ``type:number``; 0 for whatever the job has.
        mem_gb: of each node; 0 for all of the job's.
        time: minutes; 0 for as long as the job.
    """

    job_name: str = ""
    nodes: int = 1
    ntasks_per_node: int = 1
    nodelist: str = ""
    cpus_per_task: int = 0
    gpus_per_node: int | str = 0
    mem_gb: float = 0
    time: int = 0

    def srun_options(self, allocation: Allocation) -> list[str]:
        """The options of srun.

        Raises:
            UsageError: more nodes than the allocation has, or none of its nodes.
        """
        if not 1 <= self.nodes <= len(allocation.nodes):
            raise UsageError(
                f"a step of {self.nodes} nodes does not fit: job {allocation.job_id} has "
                f"{len(allocation.nodes)}"
            )
        named = expand(self.nodelist)
        if strange := [node for node in named if node not in allocation.nodes]:
            raise UsageError(f"{', '.join(strange)}: no node of job {allocation.job_id}")
        cpus = dict(zip(allocation.nodes, allocation.cpus, strict=True))
        least = min(cpus[node] for node in named or allocation.nodes)
        options = [
            "--overlap",
            "--no-kill",
            "--kill-on-bad-exit=0",
            "--wait=0",
            f"--nodes={self.nodes}",
            f"--ntasks={self.nodes * self.ntasks_per_node}",
            f"--cpus-per-task={self.cpus_per_task or max(1, least // self.ntasks_per_node)}",
            # Hosts bind their processes themselves.
            "--cpu-bind=none",
            "--mpi=none",
            "--export=ALL",
            "--unbuffered",
            "--input=none",
        ]
        if self.job_name:
            options.append(f"--job-name={self.job_name}")
        if named:
            options.append(f"--nodelist={','.join(named)}")
        if self.gpus_per_node:
            options.append(f"--gpus-per-node={self.gpus_per_node}")
        if self.mem_gb:
            options.append(f"--mem={round(self.mem_gb * 1024)}M")
        if self.time:
            options.append(f"--time={self.time}")
        return options


class StepExecutor(core.PicklingExecutor):
    """Starts functions as steps of the allocation that this process is in.

    ``update_parameters`` takes the fields of ``StepParameters``. The folder holds pickles that
    are run: it must be writable for nobody else, and all nodes must see it.

    Args:
        folder: for the steps' pickles and output.
        environ: where the allocation is told; the process's own if None.

    Raises:
        SetupError: on submit, outside of an allocation.
        UsageError: on submit, for parameters that do not fit.
    """

    job_class = StepJob
    _numbers = itertools.count()

    def __init__(
        self,
        folder: Path | str,
        max_num_timeout: int = 3,
        max_pickle_size_gb: float = 1.0,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(folder, max_num_timeout, max_pickle_size_gb)
        self._environ = environ
        self._throttling = 0.0

    @classmethod
    def name(cls) -> str:
        """The cluster's name for submitit."""
        return _NAME

    @classmethod
    def affinity(cls) -> int:
        """Never taken unless asked for by name; not there outside of an allocation."""
        return 0 if "SLURM_JOB_ID" in os.environ else -1

    @classmethod
    def _equivalence_dict(cls) -> core.EquivalenceDict:
        return {
            "name": "job_name",
            "timeout_min": "time",
            "mem_gb": "mem_gb",
            "nodes": "nodes",
            "cpus_per_task": "cpus_per_task",
            "gpus_per_node": "gpus_per_node",
            "tasks_per_node": "ntasks_per_node",
        }

    def submit(self, fn: Callable[..., R], *args: Any, **kwargs: Any) -> StepJob[R]:
        """Start ``fn(*args, **kwargs)`` as a step; returns at once."""
        return cast("StepJob[R]", super().submit(fn, *args, **kwargs))

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        known = sorted(StepParameters.__dataclass_fields__)
        if unknown := sorted(kwargs.keys() - set(known)):
            raise UsageError(f"unknown parameters {unknown} of a step; it has {known}")
        super()._internal_update_parameters(**kwargs)

    @property
    def _submitit_command_str(self) -> str:
        return shlex.join([sys.executable, "-u", "-c", python_code("slurmmesh.slurm.step_main")])

    def _num_tasks(self) -> int:
        parameters = StepParameters(**self.parameters)
        return parameters.nodes * parameters.ntasks_per_node

    def _submit_command(self, command: str) -> StepJob[Any]:
        environ = os.environ if self._environ is None else self._environ
        allocation = Allocation.from_env(environ)
        options = StepParameters(**self.parameters).srun_options(allocation)
        tag = f"{allocation.job_id}.{next(self._numbers)}.{uuid.uuid4().hex[:6]}"
        paths = utils.JobPaths(self.folder, job_id=tag)
        paths.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        pattern = literal_pattern(paths.folder) + f"/{tag}_%t_log"
        messages = paths.folder / f"{tag}_srun.log"
        argv = ["srun", *options, f"--output={pattern}.out", f"--error={pattern}.err"]
        with open(messages, "wb") as log:
            try:
                process = subprocess.Popen(
                    [*argv, *shlex.split(command), str(self.folder)],
                    env={
                        **environment.for_step(environ),
                        _TAG: tag,
                        "SUBMITIT_EXECUTOR": _NAME,
                    },
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    # A Ctrl-C at the terminal is for the controller, which ends its steps in order.
                    start_new_session=True,
                )
            except OSError as error:
                raise SetupError(f"srun cannot be started: {error}") from error
        _steps[tag] = _Step(process, messages)
        return StepJob(folder=self.folder, job_id=tag, tasks=list(range(self._num_tasks())))

    # The base class asks for these only for a scheduler that is given a script.

    def _make_submission_file_text(self, command: str, uid: str) -> NoReturn:
        raise NotImplementedError("a step has no submission file")

    def _make_submission_command(self, submission_file_path: Path) -> NoReturn:
        raise NotImplementedError("a step has no submission file")

    @staticmethod
    def _get_job_id_from_submission_command(string: bytes | str) -> NoReturn:
        raise NotImplementedError("a step's id is not read from any output")
