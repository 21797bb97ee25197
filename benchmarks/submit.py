"""From the start of a submit to the user's lines, beside plain Slurm and submitit.

``python -m benchmarks.submit --json FILE`` starts a lab of four nodes and submits, in turns and
each time in a fresh process, one program by each way:

- ours: ``python -m slurmmesh.submit --nodes 4 program.py``;
- ``srun``: ``sbatch -N4 --wrap 'srun python program.py'``, the plain way to run on all nodes;
- ``sbatch``: the same without ``srun``, so that it runs on the first node alone;
- ``submitit``: a script that submits a function by ``AutoExecutor`` to four nodes.

Each program writes down the moment of its first statement, by the clock that all processes of
this machine share. Slurm starts jobs when its scheduler next looks at the queue, in the lab once a
second: the times have that wait in them, and are taken at any moment of that second. It says
nothing of how a job was submitted, so what is beyond plain Slurm is told without it.

The exit code tells whether it could be measured, not whether a target was hit.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import random
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if not __package__:  # run as a file
    sys.path[0] = str(ROOT)

from benchmarks import results  # noqa: E402
from slurmmesh.errors import SlurmmeshError  # noqa: E402
from slurmmesh.lab import Lab  # noqa: E402

_DESCRIPTION = "From the start of a submit to the user's lines, beside plain Slurm and submitit."
NODES = 4
TARGET_S = 0.3
_BEYOND = "beyond sbatch + srun python, without the wait in the queue"
_FAILS_AFTER_S = 60.0
_POLL_S = 0.01
_QUEUE_POLL_S = 0.1
# When in its second Slurm's scheduler is met.
_MOMENT = random.Random(0)

_FIRST_LINE = """\
import time; moment = time.monotonic()
import os, sys

def mark(name, moment):
    with open(os.path.join({marks!r}, name), "w") as file:
        file.write(repr(moment))

"""
_OURS = """\
mark("line-0", moment)
import slurmmesh as sm

class Line(sm.Actor):
    def __init__(self):
        self.moment = time.monotonic()

    @sm.endpoint
    def began(self):
        return self.moment

hosts = sm.this_job().hosts
mark("hosts-0", time.monotonic())
procs = hosts.spawn_procs({"gpus": 1})
for rank, moment in enumerate(procs.spawn("line", Line).began.call().get().values()):
    mark(f"actor-{rank}", moment)
"""
_PLAIN = """\
mark("line-" + os.environ.get("SLURM_PROCID", "0"), moment)
"""
_SUBMITIT = """\
import submitit

def program():
    moment = time.monotonic()
    mark("line-" + os.environ["SLURM_PROCID"], moment)

if __name__ == "__main__":
    executor = submitit.AutoExecutor("logs", cluster="slurm")
    executor.update_parameters(nodes=NODES, tasks_per_node=1, timeout_min=5)
    executor.submit(program)
