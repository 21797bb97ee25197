"""What Slurm's error lines mean, and what a user can do about each."""

from __future__ import annotations

import re
from dataclasses import dataclass

from slurmmesh.errors import SubmitError


@dataclass(frozen=True)
class Refusal:
    """A kind of message.

    Attributes:
        words: a pattern it is known by, whatever its case.
        says: an example of how Slurm puts it.
        message: what happened.
        advice: what to do.
    """

    words: str
    says: str
    message: str
    advice: str

    def fits(self, output: str) -> bool:
        return re.search(self.words, output, re.IGNORECASE) is not None


NOT_CONFIGURED = Refusal(
    r"Could not establish a configuration source|fetch_config|No such file.*slurm\.conf",
    "Could not establish a configuration source",
    "Slurm is installed here but not set up: it finds no slurm.conf",
    "Set SLURM_CONF to the site's slurm.conf, go to a login node of the cluster, or use "
    "--cluster local.",
)
# The connection was refused or never made, or Slurm itself asks to try again: slurmctld has done
# nothing about the request.
DOWN = Refusal(
    r"Unable to contact slurm controller|Connection refused|controller (is )?in standby"
    r"|temporarily una(ble|vailable)|Slurmctld in recovery|Rate limit exceeded",
    "Unable to contact slurm controller (connect failure)",
    "Slurm's controller (slurmctld) does not answer",
    "It may be restarting: try again in a minute, or see `scontrol ping`. "
    "--cluster local runs the program on this machine instead.",
)
# The request may have arrived; its answer did not.
UNANSWERED = Refusal(
    r"Socket timed out|Zero Bytes were transmitted|Transport endpoint is not connected"
    r"|Connection (reset|timed out)|Message receive failure|forced closed by quiesce",
    "Socket timed out on send/recv operation",
    "Slurm took too long to answer sbatch, so the job may or may not be in the queue",
    "Look with `squeue --me` for the job's name before you submit again.",
)
# In the order of asking: sbatch may say several things, and the more special one tells more.
REFUSALS = (
    NOT_CONFIGURED,
    Refusal(
        r"can't be reached now, or it is an invalid entry for --cluster|No cluster '.*' known"
        r"|Invalid cluster|No eligible clusters|Problem talking to database",
        "'x' can't be reached now, or it is an invalid entry for --cluster.",
        "Slurm knows no such cluster, or cannot reach it",
        "`sacctmgr list clusters` lists them; give others with --clusters.",
    ),
    Refusal(
        r"invalid partition|No partition specified",
        "Invalid partition name specified",
        "Slurm knows no such partition, or has no default one",
        "`sinfo -o %P` lists the partitions; give one with --partition.",
    ),
    Refusal(
        r"group not permitted to use this partition",
        "User's group not permitted to use this partition",
        "you may not use this partition",
        "Give another with --partition, or ask the site's administrators to let you in.",
    ),
    Refusal(
        r"Required partition not available|Partition in DOWN state",
        "Required partition not available (inactive or drain)",
        "the partition takes no jobs now",
        "`sinfo` shows its state; give another with --partition, or try again later.",
    ),
    Refusal(
        r"Memory (specification|required by task)|memory .* not available",
        "Memory specification can not be satisfied",
        "no node has so much memory",
        "Ask for less with --mem or --mem-per-gpu; `sinfo -o '%P %m'` shows what nodes have, in "
        "megabytes.",
    ),
    Refusal(
        r"Job violates accounting|breached requested QOS|AssocGrp|AssocMax|QOSMax|QOSGrp"
        r"|QOSMin",
        "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
        "your account or QOS does not allow so many jobs, or such a large or long one",
        "Wait until others of your jobs have ended, ask for less (--nodes, --time, "
        "--gpus-per-node), or give another --account or --qos.",
    ),
    Refusal(
        r"time limit|TimeLimit|Invalid time-min",
        "Requested time limit is invalid (missing or exceeds some limit)",
        "the time asked for is over the partition's limit, or has to be given",
        "`sinfo -o '%P %l'` shows the limits; give a --time within them.",
    ),
    Refusal(
        r"Invalid account|account/partition combination|unknown association",
        "Invalid account or account/partition combination specified",
        "you may not charge this account, or not in this partition",
        "`sacctmgr show associations user=$USER` lists yours; give one with --account, or "
        "another --partition.",
    ),
    Refusal(
        r"Invalid qos",
        "Invalid qos specification",
        "you may not use this QOS, or not here",
        "`sacctmgr show associations user=$USER format=account,partition,qos` lists yours; give "
        "one with --qos.",
    ),
    Refusal(
        r"Invalid wckey",
        "Invalid wckey specification",
        "the site wants a wckey that is yours",
        "Give one with --sbatch=--wckey=NAME.",
    ),
    Refusal(
        r"MaxJobCount limit",
        "MaxJobCount limit reached",
        "the cluster's queue is full",
        "Try again when jobs have ended.",
    ),
    Refusal(
        r"generic resource|GRES|Trackable RESource|did not request any GPU"
        r"|RestrictedCoresPerGPU",
        "Invalid generic resource (gres) specification",
        "the cluster has no such GPUs",
        "`sinfo -o '%P %G'` shows what there is; see --gpus-per-node and --gres.",
    ),
    Refusal(
        r"Invalid feature|Invalid constraint|preferred feature|extra constraints"
        r"|features not subset|subset of --constraint|KNL NUMA",
        "Invalid feature specification",
        "no node has these features",
        "`sinfo -o '%P %f'` lists them; see --constraint.",
    ),
    Refusal(
        r"Invalid node name",
        "Invalid node name specified",
        "Slurm knows no node of a name in the job",
        "`sinfo -N` lists the nodes; see --nodelist and --exclude.",
    ),
    Refusal(
        r"Requested nodes not in this partition|Required node not available"
        r"|Required nodes (lack|do not)",
        "Required node not available (down, drained or reserved)",
        "a node that must be in the job is down, reserved, or in another partition",
        "`sinfo -N -n NODE` shows its state; leave it out of --nodelist, or give its --partition.",
    ),
    Refusal(
        r"PartitionNodeLimit|Node count specification|More nodes requested|node limit"
        r"|Requested (node|partition|topology) configuration|More processors requested"
        r"|CPU count specification|Task count specification|Max powered up nodes"
        r"|(CPU|Node) count per node can not be satisfied|topology unit",
        "Requested node configuration is not available",
        "the cluster or the partition has no such nodes, or not so many",
        "Ask for less (--nodes and --spares together, --gpus-per-node, --cpus-per-task), or see "
        "what there is with `sinfo -o '%P %D %c %G'`.",
    ),
    Refusal(
        r"(requested|to) reservation|Reservation .* invalid|reservation is (invalid|in use)"
        r"|maintenance reservation",
        "Requested reservation is invalid",
        "there is no such reservation, or it is not yours, or over",
        "`scontrol show reservation` lists them; give one with --reservation, or none.",
    ),
    Refusal(
        r"licenses?\b",
        "Invalid license specification",
        "the cluster has no such licenses, or not so many",
        "`scontrol show licenses` lists them; see --licenses.",
    ),
    Refusal(
        r"dependency",
        "Job dependency problem",
        "Slurm cannot make the job wait for these others",
        "The jobs of --dependency must be known to `squeue`; a job cannot wait for itself.",
    ),
    Refusal(
        r"job array|array spec",
        "Invalid job array specification",
        "these array indexes cannot be",
        "They must be below the MaxArraySize of `scontrol show config`; see --array.",
    ),
    Refusal(
        r"burst buffer",
        "Burst Buffer request invalid",
        "the site's burst buffer does not give what the job asks for",
        "See what the site says about it, and the #BB or #DW lines of your template.",
    ),
    Refusal(
        r"busy|can not start immediately|Immediate execution impossible",
        "Requested nodes are busy",
        "the job was to start at once, but cannot",
        "Leave --immediate out, so that it waits its turn.",
    ),
    Refusal(
        r"Pathname of a file|Argument list too long|too (long|large)|Insane message length",
        "Pathname of a file, directory or other parameter too long",
        "a path, the script or the environment is too long for Slurm",
        "Give the program long arguments in a file, and take large variables out of your shell.",
    ),
    Refusal(
        r"script is empty|not look like a batch script|DOS line breaks|script not specified",
        "This does not look like a batch script.",
        "the template makes no batch script",
        "It must begin with #!/bin/bash and have Unix line ends: `slurmmesh templates check` "
        "tells; see --template.",
    ),
    Refusal(
        r"working directory",
        "Job cannot be submitted without the current working directory specified.",
        "the folder that the job shall run in is not known",
        "Give one with --chdir.",
    ),
    Refusal(
        r"submissions disabled|presently disabled|not supported on this system|PREEMPTION_REQ"
        r"|Only batch jobs",
        "System submissions disabled",
        "the cluster takes no such jobs, at least for now",
        "Look for a notice of the site (maintenance?), or ask its administrators.",
    ),
    Refusal(
        r"Incompatible versions|SLURM_PROTOCOL_VERSION|version mismatch",
        "Incompatible versions of client and server code",
        "Slurm's commands here are of another version than the cluster's",
        "Submit from a login node of the cluster, or look whether an old Slurm is first in PATH.",
    ),
    Refusal(
        r"permission denied|Unauthorized|Invalid (user|group) id|munge|authentication"
        r"|unable to resolve (user|group)|Operation not permitted",
        "Access/permission denied",
        "Slurm did not accept who you are, or does not let you do this",
        "Ask the site's administrators whether you may submit from this machine.",
    ),
    Refusal(
        r"unrecognized option|invalid option|requires an argument|ambiguous"
        r"|Invalid ((\S+ )?specification|numeric value|directive|time spec|argument|--\S+)"
        r"|Invalid \S+ (specification|value)|Task distribution",
        "Invalid --signal specification",
        "sbatch does not know an option or its value",
        "Check the option, above all what you gave with --sbatch; --dry-run shows the script.",
    ),
    Refusal(
        r"No space left|Unable to (create|write)|Disk quota|I/O error writing",
        "I/O error writing script/environment to file",
        "Slurm could not store the job",
        "A disk of the cluster's controller may be full: ask its administrators.",
    ),
    Refusal(
        r"Slurm internal error|generating job credential|Plugin initialization failed"
        r"|configuring interconnect|Duplicate job id",
        "Slurm internal error, contact system administrator",
        "Slurm itself failed",
        "Try again; if it stays, tell the site's administrators what Slurm said.",
    ),
)
OTHER = Refusal(
    r"Unspecified error",
    "Unspecified error",
    "Slurm refused the job",
    "A rule of the site may stand behind it: see what it says about jobs. --dry-run shows the "
    "script that sbatch was given.",
)
_NO_ACCOUNTING = re.compile(
    r"accounting storage is disabled|supported accounting_storage plugin", re.IGNORECASE
)
_REASON = re.compile(r"error|fatal|failed|failure|invalid|unrecognized|ambiguous", re.IGNORECASE)


