"""The ids of jobs, in every form that Slurm prints or takes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from slurmmesh.errors import UsageError

# 123, 123_4, 123_[1-3,7%2], 123+1, each with or without a step (.0, .batch, .0+1) behind it.
_ID = re.compile(
    r"0*([1-9]\d{0,9})"
    r"(?:_(?P<task>\d{1,10})|_\[(?P<tasks>[^\]%]*)(?:%\d+)?\]|\+(?P<component>\d{1,10}))?"
    r"(?:\.[\w+]+)?",
    re.ASCII,
)
_TASKS = re.compile(r"(\d{1,10})(?:-(\d{1,10})(?::(\d{1,10}))?)?", re.ASCII)
_CLUSTER = re.compile(r"[^\s;,:]+")
# A federation puts the number of the cluster that took a job above the 26 bits of its own number.
_FIRST_FEDERATED = 1 << 26
# Slurm's own limit of array indexes.
_MOST_TASKS = 4_000_001


@dataclass(frozen=True)
class JobRef:
    """A job and, in a federation or with several clusters, the cluster that has it.

    Attributes:
        id: as later commands take it: ``123``, ``123_4`` (a task of an array), ``123_[1-3]``
            (several), ``123+1`` (a component of a heterogeneous job).
        cluster: empty for the one that is asked by default.
    """

    id: str
    cluster: str = ""

    @classmethod
    def parse(cls, text: str) -> JobRef:
        """A job as a user or Slurm writes it: any of the above, or ``123;cluster``.

        A step (``123.batch``) stands for its job; how many tasks of an array may run at once
        (``123_[1-9%2]``) is left out.

        Raises:
            UsageError: no job's id, or a list of tasks that squeue has cut short.
        """
        job, semicolon, cluster = text.strip().partition(";")
        match = _ID.fullmatch(job)
        if not match or (semicolon and not _CLUSTER.fullmatch(cluster)):
            raise UsageError(
                f"{text!r} is no job id: give one such as 123, 123_4 (task of an array), "
                "123+1 (component of a heterogeneous job), or 123;cluster"
            )
        number, task, tasks, component = match.groups()
        if task is not None:
            return cls(f"{number}_{int(task)}", cluster)
        if component is not None:
            return cls(f"{number}+{int(component)}", cluster)
        if tasks is not None:
            indexes = parse_tasks(tasks)
            if ":" in tasks:  # which no later command takes
                tasks = ",".join(map(str, indexes))
            return cls(f"{number}_[{tasks}]", cluster)
        return cls(number, cluster)

    def __str__(self) -> str:
        return f"{self.id};{self.cluster}" if self.cluster else self.id

    @property
    def options(self) -> list[str]:
        """What later commands need to find the job."""
        return ["-M", self.cluster] if self.cluster else []

    @property
    def number(self) -> str:
        """The id of the whole: of the array, of a heterogeneous job's leader, or of the job."""
        return re.split(r"[_+]", self.id, maxsplit=1)[0]

    @property
    def is_federated(self) -> bool:
        """Whether a federation gave the number: any of its clusters may run the job."""
        return self.number.isdecimal() and int(self.number) >= _FIRST_FEDERATED

    @property
    def tasks(self) -> tuple[int, ...] | None:
        """The tasks of an array that are meant; None for anything else, whole arrays included."""
        _, underscore, tasks = self.id.partition("_")
        return parse_tasks(tasks.strip("[]")) if underscore else None

    @property
    def component(self) -> int | None:
        """Which part of a heterogeneous job is meant; None for anything else."""
        _, plus, component = self.id.partition("+")
        return int(component) if plus else None

    @property
    def asked(self) -> str:
        """What squeue and sacct are asked for to hear of this job, and maybe of more."""
        return self.number if "[" in self.id or "+" in self.id else self.id

    @property
    def folder(self) -> str:
        """The name of its job folder: tasks of an array have their own, components share one."""
        return self.asked

    def covers(self, other: JobRef) -> bool:
        """Whether ``other`` is this job or a part of it: a task, a component."""
        if (self.number, self.cluster) != (other.number, other.cluster):
            return False
        if self.id == self.number or self.id == other.id:
            return True
        mine, others = self.tasks, other.tasks
        return mine is not None and others is not None and set(others) <= set(mine)


def parse_tasks(text: str) -> tuple[int, ...]:
    """The array indexes of ``1-3,7``, ``0-15:4``.

    Raises:
        UsageError: it is no such list.
    """
    if text.endswith("..."):
        raise UsageError(
            f"the list of array tasks {text!r} was cut short: give the array's id for all of its "
            "tasks, or name the tasks"
        )
    tasks: list[int] = []
    for item in text.split(","):
        match = _TASKS.fullmatch(item)
        first, last, step = (int(part or 0) for part in match.groups()) if match else (0, 0, 0)
        indexes = range(first, (last if match and match[2] else first) + 1, step or 1)
        if not match or not indexes or (match[3] and not step):
            raise UsageError(f"{text!r} is no list of array tasks such as 1-3,7 or 0-15:4")
        if len(tasks) + len(indexes) > _MOST_TASKS:
            raise UsageError(f"{text!r} names more than {_MOST_TASKS} array tasks")
        tasks += indexes
    return tuple(tasks)
