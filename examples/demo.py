"""The demo: train a small language model twice, undisturbed and with replicas killed, and compare.

    python examples/demo.py            (or: make demo)

Both runs are the same program, ``train_llama.py``, with the same seed and steps; in the second a
replica is killed every few seconds, restarted where it died and healed from a living one. With
Slurm installed each run is a Slurm job on the 4-node lab, otherwise it runs on this machine.

Ends with 0 only if at least three replicas were killed, all of them came back, the job was never
restarted, and the final loss is within 5 % of the undisturbed run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path

from slurmmesh.errors import MissingDependencyError
from slurmmesh.lab.packages import find_programs
from slurmmesh.lab.spec import LabSpec
from slurmmesh.telemetry import Event, read_events
from slurmmesh.telemetry.report import write_report

REPLICAS = 4
LEAST_KILLS = 3
MOST_LOSS_DIFFERENCE = 0.05
TRAIN = Path(__file__).with_name("train_llama.py")


@dataclass(frozen=True)
class Outcome:
    """What the comparison needs of a run's ``summary.json``. Losses in nats, times in seconds."""

    status: str
    steps: int
    faults: int
    recovered: int
    full_restarts: int
    first_loss: float | None
    final_loss: float | None
    wall_s: float | None
    replica_availability: float | None
    replica_back_s: float | None
    survivor_stall_s: float | None

    @classmethod
    def read(cls, folder: Path) -> Outcome:
        """Read ``summary.json`` of a run's folder. Of spreads it takes the median."""
        summary = json.loads((folder / "summary.json").read_text())
        values = {field.name: summary[field.name] for field in fields(cls)}
        for name in ("replica_back_s", "survivor_stall_s"):
            values[name] = values[name]["p50"]
        return cls(**values)


def loss_difference(calm: Outcome, disturbed: Outcome) -> float | None:
    """By which share of the undisturbed run's final loss the other is higher; None if unknown."""
    if not calm.final_loss or disturbed.final_loss is None:
        return None
    return disturbed.final_loss / calm.final_loss - 1


def shortcomings(calm: Outcome, disturbed: Outcome) -> list[str]:
    """What the demo was to show and did not; empty if it showed all."""
    found = [
        f"the {name}: {run.status}"
        for name, run in (("undisturbed run", calm), ("run with kills", disturbed))
        if run.status != "finished"
    ]
    if disturbed.faults < LEAST_KILLS:
        found.append(f"only {disturbed.faults} replicas were killed, not {LEAST_KILLS}")
    if disturbed.recovered != disturbed.faults:
        found.append(f"{disturbed.recovered} of {disturbed.faults} killed replicas came back")
    if disturbed.full_restarts:
        found.append(f"the job was restarted {disturbed.full_restarts} times")
    difference = loss_difference(calm, disturbed)
    if difference is None:
        found.append("a run has no final loss: it diverged or committed no step")
    elif abs(difference) > MOST_LOSS_DIFFERENCE:
        found.append(
            f"the final losses differ by {difference:+.1%}, more than {MOST_LOSS_DIFFERENCE:.0%}"
        )
    return found


def comparison(calm: Outcome, disturbed: Outcome) -> str:
    """Both runs side by side, as text."""

    def row(label: str, value: Callable[[Outcome], object], form: str = "") -> str:
        cells = (
            "-" if value(run) is None else format(value(run), form) for run in (calm, disturbed)
        )
        return f"{label:<28}" + "".join(f"{cell:>13}" for cell in cells)

    difference = loss_difference(calm, disturbed)
    return "\n".join(
        [
            f"{'':<28}{'undisturbed':>13}{'with kills':>13}",
            row("committed steps", lambda run: run.steps),
            row("replicas killed", lambda run: run.faults),
            row("came back", lambda run: run.recovered),
            row("full restarts", lambda run: run.full_restarts),
            row("first loss", lambda run: run.first_loss, ".3f"),
            row("final loss", lambda run: run.final_loss, ".3f"),
            row("replica availability", lambda run: run.replica_availability, ".1%"),
            row("back after, median [s]", lambda run: run.replica_back_s, ".2f"),
            row("others stalled, median [s]", lambda run: run.survivor_stall_s, ".2f"),
            row("wall time [s]", lambda run: run.wall_s, ".1f"),
            "",
            "final loss with kills: " + ("unknown" if difference is None else f"{difference:+.2%}"),
        ]
    )