def error_line(output: str) -> str:
    """The line of a command's output that tells the reason, without ``sbatch: error:``."""
    told = _telling_lines(output)
    line = ([line for line in told if not OTHER.fits(line)] or told or [""])[-1]
    return re.sub(r"^(\w+: )?((error|fatal): )?", "", line)


def is_unreached(output: str) -> bool:
    """Whether slurmctld cannot have seen the request, so that asking again is safe."""
    return DOWN.fits(output)


def is_unanswered(output: str) -> bool:
    """Whether the request may have been carried out although no answer came."""
    return UNANSWERED.fits(output)


def is_not_configured(output: str) -> bool:
    """Whether Slurm's commands are here without a cluster, which no waiting changes."""
    return NOT_CONFIGURED.fits(output)


def is_without_accounting(output: str) -> bool:
    """Whether sacct says that the cluster has no database, which no waiting changes."""
    return _NO_ACCOUNTING.search(output) is not None


def is_refusal(output: str) -> bool:
    """Whether it is plain that sbatch itself has made no job."""
    failed = "Batch job submission failed" in output
    return _kind(output) is not OTHER or (
        failed and not is_unreached(output) and not is_unanswered(output)
    )


def down(output: str = "") -> SubmitError:
    """slurmctld cannot be reached."""
    return _error(NOT_CONFIGURED if is_not_configured(output) else DOWN, output)


