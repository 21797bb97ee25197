"""The controller's entry: runs the user's program in the job and ends all in order.

``python -m slurmmesh.hosts.program [-m MODULE | SCRIPT] [ARGS...]`` is what the batch script,
or ``submit`` on one machine, starts. Exit code: the program's; see ``docs/exit-codes.md``.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import runpy
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from slurmmesh.errors import (
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_PROGRAM_FAILED,
    UsageError,
)
from slurmmesh.hosts.endings import explain
from slurmmesh.hosts.job import Job, start_job

_TERMINATED = 128 + signal.SIGTERM


def main() -> NoReturn:
    """Run, and exit with the program's code."""
    arguments = sys.argv[1:]
    sys.argv = arguments or [""]  # what the program, and the job's first event, see
    signal.signal(signal.SIGTERM, _terminate)
    code = EXIT_PROGRAM_FAILED
    job: Job | None = None
    record: dict[str, Any] = {}
    try:
        job = start_job(os.environ)
        record = _note_start(job)
        signal.signal(signal.SIGTERM, functools.partial(_terminate, job=job))
        code = _run(arguments)
    except BaseException as error:
        code = _explain(error)
    # From here on it only ends things, in bounded time: a second signal must not cut it short.
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    if job is not None:
        job.close(code)
        _write_record(job, {**record, "ended": time.time(), "exit_code": code})
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


def _note_start(job: Job) -> dict[str, Any]:
    nodes = int(os.environ["SLURMMESH_NODES"])
    spares = int(os.environ.get("SLURMMESH_SPARES") or 0)
    record = {
        "job_id": job.id,
        "cluster": job.cluster,
        "nodes": nodes,
        "spares": spares,
        "argv": list(sys.argv),
        "cwd": os.getcwd(),
        "pid": os.getpid(),
        "started": time.time(),
    }
    _write_record(job, record)
    print(f"slurmmesh: job {job.id} on {nodes} hosts, logs in {job.folder}", file=sys.stderr)
    return record


def _write_record(job: Job, record: dict[str, Any]) -> None:
    """Write ``job.json`` so that a reader sees the old one or the new one, whole."""
    assert job.folder is not None
    path = job.folder / "job.json"
    draft = path.with_suffix(".tmp")
    try:
        draft.write_text(json.dumps(record, indent=1) + "\n")
        draft.replace(path)
    except OSError as error:
        print(f"slurmmesh: cannot write {path}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
