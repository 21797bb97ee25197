"""Calls of Slurm's commands, and their answers as plain data."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from slurmmesh.config import Settings
from slurmmesh.slurm import environment, refusals
from slurmmesh.slurm.commands import Answer, is_installed, run
from slurmmesh.slurm.states import JobState, parse_state

_PING_TIMEOUT_S = 6.0
_FIRST_PAUSE_S = 0.25
_JOB_ID = re.compile(r"(\d+)(?:;(\S+))?")
# Every field bounded by a mark that none of them can hold.
_JOB_FIELDS = "JobID:|,State:|,Reason:|,NodeList:|,exit_code:|,RestartCnt:|,BatchHost:|"


@dataclass(frozen=True)
class JobRef:
    """A job and, in a federation or with several clusters, the cluster that has it."""

    id: str
    cluster: str = ""

    def __str__(self) -> str:
        return f"{self.id};{self.cluster}" if self.cluster else self.id

    @property
    def options(self) -> list[str]:
        """What later commands need to find the job."""
        return ["-M", self.cluster] if self.cluster else []


@dataclass(frozen=True)
class JobInfo:
    """What squeue tells about a job.

    Attributes:
        reason: why it waits or ended, in Slurm's words.
        nodes: host list of its allocation; empty if it never had one.
        exit_code, signal: of the batch script, once the job is over; else 0.
        restarts: how often Slurm started it again.
        batch_host: the node of its batch script, that is of the controller, also after Slurm has
            dropped that node from the allocation; empty if it has not started.
    """

    state: JobState
    reason: str = ""
    nodes: str = ""
    exit_code: int = 0
    signal: int = 0
    restarts: int = 0
    batch_host: str = ""


class SlurmClient:
    """Speaks to Slurm through its commands. Every call ends within ``settings.slurm_timeout_s``.

    ``interrupted`` is asked while a command runs: true cuts it short.
    """

    def __init__(
        self,
        settings: Settings,
        environ: Mapping[str, str] | None = None,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        self._settings = settings
        self._environ = os.environ if environ is None else environ
        self._interrupted = interrupted

    def why_not(self) -> str:
        """Why there is no Slurm to use here, in words; empty if it answers. Takes seconds at most.

        It is asked once: a Slurm that is just restarting counts as not there.
        """
        if not is_installed("sbatch", self._environ):
            return "sbatch is not installed"
        answer = self._ping()
        return "" if _is_up(answer) else refusals.down(_words(answer)).message

    def wait_until_up(self) -> None:
        """Return when slurmctld answers, going on for ``settings.slurm_patience_s``.

        Raises:
            SubmitError: it does not, or Slurm is not set up here.
            MissingDependencyError: Slurm is not installed.
        """
        deadline = time.monotonic() + self._settings.slurm_patience_s
        pause = _FIRST_PAUSE_S
        while True:
            answer = self._ping()
            if _is_up(answer):
                return
            error = refusals.down(_words(answer))
            configured = not refusals.is_not_configured(_words(answer))
            if not configured or not self._pause(pause, deadline):
                raise error
            pause *= 2

    def submit(
        self,
        script: str,
        options: Sequence[str] = (),
        *,
        name: str = "",
        warn: Callable[[str], None] = lambda line: None,
    ) -> JobRef:
        """Put a batch script in the queue.

        Args:
            script: with surrogate escapes for bytes that are no UTF-8.
            options: of sbatch, beside those in the script.
            name: of the job, for messages.
            warn: gets each line that a successful sbatch complains.

        Raises:
            SubmitError: Slurm is down, or refused it, or did not answer in time.
            MissingDependencyError: Slurm is not installed.
        """
        argv = ["sbatch", "--parsable", *options]
        environ = self._submit_environ()
        deadline = time.monotonic() + self._settings.slurm_timeout_s
        pause = _FIRST_PAUSE_S
        while True:
            left = max(1.0, deadline - time.monotonic())
            answer = self._run(argv, timeout_s=left, environ=environ, stdin=os.fsencode(script))
            if ref := parse_job_ref(answer.stdout):
                for line in answer.stderr.splitlines():
                    warn(line)
                return ref
            said = _words(answer)
            if answer.returncode is None or refusals.is_unanswered(said):
                raise refusals.unanswered(said, name)
            if not refusals.is_unreached(said):
                raise refusals.refused(said)
            if not self._pause(pause, deadline):
                raise refusals.down(said)
            pause *= 2

    def test(self, script: str, options: Sequence[str] = ()) -> str:
        """What sbatch says to a job that it only shall test: when and where it would start.

        Raises as ``submit`` does.
        """
        answer = self._run(
            ["sbatch", "--test-only", *options],
            environ=self._submit_environ(),
            stdin=os.fsencode(script),
        )
        said = _words(answer)
        if answer.ok:
            return refusals.error_line(said)
        raise refusals.down(said) if answer.returncode is None else refusals.refused(said)

    def job(self, ref: JobRef) -> JobInfo | None:
        """The job as squeue shows it; None if Slurm no longer knows it.

        Slurm forgets a job some minutes after its end.

        Raises:
            SubmitError: Slurm does not answer.
        """
        argv = ["squeue", *ref.options, "--noheader", "--states=all", "--jobs", ref.id]
        answer = self._run([*argv, "--Format", _JOB_FIELDS])
        if info := parse_job_info(answer.stdout, ref):
            return info
        if answer.ok or "Invalid job id" in answer.stderr:
            return None
        raise refusals.down(_words(answer))

    def cancel(self, ref: JobRef) -> None:
        """End a job: one that waits leaves the queue, one that runs gets SIGTERM, then SIGKILL.

        A job that has ended is no error.

        Raises:
            SubmitError: Slurm does not answer.
        """
        deadline = time.monotonic() + self._settings.slurm_timeout_s
        pause = _FIRST_PAUSE_S
        while True:
            answer = self._run(["scancel", *ref.options, ref.id])
            said = _words(answer)
            if answer.ok or re.search("already complet|Invalid job id", said):
                return
            if not self._pause(pause, deadline):
                raise refusals.down(said)
            pause *= 2

    def requeue(self, ref: JobRef) -> None:
        """Have Slurm end a job and start it again. Of an array give the task, or all start again.

        Raises:
            SubmitError: Slurm does not answer, or may not requeue the job.
        """
        answer = self._run(["scontrol", *ref.options, "requeue", ref.id])
        if not answer.ok:
            raise refusals.refused(_words(answer))

    def node_names(self) -> frozenset[str]:
        """The nodes that the cluster has; empty if Slurm does not tell."""
        answer = self._run(["sinfo", "--all", "--noheader", "--Node", "--format", "%N"])
        return frozenset(line.strip() for line in answer.stdout.splitlines())

    def partition_sizes(self) -> dict[str, int]:
        """Nodes of each partition, down ones included; the default one also stands under ``""``.

        Empty if Slurm does not tell.
        """
        answer = self._run(["sinfo", "--all", "--noheader", "--format", "%P|%D"])
        return parse_partition_sizes(answer.stdout)

    def node_addresses(self, nodes: Sequence[str]) -> dict[str, str]:
        """What Slurm uses to reach each node: an address or a host name.

        Nodes that Slurm says nothing about are left out; all, if it does not answer.
        """
        if not is_installed("scontrol", self._environ):
            return {}
        answer = self._run(["scontrol", "--oneliner", "show", "node", ",".join(nodes)])
        return parse_node_addresses(answer.stdout)

    def _pause(self, seconds: float, deadline: float) -> bool:
        """Wait before asking again; false if there is no time left for that."""
        end = time.monotonic() + seconds
        while not self._interrupted() and end <= deadline:
            left = end - time.monotonic()
            if left <= 0:
                return True
            time.sleep(min(left, 0.05))
        return False

    def _ping(self) -> Answer:
        return self._run(["scontrol", "ping"], timeout_s=_PING_TIMEOUT_S)

    def _submit_environ(self) -> dict[str, str]:
        """Of a new job: the shell's, without traces of a job around it, and the settings."""
        return {**environment.for_submit(self._environ), **self._settings.as_environ()}

    def _run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float | None = None,
        environ: Mapping[str, str] | None = None,
        stdin: bytes = b"",
    ) -> Answer:
        return run(
            argv,
            environ=environ or environment.for_client(self._environ),
            timeout_s=timeout_s or self._settings.slurm_timeout_s,
            stdin=stdin,
            interrupted=self._interrupted,
        )


