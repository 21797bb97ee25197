"""What squeue, sacct, sinfo and scontrol answer in text, as plain data."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping

from slurmmesh.errors import UsageError
from slurmmesh.slurm import marked
from slurmmesh.slurm.ids import JobRef, parse_tasks
from slurmmesh.slurm.jobinfo import JobInfo, by_ref, exit_status
from slurmmesh.slurm.states import parse_state
from slurmmesh.slurm.times import parse_moment, parse_time

SQUEUE_COLUMNS = (
    "JobID", "ArrayJobID", "ArrayTaskID", "HetJobID", "HetJobOffset", "State", "Reason",
    "NodeList", "exit_code", "RestartCnt", "BatchHost", "UserName", "Account", "Partition", "QOS",
    "NumNodes", "TimeUsed", "TimeLimit", "SubmitTime", "StartTime", "EndTime", "WorkDir",
    "STDOUT", "Requeue", "Cluster", "Name",
)  # fmt: skip
SACCT_COLUMNS = (
    "JobID", "JobIDRaw", "State", "ExitCode", "Reason", "NodeList", "User", "Account",
    "Partition", "QOS", "NNodes", "ElapsedRaw", "TimelimitRaw", "Submit", "Start", "End",
    "WorkDir", "Cluster", "JobName",
)  # fmt: skip
STEP_COLUMNS = ("JobID", "StepID")
_NOTHING = frozenset({"", "N/A", "n/a", "(null)", "None assigned", "Unknown", "NONE"})


def parse_squeue(text: str, mark: str, cluster: str = "") -> dict[JobRef, JobInfo] | None:
    """The jobs of a table of ``SQUEUE_COLUMNS``; None if that is not what squeue printed."""
    table = marked.rows(text, SQUEUE_COLUMNS, mark)
    if table is None:
        return None
    return by_ref(
        (ref, _squeue_info(row))
        for row in table
        if row["JobID"].isdecimal()  # else the header of a further cluster
        for ref in _squeue_refs(row, cluster)
    )


def parse_steps(text: str, mark: str, job: str) -> frozenset[str] | None:
    """The steps of a job in a table of ``STEP_COLUMNS``, as ``12.3``; None if it is no such table.

    The name of a step tells the task of an array (``11_2.3``), and others' steps may be there too:
    the last task of an array goes by the array's number.
    """
    table = marked.rows(text, STEP_COLUMNS, mark)
    if table is None:
        return None
    steps = (row["StepID"].rpartition(".")[2] for row in table if row["JobID"] == job)
    return frozenset(f"{job}.{step}" for step in steps)


def parse_sacct(text: str, mark: str, cluster: str = "") -> dict[JobRef, JobInfo]:
    """The jobs of a table of ``SACCT_COLUMNS`` that have ended.

    What the database takes for running although squeue does not know it was lost, not left out.
    """
    jobs: dict[JobRef, JobInfo] = {}
    for row in marked.rows(text, SACCT_COLUMNS, mark) or ():
        info = _sacct_info(row)
        if info.state.is_over:
            with contextlib.suppress(UsageError):
                jobs.update((ref, info) for ref in refs_of(row["JobID"], cluster))
    return jobs


def refs_of(text: str, cluster: str) -> Iterator[JobRef]:
    """The jobs of an id, each task of ``123_[1-3]`` by itself. Raises UsageError."""
    ref = JobRef.parse(text)
    if "[" not in ref.id:
        yield JobRef(ref.id, cluster)
        return
    for task in ref.tasks or ():
        yield JobRef(f"{ref.number}_{task}", cluster)


def parse_partition_sizes(stdout: str) -> dict[str, int]:
    """``main*|4`` to ``{"main": 4, "": 4}``; of several clusters the largest counts."""
    sizes: dict[str, int] = {}
    for line in stdout.splitlines():
        name, bar, count = line.strip().partition("|")
        if bar and count.isdecimal():
            for key in {name.removesuffix("*"), "" if name.endswith("*") else name}:
                sizes[key] = max(int(count), sizes.get(key, 0))
    return sizes


def parse_node_names(stdout: str) -> frozenset[str]:
    """The lines ``node1|``, without what is printed around them."""
    lines = (line.strip() for line in stdout.splitlines())
    return frozenset(line[:-1] for line in lines if re.fullmatch(r"\S+\|", line))


def parse_node_addresses(stdout: str) -> dict[str, str]:
    """NodeName to NodeAddr (or NodeHostName) of ``scontrol --oneliner show node``."""
    found: dict[str, str] = {}
    for line in stdout.splitlines():
        name = re.match(r"NodeName=(\S+)", line)
        address = re.search(r" NodeAddr=(\S+)", line) or re.search(r" NodeHostName=(\S+)", line)
        if name and address:
            found[name[1]] = address[1]
    return found


def is_up(ping: str) -> bool:
    """Whether by ``scontrol ping`` one of the cluster's controllers is up; the backup will do."""
    return re.search(r"^Slurmctld.*\bUP\b", ping, re.MULTILINE) is not None