def slurm_is_installed() -> bool:
    """Whether all programs are here that a lab starts."""
    try:
        find_programs(LabSpec(nodes=REPLICAS))
    except MissingDependencyError:
        return False
    return True


def kills_for(events: Iterable[Event]) -> str:
    """Kills every 3 s or, where training is quick, often enough for five in a run like this."""
    times = [event["t"] for event in events if event["kind"] == "step"]
    training_s = max(times) - min(times)
    return f"kill@{min(3.0, max(0.1, training_s / 5)):.1f}s"


def command(out: Path, steps: int, seed: int, faults: str | None, cluster: str) -> list[str]:
    """The command line of one run: a reader can paste it."""
    submit = [sys.executable, "-m", "slurmmesh.submit", "--nodes", str(REPLICAS), "--follow"]
    train = ["--replicas", str(REPLICAS), "--steps", str(steps), "--seed", str(seed)]
    train += ["--out", str(out)]
    if faults is not None:
        train += ["--faults", faults]
    if cluster == "local":
        return [*submit, "--cluster", "local", str(TRAIN), "--", *train]
    lab = [sys.executable, "-m", "slurmmesh.lab", "exec", "--nodes", str(REPLICAS), "--"]
    return [*lab, *submit, "--cluster", "slurm", str(TRAIN), "--", *train]


def run(title: str, line: list[str], out: Path) -> Outcome:
    """Run a command line in the foreground and read what it reported into ``out``."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    jobs = {"SLURMMESH_JOB_ROOT": str(out / "jobs")}
    print(f"\n== {title}\n\n$ {shlex.join(line)}\n", flush=True)
    process = subprocess.Popen(line, env={**os.environ, **jobs})
    while process.returncode is None:
        with contextlib.suppress(KeyboardInterrupt):  # the run gets it too, and ends in order
            process.wait()
    if process.returncode != 0:
        print(f"\nThe {title} ended with code {process.returncode}.", file=sys.stderr)
        sys.exit(process.returncode)
    return Outcome.read(out)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train with and without kills, and compare.")
    parser.add_argument("--out", type=Path, default=Path("demo-out"), metavar="DIR")
    parser.add_argument("--steps", type=int, default=60, help="committed steps of each run")
    parser.add_argument("--faults", metavar="KIND@INTERVAL", help="default: kill@3s or quicker")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--cluster",
        choices=("auto", "lab", "local"),
        default="auto",
        help="auto: the lab where Slurm is installed, else local",
    )
    return parser.parse_args(arguments)


def main() -> int:
    options = parse()
    cluster = options.cluster
    if cluster == "auto":
        cluster = "lab" if slurm_is_installed() else "local"
    where = "as jobs of a 4-node Slurm lab" if cluster == "lab" else "here, without Slurm"
    print(f"{REPLICAS} replicas train a small language model, twice, {where}.")

    folder = options.out.resolve()
    calm_out, disturbed_out = folder / "undisturbed", folder / "with-kills"
    line = command(calm_out, options.steps, options.seed, None, cluster)
    calm = run("undisturbed run", line, calm_out)
    faults = options.faults or kills_for(read_events(calm_out / "events.jsonl"))
    line = command(disturbed_out, options.steps, options.seed, faults, cluster)
    disturbed = run(f"run with {faults}", line, disturbed_out)
    report = write_report(disturbed_out, disturbed_out, baseline=calm_out)

    print(f"\n{comparison(calm, disturbed)}")
    print(f"report: {report}")
    missed = shortcomings(calm, disturbed)
    for shortcoming in missed:
        print(f"not shown: {shortcoming}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