def unanswered(output: str, name: str, what: str = "") -> SubmitError:
    """sbatch gave no answer, because it took too long or for what else ``what`` tells."""
    message = f"{what}, so the job may or may not be in the queue" if what else UNANSWERED.message
    advice = UNANSWERED.advice.replace("the job's name", f"the job name {name!r}")
    return SubmitError(message, slurm_message=error_line(output), advice=advice)


def refused(output: str) -> SubmitError:
    """sbatch said no."""
    return _error(_kind(output), output)


def no_answer(output: str) -> SubmitError:
    """A question about jobs got no answer that can be used."""
    kind = _kind(output)
    if kind is not OTHER:
        return _error(kind, output)
    if is_unreached(output) or is_unanswered(output) or not output.strip():
        return down(output)
    return SubmitError(
        "Slurm's answer cannot be read",
        slurm_message=error_line(output),
        advice="See what `squeue` prints: a script in its place must pass its options on.",
    )


def _kind(output: str) -> Refusal:
    told = "\n".join(_telling_lines(output))
    return next((kind for kind in REFUSALS if kind.fits(told)), OTHER)


def _telling_lines(output: str) -> list[str]:
    """Those that tell of a failure; all, if none does. Banners may hold any word."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return [line for line in lines if _REASON.search(line)] or lines


def _error(kind: Refusal, output: str) -> SubmitError:
    return SubmitError(kind.message, slurm_message=error_line(output), advice=kind.advice)
