"""A job as plain data, checked when it is made; its methods hand it to Slurm and ask about it."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from slurmmesh import folders
from slurmmesh.config import is_variable, load_settings
from slurmmesh.config.networks import network_items
from slurmmesh.errors import UsageError
from slurmmesh.slurm.container import image
from slurmmesh.slurm.hostlists import expand
from slurmmesh.slurm.options import MOST_NODES, OPTIONS, Option, gpus_of, node_range
from slurmmesh.slurm.passthrough import directive_of
from slurmmesh.slurm.quoting import (
    directive_value,
    has_control_characters,
    without_control_characters,
)

if TYPE_CHECKING:
    from slurmmesh.slurm.client import JobRef, SlurmClient
    from slurmmesh.slurm.outcome import Outcome
    from slurmmesh.slurm.status import JobStatus

_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
# Slurm's own, and those that tell the controller what job it is in.
_OWN_VARIABLES = (
    *("SLURM_", "SLURMMESH_JOB_", "SLURMMESH_CLUSTER", "SLURMMESH_NODES", "SLURMMESH_SPARES"),
    *("SLURMMESH_GPUS_PER_NODE", "sm_"),
)
# bash lets nobody set these.
_READ_ONLY = frozenset({"BASHOPTS", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID"})
# Fields that other values are put into as well, for the sake of those who type them.
_Value: TypeAlias = "str | int | None"


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What is asked of Slurm for one component of a job: options of sbatch by their long names.

    Values are as sbatch takes them; numbers may be given as numbers. ``sbatch`` holds further
    options, each in one string (``--gpu-bind=closest``).

    Raises:
        UsageError: a value that cannot be.
    """

    nodes: _Value = None
    ntasks: _Value = None
    cpus_per_task: _Value = None
    gpus_per_node: _Value = None
    gres: _Value = None
    mem: _Value = None
    mem_per_gpu: _Value = None
    time: _Value = None
    partition: _Value = None
    account: _Value = None
    qos: _Value = None
    constraint: _Value = None
    nodelist: _Value = None
    exclude: _Value = None
    exclusive: str | bool | None = None
    reservation: _Value = None
    switches: _Value = None
    network: _Value = None
    licenses: _Value = None
    sbatch: Sequence[str] = ()

    def __post_init__(self) -> None:
        for option in OPTIONS.values():
            if option.field in self.__dataclass_fields__ and option.field != "chdir":
                self._set(option.field, _checked(option, getattr(self, option.field)))
        self._set("sbatch", _words("sbatch", self.sbatch))
        for text in self.sbatch:
            directive_of(text)

    def _set(self, name: str, value: object) -> None:
        """Only while it is being made."""
        object.__setattr__(self, name, value)

    @property
    def gpu_count(self) -> int:
        """GPUs of each node, 0 for none."""
        return gpus_of(str(self.gpus_per_node or ""), str(self.gres or ""))


