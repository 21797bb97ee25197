"""What Slurm says when it makes no job, and what users are told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slurmmesh.slurm import refusals
from slurmmesh.slurm.options import OPTIONS
from slurmmesh.slurm.refusals import DOWN, OTHER, REFUSALS, UNANSWERED, Refusal

ALL = (DOWN, UNANSWERED, *REFUSALS, OTHER)
DOCS = Path(__file__).parents[2] / "docs/exit-codes.md"


@pytest.mark.parametrize("kind", REFUSALS, ids=[kind.message for kind in REFUSALS])
def test_each_is_known_by_its_own_example(kind: Refusal) -> None:
    error = refusals.refused(f"sbatch: error: Batch job submission failed: {kind.says}")
    assert (error.message, error.advice) == (kind.message, kind.advice)
    assert error.slurm_message.endswith(kind.says)
    assert error.exit_code == 3


# What sbatch of 22.05 really printed, and what newer ones have beside it.
@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("error: invalid partition specified: x\nerror: Batch job submission failed: Invalid "
         "partition name specified", "knows no such partition"),
        ("error: Memory specification can not be satisfied\nerror: Batch job submission failed: "
         "Requested node configuration is not available", "so much memory"),
        ("error: CPU count per node can not be satisfied\nerror: Batch job submission failed: "
         "Requested node configuration is not available", "no such nodes"),
        ("Invalid time specification (pos=0): yesterday\nsbatch: error: Invalid --begin "
         "specification", "an option or its value"),
        ('error: Invalid numeric value "0" for --ntasks.', "an option or its value"),
        ("error: Invalid --mem specification", "an option or its value"),
        ("sbatch: unrecognized option '--foo'\nTry \"sbatch --help\" for more information",
         "an option or its value"),
        ("error: Requested mem_per_tres=gres:gpu:10 but did not request any GPU.\nerror: Invalid "
         "generic resource (gres) specification", "no such GPUs"),
        ("error: Problem talking to database\nerror: 'x' can't be reached now, or it is an "
         "invalid entry for --cluster.  Use 'sacctmgr list clusters'", "no such cluster"),
        ("error: This does not look like a batch script.  The first\nerror: line must start with "
         "#! followed by the path to an interpreter.", "no batch script"),
        ("error: Batch script contains DOS line breaks (\\r\\n)", "no batch script"),
        ("allocation failure: Requested node configuration is not available", "no such nodes"),
        ("error: Munge encode failed: Failed to access \"/run/munge\": No such file or directory\n"
         "error: Batch job submission failed: Protocol authentication error", "who you are"),
        ("error: QOSMaxSubmitJobPerUserLimit\nerror: Batch job submission failed: Job violates "
         "accounting/QOS policy (job submit limit, user's size and/or time limits)",
         "such a large"),
        ("error: AssocGrpCPUMinutesLimit", "so many jobs"),
        ("error: Batch job submission failed: No partition specified or system default partition",
         "no default one"),
        ("error: Batch job submission failed: User's group not permitted to use this partition",
         "may not use this partition"),
        ("error: Batch job submission failed: Access denied to requested reservation",
         "no such reservation"),
        ("error: Batch job submission failed: Requested nodes not in this partition",
         "in another partition"),
        ("error: Batch job submission failed: Circular job dependency", "wait for these others"),
        ("error: Batch job submission failed: Invalid Trackable RESource (TRES) specification",
         "no such GPUs"),
        ("error: Batch job submission failed: Requested GRES option unsupported by configured "
         "SelectType plugin", "no such GPUs"),
        ("error: Batch job submission failed: Requested topology configuration is not available",
         "no such nodes"),
        ("error: Batch job submission failed: Invalid --nice value", "an option or its value"),
        ("error: Batch job submission failed: Job --batch option is invalid or not a subset of "
         "--constraint", "has these features"),
        ("error: Batch job submission failed: Required partition not available (inactive or "
         "drain)", "takes no jobs now"),
        ("Welcome! Dependency of licenses on munge is busy.\nerror: Batch job submission failed: "
         "Invalid qos specification", "this QOS"),
    ],
)  # fmt: skip
def test_what_sbatch_says(said: str, message: str) -> None:
    error = refusals.refused("\n".join(f"sbatch: {line}" for line in said.splitlines()))
    assert message in error.message
    assert refusals.is_refusal(said)


def test_the_words_of_the_site_are_quoted() -> None:
    said = (
        "sbatch: error: Projects without a coffee machine may not submit\n"
        "sbatch: error: Batch job submission failed: Unspecified error\n"
    )
    error = refusals.refused(said)
    assert error.message == OTHER.message
    assert error.slurm_message == "Projects without a coffee machine may not submit"
    assert refusals.is_refusal(said)


@pytest.mark.parametrize(
    ("said", "unreached", "unanswered"),
    [
        ("Unable to contact slurm controller (connect failure)", True, False),
        ("Slurm temporarily unable to accept job, sleeping and retrying.", True, False),
        ("Resource temporarily unavailable", True, False),
        ("Rate limit exceeded, please retry momentarily", True, False),
        ("Slurm backup controller in standby mode", True, False),
        ("Controller is in standby mode, try a different controller", True, False),
        ("Socket timed out on send/recv operation", False, True),
        ("Zero Bytes were transmitted or received", False, True),
        ("Invalid qos specification", False, False),
    ],
)
def test_whether_asking_again_is_safe(said: str, unreached: bool, unanswered: bool) -> None:
    said = f"sbatch: error: Batch job submission failed: {said}"
    assert refusals.is_unreached(said) is unreached
    assert refusals.is_unanswered(said) is unanswered
    assert refusals.is_refusal(said) is not (unreached or unanswered)


def test_advice_names_options_that_there_are() -> None:
    own = {"spares", "template", "sbatch", "cluster", "dry-run"}
    known = own | {option.name for option in OPTIONS.values()} | {"immediate"}
    for kind in ALL:
        plain = re.sub(r"`[^`]*`", "", kind.advice)
        mentioned = set(re.findall(r"(?<![\w=-])--([a-z][a-z-]+)", plain))
        assert mentioned <= known, kind


def test_the_documentation_has_the_same_table() -> None:
    lines = [line for line in DOCS.read_text().splitlines() if line.startswith("| ")]
    wanted = [f"| {kind.says} | {kind.message} | {kind.advice.replace('|', chr(92) + '|')} |"
              for kind in ALL]  # fmt: skip
    missing = [line for line in wanted if line not in lines]
    assert not missing, "in docs/exit-codes.md these rows are missing:\n" + "\n".join(missing)
    start = lines.index(wanted[0])
    assert lines[start : start + len(wanted)] == wanted
