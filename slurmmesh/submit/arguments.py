"""The command line of submit: sbatch's spellings, then SCRIPT or -m MODULE and its arguments."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slurmmesh.errors import UsageError
from slurmmesh.slurm.container.image import RUNTIMES
from slurmmesh.slurm.options import OPTIONS
from slurmmesh.submit.door import Parser

PROGRAM = "python -m slurmmesh.submit"
# Options of ours that a job has, by their fields in SlurmJob, with what argparse needs to know.
_OF_JOB: dict[str, dict[str, Any]] = {
    "spares": {"type": int, "metavar": "K", "help": "further nodes, held in reserve (0)"},
    "template": {"metavar": "NAME|FILE", "help": "`slurmmesh templates list` names them (default)"},
    "setup": {
        "action": "append",
        "metavar": "LINE",
        "help": "a line of shell before the program, such as 'module load rocm'; repeatable",
    },
    "env": {
        "action": "append",
        "metavar": "NAME[=VALUE]",
        "help": "a variable for the program, from here if without a value; repeatable",
    },
    "container": {"metavar": "IMAGE", "help": "run in a container"},
    "container_runtime": {"choices": RUNTIMES, "help": "by which (apptainer)"},
    "interface": {"metavar": "NAME|NETWORK", "help": "the network between the nodes"},
    "sbatch": {
        "action": "append",
        "metavar": "OPTION",
        "help": "any other option of sbatch, such as --sbatch=--gpu-bind=closest; repeatable",
    },
}
_OF_COMMAND: dict[str, dict[str, Any]] = {
    "cluster": {
        "choices": ["auto", "slurm", "local"],
        "help": "auto: Slurm where it answers, else this machine",
    },
    "config": {"metavar": "FILE", "help": "a file of settings, over all others"},
    "profile": {"metavar": "NAME", "help": "a profile of the settings"},
    "dry_run": {"action": "store_true", "help": "print the batch script, submit nothing"},
    "test_only": {"action": "store_true", "help": "ask Slurm when it would start, submit nothing"},
    "parsable": {"action": "store_true", "help": "print the bare job id only"},
    "json": {"action": "store_true", "help": "print what was submitted as JSON"},
    "wait": {"action": "store_true", "help": "wait for the end; exit with the job's result"},
    "follow": {"action": "store_true", "help": "show the output and a live view until the end"},
}
# What each component of a heterogeneous job may say for itself.
_OF_COMPONENT = {*(o.field for o in OPTIONS.values() if not o.of_job), "sbatch"}
_FLAGS = {name for name, how in _OF_COMMAND.items() if how.get("action") == "store_true"}
_SHORT = {f"-{option.short}": option for option in OPTIONS.values() if option.short}


@dataclass(frozen=True)
class Request:
    """What the command line asks for, not yet checked against settings and the machine.

    Attributes:
        options: fields of ``SlurmJob`` that were given, for the hosts and the whole job.
        controller: those given for the controller's component of a heterogeneous job, or None.
        command: what was given for submit itself: ``cluster``, ``wait`` and the like.
        config, profile: which settings to take.
    """

    program: tuple[str, ...]
    args: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    controller: Mapping[str, Any] | None = None
    command: Mapping[str, Any] = field(default_factory=dict)
    config: str | None = None
    profile: str | None = None


def parse(argv: Sequence[str]) -> Request:
    """Read a command line.

    Raises:
        UsageError: it makes no sense.
        SystemExit: it asked for help, which has been printed.
    """
    groups, program, args = _split(argv)
    if not program:
        _parse_group(groups[-1])  # it may ask for help, or have a mistake worth telling first
        raise UsageError(f"what shall run? Give a SCRIPT, or -m MODULE; {PROGRAM} --help tells all")
    if len(groups) > 2:
        raise UsageError("give the controller's options, one ':', then the hosts' and the job's")
    own = _parse_group(groups[-1])
    command = {name: own.pop(name) for name in _OF_COMMAND if name in own}
    controller = _parse_group(groups[0]) if len(groups) == 2 else None
    for name in (controller or {}).keys() - _OF_COMPONENT:
        raise UsageError(f"--{_dashed(name)} is said of the whole job: put it after the ':'")
    outputs = [name for name in ("dry_run", "test_only", "parsable", "json") if command.get(name)]
    if len(outputs) > 1:
        first, second, *_ = (f"--{_dashed(name)}" for name in outputs)
        raise UsageError(f"{first} and {second} do not go together")
    sources = {name: command.pop(name, None) for name in ("config", "profile")}
    return Request(program, args, own, controller, command, **sources)


def _split(
    argv: Sequence[str],
) -> tuple[list[list[str]], tuple[str, ...], tuple[str, ...]]:
    """Our options in their groups (each as ``--name=value``), the program, and its arguments.

    Done here because argparse takes a value that begins with a dash for an option.
    """
    groups: list[list[str]] = [[]]
    words = list(argv)
    while words:
        word = words.pop(0)
        if word == "--":
            break
        if word == ":":
            groups.append([])
        elif word == "-m":
            if not words:
                raise UsageError("-m needs the name of a module")
            return groups, ("-m", words.pop(0)), _program_arguments(words)
        elif not word.startswith("-") or word == "-":
            words.insert(0, word)
            break
        else:
            groups[-1].append(_in_one_word(word, words))
    if not words:
        return groups, (), ()
    return groups, (words[0],), _program_arguments(words[1:])


def _in_one_word(word: str, words: list[str]) -> str:
    """One option of ours as one word; takes its value from ``words`` if it stands there."""
    if option := _SHORT.get(word[:2]):
        if len(word) > 2:
            return f"--{option.name}={word[2:].removeprefix('=')}"
        word = f"--{option.name}"
    if word == "-W":
        return "--wait"
    if not _needs_value(word):
        return word
    if not words:
        raise UsageError(f"{word} needs a value")
    return f"{word}={words.pop(0)}"


def _needs_value(word: str) -> bool:
    """Whether an option without ``=`` must be followed by its value."""
    name = word.removeprefix("--").replace("-", "_")
    if option := OPTIONS.get(name):
        return bool(option.metavar) and not option.value_optional
    return name in _OF_JOB or (name in _OF_COMMAND and name not in _FLAGS)


def _program_arguments(words: Sequence[str]) -> tuple[str, ...]:
    """The program's own arguments: all after it, without the ``--`` that may set them off."""
    if words and words[0] == "--":
        return tuple(words[1:])
    for word in words:
        name = word.partition("=")[0].removeprefix("--").replace("-", "_")
        ours = name in OPTIONS or name in _OF_JOB or name in _OF_COMMAND or name == "no_requeue"
        if word.startswith("--") and ours:
            raise UsageError(
                f"{word} stands after the program: put it before, or put -- between the program "
                "and its arguments if it is meant for the program"
            )
    return tuple(words)


