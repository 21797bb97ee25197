"""What became of a submit, read from what sbatch printed and how it ended.

Sites put scripts around sbatch. They print banners (with lines that look like ids), drop
``--parsable``, fail after the job is in the queue, or hide that it is not. A job must never be
submitted twice, nor be lost sight of, so what is not certain is not taken for certain.
"""

from __future__ import annotations

import re
import signal

from slurmmesh.errors import SubmitError
from slurmmesh.slurm import refusals
from slurmmesh.slurm.commands import Answer
from slurmmesh.slurm.ids import JobRef

_PARSABLE = re.compile(r"([1-9]\d{0,9})(?:;([^\s;]+))?", re.ASCII)
_PLAIN = re.compile(r"Submitted batch job ([1-9]\d{0,9})(?: on cluster (\S+))?", re.ASCII)


def job_ids(text: str) -> list[JobRef]:
    """The lines that may be sbatch's answer: ``123``, ``123;cluster``, or its plain sentence."""
    found: dict[JobRef, None] = {}
    for line in text.splitlines():
        if match := _PARSABLE.fullmatch(line.strip()) or _PLAIN.search(line):
            found[JobRef(match[1], match[2] or "")] = None
    return list(found)


def candidates(answer: Answer) -> tuple[JobRef | None, list[JobRef]]:
    """The job if that is certain, and else those that it may be, the likeliest last."""
    told = job_ids(answer.stdout)
    if answer.ok and len(told) == 1:
        return told[0], told
    return None, told or job_ids(answer.stderr)


def best_guess(answer: Answer) -> JobRef | None:
    """The job where squeue has not confirmed any: sbatch's success has to be enough."""
    told = job_ids(answer.stdout)
    return told[-1] if answer.ok and told else None


def oddities(answer: Answer) -> list[str]:
    """What to tell of a submit that went well in the end."""
    if answer.returncode == 0:
        return []
    return [f"sbatch {_ending(answer)}, but Slurm has the job"]


def failure(answer: Answer, name: str) -> SubmitError | None:
    """Why there is no job; None if asking again is safe: slurmctld has not seen the request."""
    said = answer.words
    if answer.returncode is not None and refusals.is_refusal(said):
        return refusals.refused(said)
    if answer.returncode is None or refusals.is_unanswered(said):
        return refusals.unanswered(said, name)
    if answer.ok:
        return refusals.unanswered(said, name, "sbatch ended well but told no job id")
    if refusals.is_unreached(said):
        return None
    if answer.returncode < 0 or answer.returncode > 128 or not said.strip():
        return refusals.unanswered(said, name, f"sbatch {_ending(answer)} without an answer")
    return refusals.refused(said)


def _ending(answer: Answer) -> str:
    code = answer.returncode
    if code is None:
        return "took too long and was killed"
    number = -code if code < 0 else code - 128
    try:
        return f"was killed by {signal.Signals(number).name}"
    except ValueError:
        return f"ended with code {code}"
