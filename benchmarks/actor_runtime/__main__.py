"""Measure ours and its peers in turns, each time in a fresh process; print and write the rows."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import results
from benchmarks.actor_runtime.cases import Case, cases
from benchmarks.actor_runtime.peers import ALL, OURS, PEERS, Peer
from slurmmesh.linux import become_subreaper, sweep_children

_ROOT = Path(__file__).resolve().parents[2]
_TIMEOUT_S = 300.0
_LAST_WORDS = 4

Samples = dict[str, list[float]]


class Failed(Exception):
    """A peer could not be measured; says why."""


def _measure(peer: Peer, case: Case) -> Samples:
    """In a fresh process, of which nothing is left afterwards.

    Raises Failed if it gives no samples; if it only does not end well after them, that is told.
    """
    with tempfile.TemporaryDirectory(prefix="sm-bench-") as name:
        path = Path(name, "samples.json")
        command = [sys.executable, "-m", f"{__package__}.measures", peer.name, case.measure]
        command += [json.dumps(case.options), str(path)]
        with open(Path(name, "said"), "w+", errors="replace") as said:
            process = subprocess.Popen(
                command,
                cwd=_ROOT,
                env=_environment(name),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )
            try:
                how = f"it ended with code {process.wait(_TIMEOUT_S)}"
            except subprocess.TimeoutExpired:
                how = f"it took longer than {_TIMEOUT_S:g} s"
            finally:
                process.kill()
                process.wait()
                sweep_children()
            if process.returncode != 0:
                said.seek(0)
                lines = [line.strip() for line in said if line.strip()]
                how = "; ".join([how, *lines[-_LAST_WORDS:]])
                if not path.exists():
                    raise Failed(how)
                _tell(f"{peer.name} has been measured at {case.title}, but then {how}")
        found: Samples = json.loads(path.read_text(encoding="utf-8"))
        return found


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _environment(temporary: str) -> dict[str, str]:
    """Procs find this package; modules are compiled once, as they are for users."""
    paths = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    return {**environ, "TMPDIR": temporary}


class Benchmark:
    """Keeps going when a peer fails, and notes it.

    Attributes:
        failures: what could not be measured, in words.
        rows: what could.
    """

    def __init__(self, peers: Sequence[Peer], rounds: int) -> None:
        self._peers = peers
        self._rounds = rounds
        self.failures: list[str] = []
        self.rows: list[results.Row] = []

    def run(self, case: Case) -> None:
        """Measure a case of all who have it, in turns."""
        failed: set[str] = set()

        def measure(peer: Peer) -> Samples:
            if peer.name in failed:
                return {}
            try:
                return _measure(peer, case)
            except Failed as error:
                failed.add(peer.name)
                self.failures.append(f"{peer.name} failed at {case.title}")
                _tell(f"{self.failures[-1]}: {error}")
                return {}

        ways = {
            peer.name: lambda peer=peer: measure(peer) for peer in self._peers if case.fits(peer)
        }
        found = results.in_turns(ways, self._rounds)
        whole = {name: taken for name, taken in found.items() if name not in failed}
        rows = _rows(case, whole) if OURS.name in whole else []
        self.rows += rows
        print(results.table(rows), flush=True)


def _rows(case: Case, found: Mapping[str, Sequence[Samples]]) -> list[results.Row]:
    rows = []
    for key, metric in case.metrics.items():
        samples = {
            name: [metric.scale * each for taken in rounds for each in taken[key]]
            for name, rounds in found.items()
        }
        ours = samples.pop(OURS.name)
        rows.append(results.Row(metric.name, metric.unit, metric.better, ours, samples))
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table and write the file; returns the exit code."""
    groups = list(dict.fromkeys(case.group for case in cases(quick=False)))
    names = [peer.name for peer in PEERS]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.actor_runtime",
        description=__doc__,
    )
    parser.add_argument(
        "--peers",
        default="floor",
        metavar="NAME,...",
        help=f"of {', '.join(names)}; those not installed are left out",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=groups,
        metavar="GROUP",
        default=groups,
        help=f"of {', '.join(groups)}; all unless given",
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="3 unless given")
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the samples, no tensor of 512 MiB"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the result")
    options = parser.parse_args(argv)
    asked = list(dict.fromkeys(filter(None, options.peers.split(","))))
    if unknown := [name for name in asked if name not in names]:
        parser.error(f"--peers: there is no {unknown[0]}, but {', '.join(names)}")
    if options.rounds < 1:
        parser.error("--rounds: give 1 or more")
    if options.json and not options.json.parent.is_dir():
        parser.error(f"--json {options.json}: there is no folder {options.json.parent}")
    missing = [name for name in asked if not ALL[name].version]
    for name in missing:
        _tell(f"{name} is not installed: measured without it")
    peers = [OURS, *(ALL[name] for name in asked if name not in missing)]
    known = [f"{peer.distribution} {peer.version}" for peer in peers if peer.distribution]
    known += [f"{name} is not installed" for name in missing]
    before = results.load()
    become_subreaper()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    benchmark = Benchmark(peers, options.rounds)
    where = ""
    for case in cases(options.quick):
        if case.group in options.only:
            benchmark.run(case)
            loads = f"load {before} before and {results.load()} after"
            where = results.machine(*known, loads, *benchmark.failures)
            if options.json:  # each time: it takes long, and may be ended early
                results.write(options.json, where, benchmark.rows)
    print(where)
    return int(any(failure.startswith(f"{OURS.name} ") for failure in benchmark.failures))


if __name__ == "__main__":
    sys.exit(main())
