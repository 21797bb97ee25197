"""Each reason of Slurm 22.05 to 24.11 for a job to wait has words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.slurm.reasons import explain, is_for_ever


def words(text: str) -> list[str]:
    return text.split()


# The words that Slurm 22.05 to 24.11 can print, its families of limits apart.
ALONE = words("""
    None Priority Dependency Resources PartitionNodeLimit PartitionTimeLimit PartitionDown
    PartitionInactive JobHeldAdmin JobHeldUser BeginTime Licenses AssociationJobLimit
    AssociationResourceLimit AssociationTimeLimit Reservation ReqNodeNotAvail FrontEndDown
    SchedDefer NodeDown BadConstraints SystemFailure JobLaunchFailure NonZeroExitCode RaisedSignal
    TimeLimit InactiveLimit InvalidAccount InvalidQOS QOSUsageThreshold QOSJobLimit
    QOSResourceLimit QOSTimeLimit Cleaning Prolog QOSNotAllowed AccountNotAllowed
    DependencyNeverSatisfied JobHoldMaxRequeue JobArrayTaskLimit BurstBufferResources
    BurstBufferStageIn BurstBufferOperation DeadLine PartitionConfig AccountingPolicy FedJobLock
    OutOfMemory MaxMemPerLimit ReservationDeleted ReservationInvalid Constraints MaxPoweredUpNodes
    MpiPortsBusy
""")
OF_BOTH = words("""
    GrpCpuLimit GrpCPUMinutesLimit GrpCPURunMinutesLimit GrpJobsLimit GrpMemLimit GrpNodeLimit
    GrpSubmitJobsLimit GrpWallLimit MaxCpuPerJobLimit MaxCpuMinutesPerJobLimit MaxNodePerJobLimit
    MaxWallDurationPerJobLimit MaxCpuPerNode
""")
OF_QOS = words("""
    QOSMaxCpuPerUserLimit QOSMaxJobsPerUserLimit QOSMaxNodePerUserLimit
    QOSMaxSubmitJobPerUserLimit QOSMinCpuNotSatisfied QOSGrpMemoryMinutes QOSGrpMemoryRunMinutes
    QOSMaxMemoryPerJob QOSMaxMemoryPerNode QOSMaxMemoryPerUser QOSMaxMemoryMinutesPerJob
    QOSMinMemory MaxJobsPerAccount MaxSubmitJobsPerAccount MaxMemoryRunMinsPerUser
""")
OF_ACCOUNT = words("""
    AssocMaxJobsLimit AssocMaxSubmitJobLimit AssocGrpMemMinutes AssocGrpMemRunMinutes
    AssocMaxMemPerJob AssocMaxMemPerNode AssocMaxMemMinutesPerJob
""")
COUNTED = ("Unknown", "Node", "Energy", "GRES", "License", "BB", "Billing")
FAMILIES = [
    f"{whose}{family}".replace("%", what)
    for what in COUNTED
    for whose in ("QOS", "Assoc")
    for family in ("Grp%", "Grp%Minutes", "Grp%RunMinutes", "Max%PerJob", "Max%PerNode",
                   "Max%MinutesPerJob")
]  # fmt: skip
FAMILIES += [
    family.replace("%", what)
    for what in (*COUNTED, "Cpu", "Memory")
    for family in ("QOSMax%PerUser", "QOSMin%", "Max%PerAccount", "Max%RunMinsPerAccount",
                   "Max%RunMinsPerUser")
]  # fmt: skip
KNOWN = [
    *ALONE,
    *(whose + limit for whose in ("QOS", "Assoc") for limit in OF_BOTH),
    *OF_QOS,
    *OF_ACCOUNT,
    *FAMILIES,
]


def test_each_known_reason_has_words() -> None:
    assert len(set(KNOWN)) > 200
    assert [reason for reason in KNOWN if explain(reason) in ("", reason)] == []


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("QOSGrpGRES", "all jobs of your QOS together are at the limit that your QOS has for GPUs"),
        ("AssocMaxWallDurationPerJobLimit", "more run time than your account allows"),
        ("QOSMaxNodePerUserLimit", "your jobs together are at the limit"),
        ("MaxGRESRunMinsPerAccount", "the jobs of your account together"),
        ("AssocGrpCPURunMinutesLimit", "CPUs x minutes"),
        ("QOSMinGRES", "less GPUs"),
        ("ReqNodeNotAvail, UnavailableNodes:node[1-3]", "`sinfo -R`"),
        ("ReqNodeNotAvail,_Reserved_for_maintenance", "reserved"),
        (
            "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority",
            "partition of higher priority",
        ),
        ("launch failed requeued held", "scontrol release"),
    ],
)
def test_what_it_tells(reason: str, told: str) -> None:
    assert told in explain(reason)


@given(st.text())
def test_what_is_not_known_has_no_words(reason: str) -> None:
    assert explain(f"X{reason}") == ""
    assert not is_for_ever(f"X{reason}")