@dataclass(frozen=True)
class SlurmJob(Resources):
    """One program on an allocation of nodes.

    Its fields are the options of ``python -m slurmmesh.submit``, with the same names and checks::

        job = SlurmJob("train.py", args=["--lr", "3e-4"], nodes=16, gpus_per_node=8).submit()
        job.wait()

    It is never changed: ``submit()`` returns a copy that knows its ``id``.

    Attributes:
        program: ``train.py``, or ``("-m", "package.module")``.
        args: the program's own arguments, any text.
        spares: nodes beyond ``nodes`` that are allocated and wait.
        controller: makes the job a heterogeneous one: the controller gets a component with these
            resources, the hosts get the job's own.
        template: one of those that come with slurmmesh, or a file.
        setup: lines of shell that run before the program, such as ``module load rocm``.
        env: variables for the program; a value of None is taken from the environment here.
        container: an image to run in, by ``container_runtime``.
        interface: the network between the nodes, see ``docs/network.md``.
        job_root, chdir, python: absolute; the folder of the job folders, where the program runs,
            and its interpreter.
        id, cluster: of a submitted job.

    Raises:
        UsageError: a value that cannot be.
    """

    program: str | Sequence[str]
    _: KW_ONLY
    args: Sequence[str] = ()
    spares: int = 0
    controller: Resources | None = None

    job_name: _Value = None
    output: _Value = None
    error: _Value = None
    chdir: str | Path = field(default_factory=os.getcwd)
    array: _Value = None
    dependency: _Value = None
    begin: _Value = None
    signal: _Value = None
    requeue: bool = False
    comment: _Value = None
    mail_type: _Value = None
    mail_user: _Value = None
    clusters: _Value = None

    template: str = "default"
    setup: Sequence[str] = ()
    env: Mapping[str, str | None] = field(default_factory=dict, repr=False)
    container: str = ""
    container_runtime: image.Runtime | Literal[""] = ""
    interface: str = field(default_factory=lambda: load_settings().interface)
    job_root: str | Path = field(default_factory=lambda: load_settings().job_root)
    python: str = field(default_factory=lambda: sys.executable)

    id: str = ""
    cluster: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_kinds()
        program = self.program
        if isinstance(program, (str, os.PathLike)):
            program = (os.fsdecode(program),)
        program = _words("program", program)
        self._set("program", program)
        self._set("args", _words("args", self.args))
        self._set("setup", _words("setup", self.setup))
        self._set("job_name", self.job_name or _program_name(program))
        directive_value(self.job_name, "--job-name")
        _check_program(program, self.args)
        self._check_nodes()
        self._check_environment()
        self._check_container()
        try:
            network_items(self.interface)
        except ValueError as error:
            raise UsageError(f"--interface {self.interface!r} {error}") from None
        for name in ("job_root", "chdir", "python"):
            path = getattr(self, name)
            if not os.path.isabs(path) or "\0" in path:
                raise UsageError(f"{name} {path!r} must be an absolute path")

    def _check_kinds(self) -> None:
        """Refuse what is no value of a field at all; files may be given as paths."""
        for name in ("template", "container", "job_root", "chdir", "python"):
            if isinstance(path := getattr(self, name), os.PathLike):
                self._set(name, os.fsdecode(path))
        for name, (kind, words) in _KINDS.items():
            value = getattr(self, name)
            if not isinstance(value, kind) or isinstance(value, bool):
                raise UsageError(f"{name}: {value!r} is no {words}")
        if not all(isinstance(name, str) for name in self.env):
            raise UsageError("env: names of variables are text")

    def _check_nodes(self) -> None:
        if self.spares < 0:
            raise UsageError(f"--spares {self.spares}: give 0 or more")
        if self.nodes is None and self.spares and (self.ntasks or self.nodelist):
            raise UsageError("--spares needs --nodes, so that the two can be told apart")
        if (most := self.node_range[1]) > MOST_NODES:
            raise UsageError(f"--nodes and --spares: {most} nodes; {MOST_NODES} are the most")
        named = str(self.nodelist or "")
        if self.nodes and "/" not in named and len(set(expand(named))) > most:
            raise UsageError(
                f"--nodelist {named} names more nodes than --nodes and --spares ask for ({most})"
            )
        if self.controller is not None:
            if str(self.controller.nodes or 1) != "1":
                raise UsageError("the controller's component has one node: leave out its --nodes")
            if self.array:
                raise UsageError("--array: Slurm has no arrays of heterogeneous jobs")

    def _check_environment(self) -> None:
        for line in self.setup:
            if has_control_characters(line.replace("\t", " ")):
                raise UsageError(f"--setup {line!r}: give one line of shell; repeat it for more")
            if (len(line) - len(line.rstrip("\\"))) % 2:
                raise UsageError(f"--setup {line!r}: its last backslash would join the next line")
        env = {}
        for name, value in self.env.items():
            if not is_variable(name):
                raise UsageError(f"--env {name!r} is no name of a variable")
            if name.startswith(_OWN_VARIABLES):
                raise UsageError(f"--env {name}: slurmmesh and Slurm set it themselves")
            if name in _READ_ONLY:
                raise UsageError(f"--env {name}: bash sets it itself")
            found = os.environ.get(name) if value is None else str(value)
            if found is None:
                raise UsageError(f"--env {name}: it is not set here; give --env {name}=VALUE")
            if "\0" in found:
                raise UsageError(f"--env {name}: a value cannot hold a NUL character")
            env[name] = found
        self._set("env", env)

    def _check_container(self) -> None:
        if self.container_runtime not in ("", *image.RUNTIMES):
            known = " or ".join(image.RUNTIMES)
            raise UsageError(f"--container-runtime {self.container_runtime!r}: give {known}")
        if self.container_runtime and not self.container:
            raise UsageError("--container-runtime needs --container IMAGE")
        if self.container:
            self._set("container_runtime", self.container_runtime or "apptainer")
            image.check(self)

    @property
    def node_range(self) -> tuple[int, int]:
        """What is asked of Slurm for hosts and spares: the least and the most."""
        least, most = node_range(str(self.nodes or 1))
        return least + self.spares, most + self.spares

    @property
    def node_count(self) -> int | None:
        """Hosts without spares; None where Slurm decides (a range, tasks, named nodes)."""
        least, most = node_range(str(self.nodes or 1))
        open_ended = self.nodes is None and (self.ntasks is not None or self.nodelist is not None)
        return least if least == most and not open_ended else None

    @property
    def argv(self) -> tuple[str, ...]:
        """What the controller runs: the program and its arguments."""
        return (*self.program, *self.args)

    def script(self) -> str:
        """The batch script. Raises UsageError for a template or a folder that cannot be."""
        from slurmmesh.slurm.template import render

        return render(self)

    def submit(self) -> SlurmJob:
        """Put it in Slurm's queue; returns a copy that has its ``id``.

        Raises:
            SubmitError: Slurm is down, refused it, or could never start it.
            MissingDependencyError: Slurm is not installed.
            UsageError: a program that is not there, a template or folder that cannot be.
            SetupError: the disk of the job root is full.
        """
        from slurmmesh.slurm import program, submission

        program.check_program(self)
        return submission.submit(self, _client(), _warn)

    @classmethod
    def load(cls, job_id: str) -> SlurmJob:
        """A job that was submitted earlier, by its id; without the values of its ``env``.

        Raises:
            UsageError: no such job is in the job root or in the user's index.
        """
        from slurmmesh.slurm import submission

        return submission.load(job_id, load_settings().job_root)

    @property
    def folder(self) -> Path:
        """Its job folder. Raises UsageError before it is submitted."""
        if not self.id:
            raise UsageError(
                "this job is not submitted: submit() returns the one that is, so write "
                "job = job.submit()"
            )
        return folders.job_folder(Path(self.job_root), self.id)

    def status(self) -> JobStatus:
        """How it is. Raises SubmitError if Slurm does not answer, and as ``folder`` does."""
        from slurmmesh.slurm import status

        return status.ask(_client(), self._ref(), self.folder)

    def logs(self, tail: int | None = None) -> str:
        """What it has written: the controller's log, then each host's, under their names.

        Of an array those of all its tasks.

        Args:
            tail: only so many of the last lines of each.
        """
        from slurmmesh.slurm.status import tasks_with_folders

        tasks = [self.folder.with_name(name) for name in tasks_with_folders(self.folder)]
        texts = []
        for folder in tasks or [self.folder]:
            attempt = folders.latest_attempt(folder)
            paths = [*sorted(attempt.glob("controller.*")), *sorted(attempt.glob("logs/*.log"))]
            for path in paths:
                name = f"{folder.name}/{path.name}" if tasks else path.name
                texts.append(f"==> {name} <==\n{_text_of(folders.files_of(path), tail)}")
        return "\n".join(texts)

    def wait(self, timeout_s: float | None = None) -> Outcome | None:
        """Wait for its end; returns how it ended, or None if that has not come in time.

        Raises:
            SubmitError: it can never start; it has been cancelled.
        """
        from slurmmesh.slurm import watch

        return watch.wait(watch.JobWatch(_client(), self, lambda line: None), timeout_s)

    def cancel(self) -> None:
        """End it, whether it waits or runs. One that has ended is no error.

        Raises:
            SubmitError: Slurm does not answer.
        """
        _client().cancel(self._ref())

    def _ref(self) -> JobRef:
        from slurmmesh.slurm.client import JobRef

        return JobRef(self.folder.name, self.cluster)