"""


@dataclass(frozen=True)
class Way:
    """A way to submit a program.

    Attributes:
        program: what it does after its first line.
        command: the user's, given the program's path.
        marks: what the program writes down, and how often.
    """

    program: str
    command: Callable[[str], Sequence[str]]
    marks: Mapping[str, int]


@dataclass(frozen=True)
class Times:
    """Seconds from the start of the user's command.

    Attributes:
        returned: until the command was through.
        queued: of these, how long Slurm let the job wait.
        marks: until each moment that the program wrote down, by its name.
    """

    returned: float
    queued: float
    marks: Mapping[str, Sequence[float]]


def _ways() -> dict[str, Way]:
    python = sys.executable
    plain = ["sbatch", "--parsable", f"-N{NODES}", "--wrap"]
    ways = {
        "ours": Way(
            _OURS,
            lambda path: (
                *(python, "-m", "slurmmesh.submit", "--cluster", "slurm"),
                *("--nodes", str(NODES), path),
            ),
            {"line": 1, "hosts": 1, "actor": NODES},
        ),
        "srun": Way(
            _PLAIN,
            lambda path: (*plain, shlex.join(["srun", python, path])),
            {"line": NODES},
        ),
        "sbatch": Way(_PLAIN, lambda path: (*plain, shlex.join([python, path])), {"line": 1}),
    }
    if importlib.util.find_spec("submitit"):
        program = _SUBMITIT.replace("NODES", str(NODES))
        ways["submitit"] = Way(program, lambda path: (python, path), {"line": NODES})
    return ways


def queued_s(log: str) -> float:
    """How long the job waited whose submission is the first in this piece of slurmctld's log.

    Raises:
        RuntimeError: it does not tell.
    """
    submitted = re.search(
        r"^\[(\S+)\] _slurm_rpc_submit_batch_job: (JobId=\d+) ", log, re.MULTILINE
    )
    begin = (
        rf"^\[(\S+)\] \S*sched.*\b(?:Started|Allocate) {submitted[2]}\b" if submitted else "(?!)"
    )
    started = re.search(begin, log, re.MULTILINE)
    if submitted is None or started is None:
        raise RuntimeError(f"slurmctld's log does not tell when the job was started:\n{log}")
    begun, put = (datetime.datetime.fromisoformat(match[1]) for match in (started, submitted))
    return (begun - put).total_seconds()


def _measure(way: Way, lab: Lab) -> Times:
    """Submit a program once; returns when its job is over and all nodes are idle.

    Raises:
        RuntimeError: the command failed, or the program did not run.
    """
    with tempfile.TemporaryDirectory(prefix="slurmmesh-benchmark-") as name:
        folder = Path(name)
        marks = folder / "marks"
        marks.mkdir()
        program = folder / "program.py"
        program.write_text(_FIRST_LINE.format(marks=str(marks)) + way.program)
        environ = lab.env(PYTHONPATH=str(ROOT), XDG_STATE_HOME=name, XDG_CONFIG_HOME=name)
        # As for users, what is imported is compiled once: in the round that is not counted.
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        command = way.command(str(program))
        log = lab.root / "log" / "slurmctld.log"
        logged = log.stat().st_size
        time.sleep(_MOMENT.random())
        started = time.monotonic()
        done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
        returned = time.monotonic()
        if done.returncode != 0:
            raise RuntimeError(f"{shlex.join(command)} failed: {done.stderr}")
        deadline = started + _FAILS_AFTER_S
        while len(list(marks.iterdir())) < sum(way.marks.values()):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the program did not run:\n{_words(folder)}")
            time.sleep(_POLL_S)
        _wait_until_idle(lab)
        return Times(
            returned - started,
            queued_s(log.read_bytes()[logged:].decode(errors="replace")),
            {
                kind: [float(path.read_text()) - started for path in marks.glob(f"{kind}-*")]
                for kind in way.marks
            },
        )


def _wait_until_idle(lab: Lab) -> None:
    while lab.run("squeue", "--noheader").stdout.strip() or {*lab.states().values()} != {"idle"}:
        time.sleep(_QUEUE_POLL_S)


def _words(folder: Path) -> str:
    """What the job has written."""
    logs = [*folder.rglob("*.out"), *folder.rglob("*.err"), *folder.rglob("*.log")]
    return "".join(path.read_text(errors="replace") for path in logs)


def _rows(found: Mapping[str, Sequence[Times]]) -> list[results.Row]:
    first = _first(found)
    last = {
        name: [max(each.marks["actor" if name == "ours" else "line"]) for each in times]
        for name, times in found.items()
        if name != "sbatch"
    }
    up = {**last, "ours": [each.marks["hosts"][0] for each in found["ours"]]}
    queued = _queued(found)
    returned = {name: [each.returned for each in times] for name, times in found.items()}
    del returned["srun"]  # the command is that of sbatch
    return [
        _row("submit to the program's first line, on any node", first),
        _row(f"submit to a line on all {NODES} nodes (ours: of an actor)", last),
        _row(f"submit to all {NODES} hosts up (peers: a line on all nodes)", up),
        _row("the submit command until it returns", returned),
        _row("the wait in Slurm's queue, a part of the times to a line", queued),
        _row(f"first line: {_BEYOND}", _beyond_plain(first, queued)),
        _row(f"a line on all {NODES} nodes: {_BEYOND}", _beyond_plain(last, queued)),
    ]


def _target(found: Mapping[str, Sequence[Times]]) -> str:
    """Whether the target was hit, in words."""
    beyond = statistics.median(_beyond_plain(_first(found), _queued(found))["ours"])
    told = "hit" if beyond <= TARGET_S else "missed"
    return f"target: first line at most {TARGET_S} s {_BEYOND}: {told} ({beyond:.2f} s)"


def _first(found: Mapping[str, Sequence[Times]]) -> dict[str, list[float]]:
    return {name: [min(each.marks["line"]) for each in times] for name, times in found.items()}


def _queued(found: Mapping[str, Sequence[Times]]) -> dict[str, list[float]]:
    return {name: [each.queued for each in times] for name, times in found.items()}


def _row(name: str, samples: Mapping[str, Sequence[float]]) -> results.Row:
    peers = {peer: times for peer, times in samples.items() if peer != "ours"}
    return results.Row(name, "s", "lower", samples["ours"], peers)


def _beyond_plain(
    samples: Mapping[str, Sequence[float]], queued: Mapping[str, Sequence[float]]
) -> dict[str, list[float]]:
    """How much longer each way took than plain Slurm in the same round, without the queue."""
    net = {
        name: [each - wait for each, wait in zip(times, queued[name], strict=True)]
        for name, times in samples.items()
    }
    plain = net.pop("srun")
    return {
        name: [each - base for each, base in zip(times, plain, strict=True)]
        for name, times in net.items()
    }


def _slurm_version(lab: Lab) -> str:
    return lab.run("sbatch", "--version").stdout.strip()


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table and write the file; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.submit", description=_DESCRIPTION)
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the result")
    parser.add_argument("--rounds", type=int, default=10, metavar="N", help="10 unless given")
    options = parser.parse_args(argv)
    if options.rounds < 1:
        parser.error("--rounds: give 1 or more")
    if options.json and not options.json.parent.is_dir():
        parser.error(f"--json {options.json}: there is no folder {options.json.parent}")
    ways = _ways()
    if "submitit" not in ways:
        print("submitit is not installed: measured without it", file=sys.stderr)
    before = results.load()
    try:
        with Lab(nodes=NODES) as lab:
            turns = {name: lambda way=way: _measure(way, lab) for name, way in ways.items()}
            # Not counted: it compiles modules, and brings files into memory.
            results.in_turns(turns, 1)
            found = results.in_turns(turns, options.rounds)
            slurm = _slurm_version(lab)
    except (SlurmmeshError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    rows = _rows(found)
    where = results.machine(
        f"{slurm} of {NODES} emulated nodes", f"load {before} before and {results.load()} after"
    )
    print(where)
    print(results.table(rows))
    print(_target(found))
    if options.json:
        results.write(options.json, where, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
