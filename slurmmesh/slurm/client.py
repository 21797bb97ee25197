"""Calls of Slurm's commands: bounded in time and number, on sites of every kind."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from slurmmesh.config import Settings
from slurmmesh.errors import MissingDependencyError, SubmitError
from slurmmesh.slurm import environment, marked, queries, refusals, sbatch_answer
from slurmmesh.slurm.commands import Answer, is_installed, run
from slurmmesh.slurm.ids import JobRef
from slurmmesh.slurm.jobinfo import JobInfo, leading, select
from slurmmesh.slurm.jobjson import parse_squeue_json
from slurmmesh.slurm.pacing import RateLimit, back_off
from slurmmesh.slurm.states import JobState

__all__ = ["JobInfo", "JobRef", "SlurmClient"]

_PING_TIMEOUT_S = 6.0
# The database may be slow, and is never needed.
_SACCT_TIMEOUT_S = 10.0
# After it has failed it is left alone for so long.
_FIRST_SACCT_PAUSE_S = 10.0
_LONGEST_SACCT_PAUSE_S = 300.0
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 8.0
# A command line holds so many ids with ease.
_IDS_AT_ONCE = 500
# What scancel says then.
_IS_OVER = "already complet|Invalid job id spec"
# One row for each cluster that has the job: else the one that counts may be left out.
_ALL_SIBLINGS = ("--federation", "--sibling")
# Of this process, all clients and all threads together.
_LIMIT = RateLimit(per_second=5.0, burst=20)


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
        # No sacct is asked before; it is infinite where there is no accounting.
        self._sacct_from = -math.inf
        self._sacct_pauses = back_off(_FIRST_SACCT_PAUSE_S, _LONGEST_SACCT_PAUSE_S)

    def why_not(self) -> str:
        """Why there is no Slurm to use here, in words; empty if it answers. Takes seconds at most.

        It is asked once: a Slurm that is just restarting counts as not there.
        """
        if not is_installed("sbatch", self._environ):
            return "sbatch is not installed"
        answer = self._ping()
        return "" if queries.is_up(answer.stdout) else refusals.down(answer.words).message

    def wait_until_up(self) -> None:
        """Return when slurmctld answers, going on for ``settings.slurm_patience_s``.

        Raises:
            SubmitError: it does not, or Slurm is not set up here.
            MissingDependencyError: Slurm is not installed.
        """
        pauses = self._pauses(self._settings.slurm_patience_s)
        while True:
            answer = self._ping()
            if queries.is_up(answer.stdout):
                return
            if refusals.is_not_configured(answer.words) or not next(pauses):
                raise refusals.down(answer.words)

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
            name: of the job, for messages and to know it again.
            warn: gets each line that a successful sbatch complains.

        Raises:
            SubmitError: Slurm is down, or refused it, or did not answer in time.
            MissingDependencyError: Slurm is not installed.
        """
        argv = ["sbatch", "--parsable", *options]
        environ = self._submit_environ()
        deadline = time.monotonic() + self._settings.slurm_timeout_s
        pauses = self._pauses(self._settings.slurm_timeout_s)
        while True:
            left = max(1.0, deadline - time.monotonic())
            answer = self._run(argv, timeout_s=left, environ=environ, stdin=os.fsencode(script))
            if ref := self._submitted(answer, name):
                for line in (*sbatch_answer.oddities(answer), *answer.stderr.splitlines()):
                    warn(line)
                return ref
            if error := sbatch_answer.failure(answer, name):
                raise error
            if not next(pauses):
                raise refusals.down(answer.words)

    def job(self, ref: JobRef) -> JobInfo | None:
        """The job as Slurm shows it; None if Slurm no longer knows it.

        Slurm forgets a job some minutes after its end, but for the accounting where there is one.
        Of several tasks or components it is the one that tells how all of them stand together.

        Raises:
            SubmitError: Slurm does not answer.
        """
        return leading(self._ask([ref], ref.cluster, itertools.repeat(False)).values())

    def jobs(self, refs: Iterable[JobRef]) -> dict[JobRef, JobInfo]:
        """What Slurm knows of many jobs, in few questions; those it has forgotten are left out.

        The tasks of an array and the components of a heterogeneous job stand there one by one,
        under ids of their own (``123_4``, ``123+1``).

        Raises:
            SubmitError: Slurm does not answer, not even after ``settings.slurm_patience_s``.
        """
        pauses = self._pauses(self._settings.slurm_patience_s)
        found: dict[JobRef, JobInfo] = {}
        by_cluster: dict[str, list[JobRef]] = {}
        for ref in dict.fromkeys(refs):
            by_cluster.setdefault(ref.cluster, []).append(ref)
        for cluster, group in by_cluster.items():
            for start in range(0, len(group), _IDS_AT_ONCE):
                found.update(self._ask(group[start : start + _IDS_AT_ONCE], cluster, pauses))
        return found

    def queue(self, cluster: str = "") -> dict[JobRef, JobInfo]:
        """The jobs of this user that wait or run, each under its own id as ``jobs`` has them.

        Raises:
            SubmitError: Slurm does not answer, not even after ``settings.slurm_patience_s``.
        """
        pauses = self._pauses(self._settings.slurm_patience_s)
        which = [*([] if cluster else _ALL_SIBLINGS), f"--user={os.getuid()}"]
        return self._squeue(which, cluster, pauses)

    def steps(self, ref: JobRef) -> frozenset[str]:
        """What of a job lives: itself (``12``) while it has nodes, and its steps (``12.3``).

        Args:
            ref: by the number that the job itself knows as SLURM_JOB_ID.

        Raises:
            SubmitError: Slurm does not answer.
        """
        found = self._ask([ref], ref.cluster, itertools.repeat(False))
        info = next((info for info in found.values() if info.raw_id == ref.id), None)
        if info is None or info.state.is_over or info.state.is_waiting:
            return frozenset()
        mark = marked.new_mark()
        form = marked.squeue_format(queries.STEP_COLUMNS, mark)
        which = ["--steps", *_where(ref.cluster), *_siblings([ref]), *_which([ref])]
        answer = self._run(["squeue", *which, "--Format", form])
        steps = queries.parse_steps(answer.stdout, mark, ref.id)
        if steps is None or not answer.ok:
            raise refusals.no_answer(answer.words)
        return steps | {ref.id}

    def cancel(self, ref: JobRef) -> None:
        """End a job: one that waits leaves the queue, one that runs gets SIGTERM, then SIGKILL.

        A job that has ended is no error.

        Raises:
            SubmitError: Slurm does not answer.
        """
        self._until_answered(["scancel", *ref.options, ref.id], _IS_OVER)

    def signal_step(self, step: str, signal: str = "") -> None:
        """Send a signal to all tasks of a step, such as ``12.3``; without one, end the step.

        A step that is over is no error.

        Raises:
            SubmitError: Slurm does not answer, or may not do that.
        """
        options = [f"--signal={signal}"] if signal else []
        self._until_answered(["scancel", *options, step], _IS_OVER)

    def requeue(self, ref: JobRef) -> None:
        """Have Slurm end a job and start it again; of an array only the tasks that ``ref`` names.

        Raises:
            SubmitError: Slurm does not answer, or may not start the job again.
        """
        self._until_answered(["scontrol", *ref.options, "requeue", ref.id])

    def test(self, script: str, options: Sequence[str] = ()) -> str:
        """When and where a batch script would start, in Slurm's words. Nothing is submitted.

        Raises:
            SubmitError: Slurm does not answer, or would refuse the job.
        """
        answer = self._until_answered(
            ["sbatch", "--test-only", *options],
            environ=self._submit_environ(),
            stdin=os.fsencode(script),
        )
        told = re.findall(r"Job \S+ to start at .*", answer.words)
        return told[-1] if told else answer.words.strip()

    def node_names(self) -> frozenset[str]:
        """All nodes of the cluster. Empty if Slurm does not tell."""
        answer = self._run(["sinfo", "--all", "--noheader", "--Node", "--format", "%N|"])
        return queries.parse_node_names(answer.stdout)

    def partition_sizes(self, clusters: str = "") -> dict[str, int]:
        """Nodes of each partition, down ones included; the default one also stands under ``""``.

        Of several clusters the largest partition of a name counts. Empty if Slurm does not tell.
        """
        where = _where(clusters) or ["--federation"]
        answer = self._run(["sinfo", *where, "--all", "--noheader", "--format", "%P|%D"])
        return queries.parse_partition_sizes(answer.stdout)

    def node_addresses(self, nodes: Sequence[str]) -> dict[str, str]:
        """What Slurm uses to reach each node: an address or a host name.

        Nodes that Slurm says nothing about are left out; all, if it does not answer.
        """
        if not is_installed("scontrol", self._environ):
            return {}
        answer = self._run(["scontrol", "--oneliner", "show", "node", ",".join(nodes)])
        return queries.parse_node_addresses(answer.stdout)

    def _until_answered(self, argv: Sequence[str], fine: str = "(?!)", **how: Any) -> Answer:
        """Run a command that may be run twice; what it says in the words of ``fine`` is no error.

        Raises:
            SubmitError: it failed, or got no answer within ``settings.slurm_timeout_s``.
        """
        pauses = self._pauses(self._settings.slurm_timeout_s)
        while True:
            answer = self._run(argv, **how)
            if answer.ok or re.search(fine, answer.words):
                return answer
            if not _may_pass(answer):
                raise refusals.refused(answer.words)
            if not next(pauses):
                raise refusals.down(answer.words)

    def _submitted(self, answer: Answer, name: str) -> JobRef | None:
        """The job that sbatch made; None if there is none.

        Where what sbatch printed can be read in more than one way, squeue is asked.

        Raises:
            SubmitError: there may be one, but squeue does not answer.
        """
        certain, candidates = sbatch_answer.candidates(answer)
        if certain or not candidates:
            return certain
        try:
            known = self.jobs(candidates)
        except SubmitError:
            if answer.ok or refusals.is_refusal(answer.words):
                return sbatch_answer.best_guess(answer)
            raise refusals.unanswered(answer.words, name) from None
        for ref in reversed(candidates):
            if any(info.name == (name or info.name) for info in select(ref, known).values()):
                return ref
        return sbatch_answer.best_guess(answer)

    def _ask(
        self, refs: Sequence[JobRef], cluster: str, pauses: Iterable[bool]
    ) -> dict[JobRef, JobInfo]:
        """What squeue knows of these jobs of one cluster, and of those it has forgotten sacct.

        A job that another cluster of the federation runs is looked for there.
        """
        siblings = [] if cluster else _siblings(refs)
        known = self._squeue([*_which(refs), "--states=all", *siblings], cluster, pauses)
        found: dict[JobRef, JobInfo] = {}
        for ref in refs:
            found.update(select(ref, known))
        if untold := _untold(refs, found):
            known = self._sacct(untold, siblings[:1], cluster)
            for ref in untold:
                found.update(select(ref, known))
        away = [JobRef(ref.id) for ref in _untold(refs, found) if cluster and ref.is_federated]
        if away:
            with contextlib.suppress(SubmitError):
                there = self._ask(away, "", itertools.repeat(False))
                found.update((JobRef(ref.id, cluster), info) for ref, info in there.items())
        return found

    def _squeue(
        self, which: Sequence[str], cluster: str, pauses: Iterable[bool]
    ) -> dict[JobRef, JobInfo]:
        """Raises SubmitError."""
        command = ["squeue", *_where(cluster), *which, "--all", "--array"]
        go_on = iter(pauses)
        while True:
            mark = marked.new_mark()
            form = marked.squeue_format(queries.SQUEUE_COLUMNS, mark)
            answer = self._run([*command, "--Format", form])
            jobs = queries.parse_squeue(answer.stdout, mark, cluster)
            if jobs is not None and answer.returncode is not None:
                return jobs
            if "Invalid job id" in answer.stderr:  # it was the only one asked for
                return {}
            if _may_pass(answer):
                if next(go_on):
                    continue
                raise refusals.no_answer(answer.words)
            # A script around squeue has its own idea of the table, or squeue lacks a column.
            told = self._run([*command, "--json"])
            jobs = parse_squeue_json(told.stdout, time.time(), cluster)
            if jobs is None:
                raise refusals.no_answer(answer.words)
            return jobs

    def _sacct(
        self, refs: Sequence[JobRef], view: Sequence[str], cluster: str
    ) -> dict[JobRef, JobInfo]:
        """Empty where there is no accounting, and for a while after it has not answered."""
        if time.monotonic() < self._sacct_from:
            return {}
        mark = marked.new_mark()
        options = marked.sacct_options(queries.SACCT_COLUMNS, mark)
        argv = ["sacct", *_where(cluster), *view, *_which(refs), "--allocations", *options]
        try:
            answer = self._run(argv, timeout_s=_SACCT_TIMEOUT_S)
        except MissingDependencyError:
            self._sacct_from = math.inf
            return {}
        if answer.ok:
            self._sacct_pauses = back_off(_FIRST_SACCT_PAUSE_S, _LONGEST_SACCT_PAUSE_S)
            return queries.parse_sacct(answer.stdout, mark, cluster)
        has_none = refusals.is_without_accounting(answer.words)
        pause = math.inf if has_none else next(self._sacct_pauses)
        self._sacct_from = time.monotonic() + pause
        return {}

    def _pauses(self, seconds: float) -> Iterator[bool]:
        """Each item is a pause before asking again; false if there is no time left for one."""
        deadline = time.monotonic() + seconds
        for pause in back_off(_FIRST_PAUSE_S, _LONGEST_PAUSE_S):
            yield time.monotonic() + pause <= deadline and self._sleep(pause)

    def _sleep(self, seconds: float) -> bool:
        """Whether that was not interrupted."""
        end = time.monotonic() + seconds
        while not self._interrupted():
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
        self._sleep(_LIMIT.reserve(time.monotonic()))
        return run(
            argv,
            environ=environ or environment.for_client(self._environ),
            timeout_s=timeout_s or self._settings.slurm_timeout_s,
            stdin=stdin,
            interrupted=self._interrupted,
        )


def _where(cluster: str) -> list[str]:
    return ["-M", cluster] if cluster else []


def _siblings(refs: Sequence[JobRef]) -> list[str]:
    """Options to hear also of those that another cluster of the federation runs."""
    return list(_ALL_SIBLINGS) if any(ref.is_federated for ref in refs) else []


def _untold(refs: Sequence[JobRef], found: Mapping[JobRef, JobInfo]) -> list[JobRef]:
    """Those of which nobody has told how they are."""

    def is_told(ref: JobRef) -> bool:
        return any(info.state is not JobState.REVOKED for info in select(ref, found).values())

    return [ref for ref in refs if not is_told(ref)]


def _which(refs: Sequence[JobRef]) -> list[str]:
    return ["--jobs", ",".join(dict.fromkeys(ref.asked for ref in refs))]


def _may_pass(answer: Answer) -> bool:
    """Whether a command failed for want of an answer, which another try may get."""
    said = answer.words
    if answer.ok:
        return False
    return answer.returncode is None or refusals.is_unreached(said) or refusals.is_unanswered(said)