def parse_job_ref(stdout: str) -> JobRef | None:
    """The job of ``sbatch --parsable``: its last line that is ``123`` or ``123;cluster``.

    Sites print banners and warnings around it.
    """
    for line in reversed(stdout.splitlines()):
        if match := _JOB_ID.fullmatch(line.strip()):
            return JobRef(match[1], match[2] or "")
    return None


def parse_job_info(stdout: str, ref: JobRef) -> JobInfo | None:
    """The line of squeue about the job; None if there is none."""
    for line in stdout.splitlines():
        fields = line.split("|")
        if len(fields) < 6 or fields[0].strip() != ref.id:
            continue
        state, reason, nodes, status, restarts = (field.strip() for field in fields[1:6])
        raw = int(status) if status.isdigit() else 0
        return JobInfo(
            state=parse_state(state),
            reason=reason,
            nodes=nodes,
            exit_code=(raw >> 8) & 0xFF,
            signal=raw & 0x7F,
            restarts=int(restarts) if restarts.isdigit() else 0,
            batch_host=fields[6].strip() if len(fields) > 6 else "",
        )
    return None


def parse_partition_sizes(stdout: str) -> dict[str, int]:
    """``main*|4`` to ``{"main": 4, "": 4}``."""
    sizes: dict[str, int] = {}
    for line in stdout.splitlines():
        name, bar, count = line.strip().partition("|")
        if bar and count.isdigit():
            sizes[name.removesuffix("*")] = int(count)
            if name.endswith("*"):
                sizes[""] = int(count)
    return sizes


def parse_node_addresses(stdout: str) -> dict[str, str]:
    """NodeName to NodeAddr (or NodeHostName) of ``scontrol --oneliner show node``."""
    found: dict[str, str] = {}
    for line in stdout.splitlines():
        name = re.match(r"NodeName=(\S+)", line)
        address = re.search(r" NodeAddr=(\S+)", line) or re.search(r" NodeHostName=(\S+)", line)
        if name and address:
            found[name[1]] = address[1]
    return found


def _is_up(ping: Answer) -> bool:
    """Whether one of the cluster's controllers is up; the backup will do."""
    return re.search(r"\bUP\b", ping.stdout) is not None


def _words(answer: Answer) -> str:
    return f"{answer.stdout}\n{answer.stderr}"
