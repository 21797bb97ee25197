"""What ``squeue --json`` answers, in the shapes of all versions since 22.05.

Numbers are plain in 22.05 and ``{"set": true, "infinite": false, "number": 7}`` later; states
are a word and later a list of words; an exit code is a wait status and later an object, whose
own parts are plain in 23.02 and such objects since 23.11.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from slurmmesh.errors import UsageError
from slurmmesh.slurm.ids import JobRef, parse_tasks
from slurmmesh.slurm.jobinfo import JobInfo, by_ref
from slurmmesh.slurm.states import parse_state

# A banner before the answer may hold braces; so many are tried as the beginning of the answer.
_MOST_BEGINNINGS = 100


def parse_squeue_json(text: str, now: float, cluster: str = "") -> dict[JobRef, JobInfo] | None:
    """The jobs in an answer of squeue at the moment ``now``; None if there is no such answer."""
    jobs = _find_jobs(text)
    if jobs is None:
        return None
    return by_ref(
        (ref, _info(job, now))
        for job in jobs
        if isinstance(job, dict)
        for ref in _refs(job, cluster)
    )


def _find_jobs(text: str) -> list[Any] | None:
    decoder = json.JSONDecoder()
    start = -1
    for _ in range(_MOST_BEGINNINGS):
        start = text.find("{", start + 1)
        if start < 0:
            break
        try:
            content, _end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        if isinstance(content, dict) and isinstance(content.get("jobs"), list):
            return list(content["jobs"])
    return None


def _refs(job: Mapping[str, Any], cluster: str) -> Iterator[JobRef]:
    number = _count(job.get("job_id"))
    if not number:
        return
    if leader := _count(job.get("het_job_id")):
        yield JobRef(f"{leader}+{_count(job.get('het_job_offset'))}", cluster)
        return
    array = _count(job.get("array_job_id"))
    task = _number(job.get("array_task_id"))
    if not array:
        yield JobRef(str(number), cluster)
    elif task is not None and math.isfinite(task):
        yield JobRef(f"{array}_{int(task)}", cluster)
    else:
        try:
            tasks = parse_tasks(_text(job.get("array_task_string")))
        except UsageError:  # cut short
            yield JobRef(str(array), cluster)
            return
        for index in tasks:
            yield JobRef(f"{array}_{index}", cluster)


def _info(job: Mapping[str, Any], now: float) -> JobInfo:
    states = job.get("job_state")
    state = parse_state([word for word in _list(states) if isinstance(word, str)])
    code, signal = _exit_status(job.get("exit_code"))
    started, ended = _moment(job.get("start_time")), _moment(job.get("end_time"))
    used = None
    if started is not None and not state.is_waiting:
        used = max(0.0, min(now, math.inf if ended is None else ended) - started)
    minutes = _number(job.get("time_limit"))
    return JobInfo(
        state=state,
        reason=_text(job.get("state_reason")),
        nodes=_nodes(job),
        exit_code=code,
        signal=signal,
        restarts=_count(job.get("restart_cnt")),
        batch_host=_text(job.get("batch_host")),
        raw_id=str(_count(job.get("job_id"))),
        name=_text(job.get("name")),
        user=_text(job.get("user_name")),
        account=_text(job.get("account")),
        partition=_text(job.get("partition")),
        qos=_text(job.get("qos")),
        node_count=_count(job.get("node_count")),
        time_used_s=used,
        time_limit_s=None if minutes is None else minutes * 60,
        submitted=_moment(job.get("submit_time")),
        started=started,
        ended=ended,
        work_dir=_text(job.get("current_working_directory")),
        stdout=_text(job.get("stdout_expanded")) or _text(job.get("standard_output")),
        requeue=job.get("requeue") is True,
        cluster=_text(job.get("cluster")),
    )


def _exit_status(value: Any) -> tuple[int, int]:
    if not isinstance(value, dict) or "return_code" not in value:
        status = _count(value)
        return status >> 8 & 0xFF, status & 0x7F
    signal = value.get("signal")
    if isinstance(signal, dict):
        signal = signal.get("id", signal.get("signal_id"))
    return _count(value["return_code"]), _count(signal)


def _nodes(job: Mapping[str, Any]) -> str:
    """The host list: a text of its own or, in some versions, inside of the resources."""
    resources = job.get("job_resources")
    inside = resources.get("nodes") if isinstance(resources, dict) else None
    for value in (job.get("nodes"), inside):
        if isinstance(value, dict):
            value = value.get("list")
        if isinstance(value, str) and value:
            return value
    return ""


def _number(value: Any) -> float | None:
    """None if it is not set."""
    if isinstance(value, dict):
        if value.get("infinite") is True:
            return math.inf
        value = value.get("number") if value.get("set", True) else None
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # JSON's whole numbers have no end
        return None


def _count(value: Any) -> int:
    number = _number(value)
    return int(number) if number is not None and math.isfinite(number) else 0


def _moment(value: Any) -> float | None:
    return _count(value) or None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