def _parse_group(words: Sequence[str]) -> dict[str, Any]:
    """The options given, by their fields."""
    given = vars(_parser().parse_args(list(words)))
    if "env" in given:
        given["env"] = dict(_variable(text) for text in given["env"])
    return given


def _variable(text: str) -> tuple[str, str | None]:
    """``NAME=VALUE``, or ``NAME`` alone for the value it has here."""
    name, equals, value = text.partition("=")
    return name, value if equals else None


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _parser() -> Parser:
    parser = Parser(
        prog=PROGRAM,
        usage=f"{PROGRAM} [OPTIONS] SCRIPT | -m MODULE [-- ARGS...]\n"
        f"       {PROGRAM} CONTROLLER'S OPTIONS : OPTIONS SCRIPT ...",
        description="Runs a program on nodes of a Slurm cluster, or on this machine.",
        epilog="Exit codes: docs/exit-codes.md. Defaults: docs/settings.md, `slurmmesh config`.",
        argument_default=argparse.SUPPRESS,
    )
    slurm = parser.add_argument_group("options of sbatch")
    for option in OPTIONS.values():
        names = [f"-{option.short}"] if option.short else []
        kind: dict[str, Any] = {"metavar": option.metavar}
        if not option.metavar:
            kind = {"action": "store_true"}
        elif option.value_optional:
            kind |= {"nargs": "?", "const": True}
        slurm.add_argument(*names, f"--{option.name}", dest=option.field, help=option.help, **kind)
    slurm.add_argument(
        "--no-requeue", dest="requeue", action="store_false", help="never start it again (so it is)"
    )
    ours = parser.add_argument_group("options of slurmmesh")
    for name, how in {**_OF_JOB, **_OF_COMMAND}.items():
        short = ["-W"] if name == "wait" else []
        ours.add_argument(*short, f"--{_dashed(name)}", dest=name, **how)
    return parser
