"""The command line of submit: sbatch's spellings, then SCRIPT or -m MODULE and its arguments."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from slurmmesh.errors import UsageError
from slurmmesh.slurm.job import SlurmJob

PROGRAM = "python -m slurmmesh.submit"
# Long name of each option that takes a value, by every spelling of it.
_WITH_VALUE = {
    "-N": "--nodes",
    "--nodes": "--nodes",
    "--gpus-per-node": "--gpus-per-node",
    "-c": "--cpus-per-task",
    "--cpus-per-task": "--cpus-per-task",
    "-t": "--time",
    "--time": "--time",
    "-p": "--partition",
    "--partition": "--partition",
    "-J": "--job-name",
    "--job-name": "--job-name",
    "--spares": "--spares",
    "--sbatch": "--sbatch",
    "--cluster": "--cluster",
}
_FLAGS = {"--dry-run", "--parsable", "--wait", "-W", "--follow", "--help", "-h"}


@dataclass(frozen=True)
class Request:
    """What the command line asks for, not yet checked against the machine."""

    program: tuple[str, ...]
    args: tuple[str, ...]
    name: str
    nodes: int
    spares: int
    gpus_per_node: str
    cpus_per_task: int | None
    time: str | None
    partition: str | None
    sbatch: tuple[str, ...]
    cluster: str
    dry_run: bool
    parsable: bool
    wait: bool
    follow: bool

    def job(self, job_root: Path, cwd: Path) -> SlurmJob:
        """As a job. Raises UsageError for a value that cannot be."""
        return SlurmJob(
            program=self.program,
            args=self.args,
            job_root=job_root,
            cwd=cwd,
            name=self.name,
            nodes=self.nodes,
            spares=self.spares,
            gpus_per_node=self.gpus_per_node,
            cpus_per_task=self.cpus_per_task,
            time=self.time,
            partition=self.partition,
            sbatch=self.sbatch,
        )

    @property
    def only_for_slurm(self) -> tuple[str, ...]:
        """The options given that change nothing for a job on this machine."""
        given = {
            "--cpus-per-task": self.cpus_per_task is not None,
            "--time": self.time is not None,
            "--partition": self.partition is not None,
            "--job-name": bool(self.name),
            "--sbatch": bool(self.sbatch),
        }
        return tuple(name for name, is_given in given.items() if is_given)


def parse(argv: Sequence[str]) -> Request:
    """Read a command line.

    Raises:
        UsageError: it makes no sense.
        SystemExit: it asked for help, which has been printed.
    """
    own, program, args = _split(argv)
    options = _parser().parse_args(own)
    if not program:
        raise UsageError(f"what shall run? Give a SCRIPT, or -m MODULE; {PROGRAM} --help tells all")
    return Request(
        program=program,
        args=args,
        name=options.job_name,
        nodes=options.nodes,
        spares=options.spares,
        gpus_per_node="" if options.gpus_per_node == "0" else options.gpus_per_node,
        cpus_per_task=options.cpus_per_task,
        time=options.time,
        partition=options.partition,
        sbatch=tuple(options.sbatch),
        cluster=options.cluster,
        dry_run=options.dry_run,
        parsable=options.parsable,
        wait=options.wait,
        follow=options.follow,
    )


def _split(argv: Sequence[str]) -> tuple[list[str], tuple[str, ...], tuple[str, ...]]:
    """Our options (each as ``--name=value``), the program, and its arguments.

    Done here because argparse takes a value that begins with a dash for an option.
    """
    own: list[str] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        if word == "--":
            break
        if word == "-m":
            if not words:
                raise UsageError("-m needs the name of a module")
            return own, ("-m", words.pop(0)), _program_arguments(words)
        if not word.startswith("-") or word == "-":
            words.insert(0, word)
            break
        own.append(_with_value(word, words))
    if not words:
        return own, (), ()
    return own, (words[0],), _program_arguments(words[1:])


def _with_value(word: str, words: list[str]) -> str:
    """One option of ours as one word; takes its value from ``words`` if it stands there."""
    if word in _WITH_VALUE:
        if not words:
            raise UsageError(f"{word} needs a value")
        return f"{_WITH_VALUE[word]}={words.pop(0)}"
    if not word.startswith("--") and word[:2] in _WITH_VALUE:
        return f"{_WITH_VALUE[word[:2]]}={word[2:].removeprefix('=')}"
    return word


def _program_arguments(words: Sequence[str]) -> tuple[str, ...]:
    """The program's own arguments: all after it, without the ``--`` that may set them off."""
    if words and words[0] == "--":
        return tuple(words[1:])
    for word in words:
        if word.partition("=")[0] in _WITH_VALUE.keys() | _FLAGS and word.startswith("--"):
            raise UsageError(
                f"{word} stands after the program: put it before, or put -- between the program "
                "and its arguments if it is meant for the program"
            )
    return tuple(words)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; {PROGRAM} --help tells all")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=PROGRAM,
        usage=f"{PROGRAM} [OPTIONS] SCRIPT | -m MODULE [-- ARGS...]",
        description="Runs a program on nodes of a Slurm cluster, or on this machine.",
        epilog="Exit codes: docs/exit-codes.md. Settings: SLURMMESH_JOB_ROOT, the folder of the "
        "job folders (./slurmmesh-jobs).",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-N", "--nodes", type=int, default=1, help="hosts of the program (1)")
    add("--spares", type=int, default=0, metavar="K", help="further nodes, held in reserve (0)")
    add("--gpus-per-node", default="", metavar="[TYPE:]N", help="GPUs of each node")
    add("-c", "--cpus-per-task", type=int, metavar="N", help="CPUs of each host")
    add("-t", "--time", help="time limit, as sbatch takes it: 2-12, 1:30:00, 30")
    add("-p", "--partition")
    add("-J", "--job-name", default="", metavar="NAME", help="the program's name unless given")
    add(
        "--sbatch",
        action="append",
        default=[],
        metavar="OPTION",
        help="any other option of sbatch, such as --sbatch=--account=me; repeatable",
    )
    add(
        "--cluster",
        choices=["auto", "slurm", "local"],
        default="auto",
        help="auto: Slurm where it answers, else this machine",
    )
    add("--dry-run", action="store_true", help="print the batch script, submit nothing")
    add("--parsable", action="store_true", help="print the bare job id only")
    add("-W", "--wait", action="store_true", help="wait for the end; exit with the job's result")
    add("--follow", action="store_true", help="show the output and a live view until the end")
    return parser
