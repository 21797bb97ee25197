"""The controller's entry: runs the user's program in the job and ends all in order.

``python -m slurmmesh.hosts.program [-m MODULE | SCRIPT] [ARGS...]`` is what the batch script,
or ``submit`` on one machine, starts. Exit code: the program's; see ``docs/exit-codes.md``.
"""

from __future__ import annotations

import contextlib
import functools
import os
import runpy
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from slurmmesh.errors import (
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_PROGRAM_FAILED,
    UsageError,
)
from slurmmesh.hosts.endings import at_fault, explain
from slurmmesh.hosts.job import Job, start_job
from slurmmesh.record import this_process, write_record

_TERMINATED = 128 + signal.SIGTERM


def main() -> NoReturn:
    """Run, and exit with the program's code."""
    arguments = sys.argv[1:]
    sys.argv = arguments or [""]  # what the program, and the job's first event, see
    signal.signal(signal.SIGTERM, _terminate)
    code = EXIT_PROGRAM_FAILED
    job: Job | None = None
    record = _record_of(os.environ)

    def end(code: int) -> None:
        if job is not None:
            job.close(code)
        _write_record({**record, "ended": time.time(), "exit_code": code})

    at_fault.append(end)
    try:
        job = start_job(os.environ)
        _tell_start(record)
        signal.signal(signal.SIGTERM, functools.partial(_terminate, job=job))
        code = _run(arguments)
    except BaseException as error:
        code = _explain(error)
    # From here on it only ends things, in bounded time: a second signal must not cut it short.
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    end(code)
    # What is left is the user's own: threads that must end, and functions to run at exit.
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    sys.exit(code)


def _terminate(_signum: int, _frame: Any, job: Job | None = None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if job is not None:
        job.expect_end()
    raise SystemExit(_TERMINATED)


def _run(arguments: list[str]) -> int:
    """Run the user's program as ``__main__``; returns its exit code."""
    if not arguments or arguments == ["-m"]:
        raise UsageError("no program given: name a script, or -m and a module")
    try:
        if arguments[0] == "-m":
            sys.argv = arguments[1:]
            sys.path.insert(0, os.getcwd())
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            script = arguments[0]
            if not Path(script).is_file():
                raise UsageError(f"there is no script {script}")
            sys.argv = arguments
            sys.path.insert(0, str(Path(script).resolve().parent))
            runpy.run_path(script, run_name="__main__")
    except SystemExit as error:
        return _code_of(error)
    return EXIT_OK


def _code_of(error: SystemExit) -> int:
    if error.code is None:
        return EXIT_OK
    if isinstance(error.code, int):
        return error.code
    print(error.code, file=sys.stderr)
    return EXIT_PROGRAM_FAILED


def _explain(error: BaseException) -> int:
    """Say what went wrong, once; returns the exit code."""
    if isinstance(error, KeyboardInterrupt):
        print("slurmmesh: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    if isinstance(error, SystemExit):
        return _code_of(error)
    return explain(error)


def _record_of(environ: Mapping[str, str]) -> dict[str, Any]:
    """What ``job.json`` tells of the job from its start on."""
    return {
        "job_id": environ.get("SLURMMESH_JOB_ID"),
        "cluster": environ.get("SLURMMESH_CLUSTER"),
        "nodes": _count(environ.get("SLURMMESH_NODES")),
        "spares": _count(environ.get("SLURMMESH_SPARES")),
        "argv": list(sys.argv),
        "cwd": os.getcwd(),
        **this_process(),
        "started": time.time(),
    }


def _count(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


def _tell_start(record: dict[str, Any]) -> None:
    _write_record(record)
    hosts = "1 host" if record["nodes"] == 1 else f"{record['nodes']} hosts"
    folder = os.environ["SLURMMESH_JOB_FOLDER"]
    print(f"slurmmesh: job {record['job_id']} on {hosts}, logs in {folder}", file=sys.stderr)


def _write_record(record: dict[str, Any]) -> None:
    """Nothing is written where the job has no folder."""
    folder = os.environ.get("SLURMMESH_JOB_FOLDER")
    if not folder or not os.path.isdir(folder):
        return
    try:
        write_record(Path(folder), record)
    except OSError as error:
        print(f"slurmmesh: cannot write {folder}/job.json: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
