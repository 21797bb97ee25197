"""Slurm's words for why a job waits, put into a user's: what it is, and what can be done."""

from __future__ import annotations

import re

# A job that waits for one of these will wait for ever unless somebody changes it or the cluster.
_FOR_EVER = {
    "PartitionConfig": "its partition is not set up for what it asks for, such as CPUs per node",
    "PartitionTimeLimit": "it asks for more time than its partition allows",
    "BadConstraints": "no node has what it asks for",
    "AccountNotAllowed": "its account may not use the partition",
    "QOSNotAllowed": "its QOS may not use the partition",
    "InvalidAccount": "its account is not valid",
    "InvalidQOS": "its QOS is not valid",
    "DependencyNeverSatisfied": "a job that it depends on did not end as it should",
}
_WAITS = {
    "None": "Slurm has not looked at it yet",
    "SchedDefer": "Slurm looks at it with its next round",
    "Priority": "jobs of higher priority are before it",
    "Resources": "the nodes it needs are busy",
    "Licenses": "the licenses it needs are in use; `scontrol show licenses` shows by how many",
    "MpiPortsBusy": "the ports it needs for MPI are in use",
    "Dependency": "it depends on another job",
    "BeginTime": "its begin time is not yet there",
    "JobArrayTaskLimit": "as many tasks of its array run as it allows at once (%N of --array)",
    "JobHeldUser": "it is held; `scontrol release` lets it go",
    "JobHeldAdmin": "an administrator holds it; ask them",
    "JobHoldMaxRequeue": "it was started again as often as the site allows, and is held; see why "
    "it failed, then `scontrol release` lets it go",
    "PartitionNodeLimit": "it asks for more nodes than its partition has, allows, or has up now",
    "PartitionDown": "its partition takes no jobs to run now; `sinfo` shows which do",
    "PartitionInactive": "its partition is switched off; `sinfo` shows which are on",
    "ReqNodeNotAvail": "a node that it needs is down, drained or reserved; `sinfo -R` tells why",
    "Constraints": "no node has what it asks for now; `sinfo -N -o '%N %f %G'` shows what there is",
    "NodeDown": "a node that it needs is down; `sinfo -R` tells why",
    "FrontEndDown": "the front end that would start it is down",
    "MaxPoweredUpNodes": "as many nodes are powered up as the cluster allows",
    "Reservation": "its reservation has not begun, or is full",
    "ReservationDeleted": "its reservation was deleted; give another, or cancel it",
    "ReservationInvalid": "its reservation is not valid any more; give another, or cancel it",
    "MaxMemPerLimit": "it asks for more memory for each CPU or node than is allowed",
    "Prolog": "its nodes are being prepared (prolog)",
    "Cleaning": "what it left on its nodes is being cleaned up before it starts again",
    "BurstBufferResources": "there is no room in the burst buffer",
    "BurstBufferStageIn": "its data is on the way to the burst buffer",
    "BurstBufferOperation": "a transfer of its burst buffer failed",
    "FedJobLock": "the clusters of the federation settle which of them starts it",
    "AccountingPolicy": "a limit of your account or QOS holds it back",
    "AssociationJobLimit": "you have as many jobs running as your account allows",
    "AssociationResourceLimit": "your account's jobs use as much as it allows",
    "AssociationTimeLimit": "your account's time is used up",
    "QOSJobLimit": "you have as many jobs running as your QOS allows",
    "QOSResourceLimit": "the jobs of your QOS use as much as it allows",
    "QOSTimeLimit": "the time of your QOS is used up",
    "QOSUsageThreshold": "your QOS was used so much that its threshold holds new jobs back",
    "QOSMaxJobsPerUserLimit": "you have as many jobs running as your QOS allows",
    "AssocMaxJobsLimit": "you have as many jobs running as your account allows",
    # What a job that ended, or failed to start and waits for another try, is left with.
    "SystemFailure": "something in Slurm failed; ask the site's administrators",
    "JobLaunchFailure": "it could not be launched; its nodes may be ill",
    "NonZeroExitCode": "its script failed",
    "RaisedSignal": "its script was ended by a signal",
    "TimeLimit": "it reached its time limit",
    "InactiveLimit": "it did nothing for as long as the site allows",
    "OutOfMemory": "it ran out of memory",
    "DeadLine": "it cannot end before its deadline any more",
}
# Words of Slurm's that are sentences, with their blanks as squeue may write them.
_SENTENCES = {
    "nodes required for job are": "nodes that it needs are down, drained, or reserved for a "
    "partition of higher priority; `sinfo -R` tells why",
    "launch failed requeued held": "it could not be launched, and is held; `scontrol release` "
    "lets it try again",
    "job requeued in held state": "it was put back into the queue and is held; `scontrol release` "
    "lets it go",
}
# The limits of a QOS, or of the association of user and account, come in families.
_LIMIT = re.compile(
    r"(?P<whose>QOS|Assoc|)(?P<how>Grp|Max|Min)"
    r"(?P<what>Cpu|CPU|Mem|Memory|Node|GRES|License|BB|Billing|Energy|Unknown"
    r"|Jobs|SubmitJobs?|Wall|WallDuration)"
    r"(?P<time>Minutes|RunMinutes|RunMins)?(?:Per(?P<per>Job|Node|User|Account))?"
    r"(?:Limit|NotSatisfied)?"
)
_AMOUNTS = {
    "cpu": "CPUs",
    "mem": "memory",
    "memory": "memory",
    "node": "nodes",
    "gres": "GPUs or other generic resources",
    "license": "licenses",
    "bb": "burst buffer",
    "billing": "billing units",
    "energy": "energy",
    "unknown": "some resource",
    "jobs": "jobs",
    "submitjob": "jobs in the queue",
    "submitjobs": "jobs in the queue",
    "wall": "run time",
    "wallduration": "run time",
}
_LIMITS_SHOWN = {
    "QOS": "`sacctmgr show qos` shows its limits",
    "Assoc": "`sacctmgr show assoc` shows its limits",
}


def explain(reason: str) -> str:
    """What a reason means, in words; empty if it is none that Slurm 22.05 to 24.11 have."""
    word = reason.partition(",")[0].strip().strip("()")
    if words := _FOR_EVER.get(word) or _WAITS.get(word):
        return words
    sentence = word.replace("_", " ").lower()
    for start, words in _SENTENCES.items():
        if sentence.startswith(start):
            return words
    match = _LIMIT.fullmatch(word)
    return _explain_limit(match) if match else ""


def is_for_ever(reason: str) -> bool:
    """Whether a job with this reason waits for something that time alone will not bring."""
    return reason.partition(",")[0].strip() in _FOR_EVER


def _explain_limit(limit: re.Match[str]) -> str:
    whose = "your account" if limit["whose"] == "Assoc" else "your QOS"
    what = _AMOUNTS[limit["what"].lower()]
    if limit["time"]:
        what = f"{what} x minutes"
    shown = _LIMITS_SHOWN[limit["whose"] or "QOS"]
    if limit["how"] == "Min":
        return f"it asks for less {what} than {whose} wants of a job; {shown}"
    if limit["how"] == "Max" and limit["per"] in ("Job", "Node", None):
        where = "on a node " if limit["per"] == "Node" else ""
        if limit["what"].startswith("Submit"):
            return f"you have as many {what} as {whose} allows; {shown}"
        return f"it asks for more {what} {where}than {whose} allows; {shown}"
    together = {"User": "your jobs", "Account": "the jobs of your account"}
    jobs = together.get(limit["per"], f"all jobs of {whose}")
    return f"{jobs} together are at the limit that {whose} has for {what}; {shown}"