def _squeue_refs(row: Mapping[str, str], cluster: str) -> Iterator[JobRef]:
    """One for each task that a row stands for: tasks that wait may share one."""
    if row["HetJobID"].isdecimal() and int(row["HetJobID"]):
        yield JobRef(f"{row['HetJobID']}+{row['HetJobOffset']}", cluster)
        return
    try:
        tasks = parse_tasks(row["ArrayTaskID"])
    except UsageError:  # no array, or a list that was cut short
        yield JobRef(row["JobID"], cluster)
        return
    for task in tasks:
        yield JobRef(f"{row['ArrayJobID']}_{task}", cluster)


def _squeue_info(row: Mapping[str, str]) -> JobInfo:
    code, signal = exit_status(row["exit_code"])
    return JobInfo(
        state=parse_state(row["State"]),
        reason=row["Reason"],
        nodes=_word(row["NodeList"]),
        exit_code=code,
        signal=signal,
        restarts=_count(row["RestartCnt"]),
        batch_host=_word(row["BatchHost"]),
        raw_id=row["JobID"],
        name=row["Name"],
        user=row["UserName"],
        account=_word(row["Account"]),
        partition=row["Partition"],
        qos=_word(row["QOS"]),
        node_count=_count(row["NumNodes"]),
        time_used_s=_seconds(row["TimeUsed"]),
        time_limit_s=_seconds(row["TimeLimit"]),
        submitted=parse_moment(row["SubmitTime"]),
        started=parse_moment(row["StartTime"]),
        ended=parse_moment(row["EndTime"]),
        work_dir=row["WorkDir"],
        stdout=_word(row["STDOUT"]),
        requeue=row["Requeue"] == "1",
        cluster=_word(row["Cluster"]),
    )


def _sacct_info(row: Mapping[str, str]) -> JobInfo:
    code, signal = exit_status(row["ExitCode"])
    minutes = row["TimelimitRaw"]
    return JobInfo(
        state=parse_state(row["State"]),
        reason=row["Reason"],
        nodes=_word(row["NodeList"]),
        exit_code=code,
        signal=signal,
        raw_id=row["JobIDRaw"],
        name=row["JobName"],
        user=row["User"],
        account=_word(row["Account"]),
        partition=row["Partition"],
        qos=_word(row["QOS"]),
        node_count=_count(row["NNodes"]),
        time_used_s=float(_count(row["ElapsedRaw"])),
        time_limit_s=_count(minutes) * 60.0 if minutes.isdecimal() else _seconds(minutes),
        submitted=parse_moment(row["Submit"]),
        started=parse_moment(row["Start"]),
        ended=parse_moment(row["End"]),
        work_dir=row["WorkDir"],
        cluster=_word(row["Cluster"]),
    )


def _word(cell: str) -> str:
    return "" if cell in _NOTHING else cell


def _count(cell: str) -> int:
    """Also of a range of nodes that a waiting job asks for: its least."""
    match = re.match(r"[0-9]{1,18}", cell)
    return int(match[0]) if match else 0


def _seconds(cell: str) -> float | None:
    try:
        return parse_time(cell)
    except UsageError:
        return None