_KINDS: dict[str, tuple[Any, str]] = {
    **dict.fromkeys(("template", "container", "container_runtime", "interface"), (str, "text")),
    **dict.fromkeys(("job_root", "chdir", "python"), (str, "path")),
    "spares": (int, "number"),
    "env": (Mapping, "mapping of names to values"),
    "controller": ((Resources, type(None)), "Resources"),
}


def _client() -> SlurmClient:
    from slurmmesh.slurm.client import SlurmClient

    return SlurmClient(load_settings())


def _warn(line: str) -> None:
    warnings.warn(f"slurmmesh: {line}", stacklevel=4)


def _text_of(files: Sequence[Path], tail: int | None) -> str:
    """The text of a log that may have been put into several files, or its last lines."""
    lines: list[str] = []
    for path in reversed(files):
        if tail is not None and len(lines) >= tail:
            break
        try:
            lines[:0] = path.read_text(errors="replace").splitlines(keepends=True)
        except OSError as error:
            return f"({error.strerror})\n"
    return "".join(lines if tail is None else lines[len(lines) - min(tail, len(lines)) :])


def _checked(option: Option, value: object) -> str | bool | None:
    """A field's value as text. None stands for "not given"."""
    if value is None or (isinstance(value, bool) and (option.value_optional or not option.metavar)):
        if not option.metavar:
            return bool(value)
        return True if value else None
    if not option.metavar:
        raise UsageError(f"{option.field}: {value!r} is neither True nor False")
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise UsageError(f"{option.field}: {value!r} is neither text nor a number")
    text = str(value)
    directive_value(text, f"--{option.name}")
    if option.field == "gpus_per_node" and text == "0":
        return None
    option.check(text)
    return text


def _words(name: str, words: object) -> tuple[str, ...]:
    if isinstance(words, (str, bytes)) or not isinstance(words, Sequence):
        raise UsageError(f"{name}: give a list of strings")
    if not all(isinstance(word, str) for word in words):
        raise UsageError(f"{name}: give a list of strings")
    return tuple(words)


def _check_program(program: tuple[str, ...], args: Sequence[str]) -> None:
    match program:
        case ("-m", module):
            if not _MODULE.fullmatch(module):
                raise UsageError(f"-m {module!r} is no module's name")
        case (script,):
            if not script or script.startswith("-"):
                raise UsageError(f"{script!r} is no script")
        case _:
            raise UsageError("give a SCRIPT, or -m MODULE")
    if any("\0" in word for word in (*program, *args)):
        raise UsageError("an argument of a program cannot hold a NUL character")


def _program_name(program: tuple[str, ...]) -> str:
    if not program:
        return ""
    name = program[-1].rstrip("/").rpartition("/")[2]
    return without_control_characters(name, "_")
