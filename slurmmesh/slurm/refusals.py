"""What Slurm's error lines mean, and what a user can do about each."""

from __future__ import annotations

import re
from dataclasses import dataclass

from slurmmesh.errors import SubmitError


@dataclass(frozen=True)
class Refusal:
    """A kind of message: the words it is known by, what happened, what to do."""

    words: str
    message: str
    advice: str


# The connection was refused or never made: slurmctld has seen nothing of the request.
_UNREACHED = re.compile(
    r"Unable to contact slurm controller|Connection refused|backup controller in standby",
    re.IGNORECASE,
)
# The request may have arrived; its answer did not.
_UNANSWERED = re.compile(
    r"Socket timed out|Zero Bytes were transmitted|Transport endpoint is not connected"
    r"|Connection reset|Message receive failure",
    re.IGNORECASE,
)
# Slurm itself asks to try again.
_BUSY = re.compile(
    r"temporarily unable|Resource temporarily unavailable|Slurmctld in recovery", re.IGNORECASE
)

_DOWN = Refusal(
    "",
    "Slurm's controller (slurmctld) does not answer",
    "It may be restarting: try again in a minute, or see `scontrol ping`. "
    "--cluster local runs the program on this machine instead.",
)
_NOT_CONFIGURED = Refusal(
    r"Could not establish a configuration source|fetch_config|No such file.*slurm\.conf",
    "Slurm is installed here but not set up: it finds no slurm.conf",
    "Set SLURM_CONF to the site's slurm.conf, go to a login node of the cluster, or use "
    "--cluster local.",
)
_REFUSALS = (
    _NOT_CONFIGURED,
    Refusal(
        r"invalid partition|Invalid partition name",
        "Slurm knows no such partition",
        "`sinfo -o %P` lists the partitions; give one with --partition.",
    ),
    Refusal(
        r"PartitionNodeLimit|Node count specification invalid|More nodes requested|"
        r"node limit|Requested node configuration is not available|"
        r"(CPU|Node) count per node can not be satisfied|More processors requested",
        "the cluster or the partition has no such nodes, or not so many",
        "Ask for less (--nodes and --spares together, --gpus-per-node, --cpus-per-task), or see "
        "what there is with `sinfo -o '%P %D %c %G'`.",
    ),
    Refusal(
        r"time limit|TimeLimit",
        "the time asked for is over the partition's limit",
        "`sinfo -o '%P %l'` shows the limits; give a shorter --time.",
    ),
    Refusal(
        r"Invalid account|account/partition combination|Invalid qos|AssocGrp|QOSMax|"
        r"Job violates accounting",
        "your account or QOS does not allow this job",
        "Give another with --sbatch=--account=NAME or --sbatch=--qos=NAME, or ask for less.",
    ),
    Refusal(
        r"Invalid (generic resource|GRES|Trackable RESource)|Invalid gres",
        "the cluster has no such GPUs",
        "`sinfo -o '%P %G'` shows what there is; see --gpus-per-node.",
    ),
    Refusal(
        r"Invalid node name|Invalid feature|Invalid constraint",
        "Slurm knows no such node or feature",
        "`sinfo -N -o '%N %f'` lists them.",
    ),
    Refusal(
        r"unrecognized option|invalid option|Invalid .* specification|ambiguous",
        "sbatch does not know an option or its value",
        "Check what you gave with --sbatch; --dry-run shows the script.",
    ),
    Refusal(
        r"Access/permission denied|Unauthorized|Invalid user|munge|Protocol authentication error",
        "Slurm did not accept who you are",
        "Ask the site's administrators whether you may submit from this machine.",
    ),
    Refusal(
        r"No space left|Unable to (create|write)|Disk quota",
        "Slurm could not store the job",
        "A disk of the cluster's controller may be full: ask its administrators.",
    ),
)
_REASON = re.compile(r"error|fatal|failed|invalid|unrecognized|ambiguous", re.IGNORECASE)
_OTHER = Refusal("", "Slurm refused the job", "--dry-run shows the script that sbatch was given.")


def error_line(output: str) -> str:
    """The line of a command's output that tells the reason, without ``sbatch: error:``."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    told = [line for line in lines if _REASON.search(line)]
    line = (told or lines or [""])[-1]
    return re.sub(r"^(\w+: )?((error|fatal): )?", "", line)


def is_unreached(output: str) -> bool:
    """Whether slurmctld cannot have seen the request, so that asking again is safe."""
    return _UNREACHED.search(output) is not None or _BUSY.search(output) is not None


def is_unanswered(output: str) -> bool:
    """Whether the request may have been carried out although no answer came."""
    return _UNANSWERED.search(output) is not None


def is_not_configured(output: str) -> bool:
    """Whether Slurm's commands are here without a cluster, which no waiting changes."""
    return re.search(_NOT_CONFIGURED.words, output) is not None


def down(output: str = "") -> SubmitError:
    """slurmctld cannot be reached."""
    what = _NOT_CONFIGURED if is_not_configured(output) else _DOWN
    return SubmitError(what.message, slurm_message=error_line(output), advice=what.advice)


def unanswered(output: str, name: str) -> SubmitError:
    """sbatch got no answer: the job may be in the queue."""
    return SubmitError(
        "Slurm took too long to answer sbatch, so the job may or may not be in the queue",
        slurm_message=error_line(output),
        advice=f"Look with `squeue --me` for the job name {name!r} before you submit again.",
    )


def refused(output: str) -> SubmitError:
    """sbatch said no."""
    what = next((r for r in _REFUSALS if re.search(r.words, output, re.IGNORECASE)), _OTHER)
    return SubmitError(what.message, slurm_message=error_line(output), advice=what.advice)
