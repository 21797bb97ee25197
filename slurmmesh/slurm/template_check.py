"""Whether a template makes scripts that can run: tried with a job of every kind."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence

from slurmmesh.errors import MissingDependencyError, UsageError
from slurmmesh.slurm.job import Resources, SlurmJob
from slurmmesh.slurm.options import OPTIONS
from slurmmesh.slurm.template import render

_BASH_TIMEOUT_S = 30.0
# Of more kinds of jobs, the number is told.
_NAMED = 3
_DIRECTIVE = "#SBATCH"
# What the default's script has and no other may lack: a beginning of the line, and what for.
NEEDED = {
    _DIRECTIVE: "Slurm must be asked for it",
    "(umask 077 && mkdir": "the job folder must be made, for its owner alone",
    'chmod 700 -- "$sm_job"': "the job folder must be its owner's alone",
    "exec 1>>": "the output must come into the job folder",
    "export SLURMMESH_": "the controller and the hosts go by it",
}
_TAKES_OVER = re.compile(r'^exec\b.* "\$sm_(controller|launcher)" ', re.MULTILINE)
# Options that would undo what slurmmesh asks for.
_OURS = frozenset(
    {
        *("array", "chdir", "error", "job-name", "nodes", "ntasks", "ntasks-per-node"),
        *("no-requeue", "output", "requeue", "wait"),
    }
)
_SHORT = {option.short: option.name for option in OPTIONS.values()} | {"W": "wait"}
_OPTION = re.compile(rf"{_DIRECTIVE}\s+(?:--([A-Za-z-]+)|-([A-Za-z]))")


def samples(template: str) -> dict[str, SlurmJob]:
    """A job of every kind, by what kind it is."""
    common = {
        "job_root": "/shared/jobs",
        "chdir": "/shared/work",
        "python": "/opt/venv/bin/python",
        "template": template,
    }
    gpus = {"gpus_per_node": "mi300x:8", "cpus_per_task": 96, "time": "2-12"}
    odd = "a b'\"$(x)\\ #\tö"
    kinds: dict[str, Mapping[str, object]] = {
        "plain": {},
        "with GPUs and spares": {**gpus, "nodes": 16, "spares": 1, "network": "no_vni"},
        "with a range of nodes": {"nodes": "2-4", "requeue": True},
        "an array": {"array": "0-7%2"},
        "heterogeneous": {**gpus, "nodes": 7, "controller": Resources(cpus_per_task=8)},
        "with an output of its own": {"output": "%x.out", "error": "%x.err"},
        "in an apptainer container": {"container": "image.sif"},
        "in a pyxis container": {"container": "me/image", "container_runtime": "pyxis"},
        "with setup, variables and an interface": {
            "setup": ("module load rocm", "ulimit -n 65536"),
            "env": {"NAME": f"{odd}\n"},
            "interface": "hsn",
        },
        "with odd characters": {
            "args": (f"{odd}\n#SBATCH --nodes=99\n",),
            "comment": odd.replace("\t", ""),
            "chdir": f"/shared/{odd}\n",
        },
    }
    return {kind: SlurmJob("train.py", **{**common, **job}) for kind, job in kinds.items()}  # type: ignore[arg-type]


def problems_of(template: str) -> list[str]:
    """What is wrong with a template, each with the kinds of jobs it shows in; empty if nothing is.

    Runs nothing of it.

    Raises:
        UsageError: there is no such template, or it cannot be rendered for any job.
        MissingDependencyError: there is no bash here.
    """
    jobs = samples(template)
    render(jobs["plain"])
    found: dict[str, list[str]] = {}
    for kind, job in jobs.items():
        for problem in _problems(job, render(dataclasses.replace(job, template="default"))):
            found.setdefault(problem, []).append(kind)
    return [
        problem if len(kinds) == len(jobs) else f"{problem} [{_named(kinds)}]"
        for problem, kinds in found.items()
    ]


def _named(kinds: Sequence[str]) -> str:
    if len(kinds) <= _NAMED:
        return "; ".join(kinds)
    return f"{'; '.join(kinds[:_NAMED])}; and {len(kinds) - _NAMED} more kinds of jobs"


def _problems(job: SlurmJob, default: str) -> list[str]:
    try:
        script = render(job)
    except UsageError as error:
        return [str(error)]
    return [
        *_of_its_form(script),
        *_of_directives(script, default),
        *_of_what_is_missing(script, default),
        *mistakes_in_shell(script),
    ]


def _of_its_form(script: str) -> Iterable[str]:
    if not script.startswith("#!"):
        yield "it does not begin with #!/bin/bash, so sbatch refuses it"
    if "\0" in script:
        yield "it has a NUL character, so sbatch refuses it"


def _of_directives(script: str, default: str) -> Iterable[str]:
    seen = directives(script)
    for number, line in enumerate(script.split("\n"), 1):
        if line.startswith(_DIRECTIVE) and number not in seen:
            yield f"Slurm does not see {line!r}: it stands below the first command"
    usual = set(directives(default).values())
    for line in seen.values():
        match = _OPTION.match(line)
        name = match and (match[1] or _SHORT.get(match[2], ""))
        if line not in usual and name in _OURS:
            yield f"{line!r}: slurmmesh sets this itself; leave it out"


def _of_what_is_missing(script: str, default: str) -> Iterable[str]:
    lines = set(script.split("\n"))
    for line in default.split("\n"):
        why = next((why for beginning, why in NEEDED.items() if line.startswith(beginning)), None)
        if why and line not in lines:
            yield f"the line {line!r} is missing: {why}"
    wanted = _TAKES_OVER.search(default)
    if wanted and wanted[1] not in _TAKES_OVER.findall(script):
        yield (
            f'no line is exec ... "$sm_{wanted[1]}" ...: it must take the shell\'s place, so that '
            "scancel and the time limit reach it"
        )


def mistakes_in_shell(script: str) -> Iterable[str]:
    """What bash finds wrong with a script, without running it.

    Raises:
        MissingDependencyError: there is no bash here.
    """
    try:
        done = subprocess.run(
            ["bash", "-n"],
            input=script.encode("utf-8", "surrogateescape"),
            capture_output=True,
            timeout=_BASH_TIMEOUT_S,
        )
    except FileNotFoundError:
        raise MissingDependencyError("templates are checked by bash, and there is none") from None
    except subprocess.TimeoutExpired:
        yield f"bash has not read it within {_BASH_TIMEOUT_S:g} s"
        return
    lines = script.split("\n")
    for told in done.stderr.decode(errors="replace").splitlines():
        match = re.fullmatch(r"bash: line (\d+): (.*)", told)
        if match and not match[2].startswith("`"):  # which quotes the line itself
            text = "".join(lines[int(match[1]) - 1 : int(match[1])])
            yield (
                f"bash: {match[2]}, in the script's line {text!r}" if text else f"bash: {match[2]}"
            )
        elif not match:
            yield told


def directives(script: str) -> dict[int, str]:
    """The ``#SBATCH`` lines as sbatch finds them, up to the first command, by their numbers."""
    found = {}
    for number, line in enumerate(script.split("\n"), 1):
        if line.startswith(_DIRECTIVE):
            found[number] = line
        elif line.strip() and not line.startswith("#"):
            break
    return found
