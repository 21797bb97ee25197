"""A lab's configuration files as text: pure functions of what the lab is and where it lies."""

from __future__ import annotations

from dataclasses import dataclass

from slurmmesh.lab.spec import LabSpec, Layout


@dataclass(frozen=True)
class Site:
    """The concrete place of a lab: user, ports and addresses.

    Attributes:
        user: the name of the account that runs all daemons.
        controller: the IPv4 address of slurmctld.
        node_addresses, node_hostnames, node_ports: one of each per node, in order.
        dbd_port: None without accounting.
        first_job_id: where the lab begins to count jobs.
    """

    user: str
    controller: str
    slurmctld_port: int
    node_addresses: tuple[str, ...]
    node_hostnames: tuple[str, ...]
    node_ports: tuple[int, ...]
    dbd_port: int | None = None
    first_job_id: int = 1


def slurm_conf(spec: LabSpec, layout: Layout, site: Site) -> str:
    """The text of ``slurm.conf``; ``spec.settings`` replace the lab's own settings."""
    settings = _settings(spec, layout, site)
    own_names = {name.lower(): name for name in settings}
    for name, value in spec.settings.items():
        settings[own_names.get(name.lower(), name)] = value
    lines = [f"{name}={value}" for name, value in settings.items()]
    lines += [_node_line(spec, site, index) for index in range(spec.nodes)]
    lines += [
        "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=10",
        "PartitionName=low Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1 "
        "PreemptMode=REQUEUE GraceTime=5",
    ]
    return "\n".join(lines) + "\n"


def _settings(spec: LabSpec, layout: Layout, site: Site) -> dict[str, str]:
    # slurmctld takes "localhost" as this machine under whatever name it has, and with an
    # address given nobody resolves anything: a host name that does not resolve, or resolves
    # to 127.0.1.1, does no harm.
    settings = {
        "ClusterName": "lab",
        "SlurmctldHost": f"localhost({site.controller})",
        "SlurmUser": site.user,
        "SlurmdUser": site.user,
        "SlurmctldPort": str(site.slurmctld_port),
        "SlurmctldPidFile": f"{layout.run}/slurmctld.pid",
        "SlurmctldLogFile": f"{layout.log}/slurmctld.log",
        "SlurmdPidFile": f"{layout.run}/slurmd.%n.pid",
        "SlurmdLogFile": f"{layout.log}/slurmd.%n.log",
        "SlurmdSpoolDir": f"{layout.spool}/%n",
        "StateSaveLocation": str(layout.state),
        "AuthType": "auth/munge",
        # Short-lived credentials: with the default a requeued job waits two minutes.
        "AuthInfo": f"socket={layout.munge_socket},cred_expire=5",
        "CredType": "cred/munge",
        "ProctrackType": "proctrack/linuxproc",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        # Lets a small machine pose as nodes of many cores.
        "SlurmdParameters": "config_overrides",
        "SlurmctldParameters": "preempt_send_user_signal",
        "ReturnToService": "2",
        "SchedulerType": "sched/backfill",
        "SchedulerParameters": "sched_interval=1,bf_interval=1,batch_sched_delay=0,"
        "sched_min_interval=0,default_queue_depth=1000,max_rpc_cnt=0",
        "SlurmctldTimeout": "10",
        "SlurmdTimeout": str(spec.slurmd_timeout_s),
        "MessageTimeout": "5",
        "TCPTimeout": "2",
        "InactiveLimit": "0",
        "KillWait": "2",
        "WaitTime": "0",
        "MinJobAge": "300",
        "CompleteWait": "0",
        "UnkillableStepTimeout": "10",
        "JobAcctGatherType": "jobacct_gather/linux",
        "JobAcctGatherFrequency": "0",
        "JobCompType": "jobcomp/filetxt",
        "JobCompLoc": f"{layout.log}/jobcomp.txt",
        "FirstJobId": str(site.first_job_id),
        "MaxArraySize": "1001",
        "JobRequeue": "1",
        "PreemptType": "preempt/partition_prio",
        "PreemptMode": "REQUEUE",
        "SlurmctldDebug": "info",
        "SlurmdDebug": "info",
        "MailProg": "/bin/true",
        "TmpFS": "/tmp",
    }
    if spec.gpus:
        settings["GresTypes"] = "gpu"
    if site.dbd_port is not None:
        settings.update(
            AccountingStorageType="accounting_storage/slurmdbd",
            AccountingStorageHost="127.0.0.1",
            AccountingStoragePort=str(site.dbd_port),
            AccountingStoragePass=str(layout.munge_socket),
            AccountingStoreFlags="job_comment",
        )
    return settings


def _node_line(spec: LabSpec, site: Site, index: int) -> str:
    sockets = 2 if spec.cpus % 2 == 0 else 1
    line = (
        f"NodeName={spec.node_names[index]} NodeHostname={site.node_hostnames[index]} "
        f"NodeAddr={site.node_addresses[index]} Port={site.node_ports[index]} "
        f"CPUs={spec.cpus} Boards=1 SocketsPerBoard={sockets} "
        f"CoresPerSocket={spec.cpus // sockets} ThreadsPerCore=1 RealMemory=1000000 "
    )
    if spec.gpus:
        line += f"Gres=gpu:{spec.gpu_type}:{spec.gpus} "
    return line + "State=UNKNOWN"


def gres_conf(spec: LabSpec, layout: Layout) -> str:
    """The text of ``gres.conf``: pretended devices, with the vendor's visibility variable.

    Types that begin with "mi" are AMD's (``ROCR_VISIBLE_DEVICES``), all others Nvidia's
    (``CUDA_VISIBLE_DEVICES``).
    """
    if not spec.gpus:
        return ""
    last = f"[0-{spec.gpus - 1}]" if spec.gpus > 1 else "0"
    vendor = "amd_gpu_env" if spec.gpu_type.lower().startswith("mi") else "nvidia_gpu_env"
    nodes = f"node[1-{spec.nodes}]" if spec.nodes > 1 else "node1"
    return (
        "AutoDetect=off\n"
        f"NodeName={nodes} Name=gpu Type={spec.gpu_type} "
        f"File={layout.run}/gpu{last} Flags={vendor}\n"
    )


def cgroup_conf(version: tuple[int, int]) -> str:
    """The text of ``cgroup.conf`` for a Slurm version such as (22, 5); empty: write none.

    The lab needs no cgroup, but slurmd loads a cgroup plugin anyway, and the one for cgroup v2
    fails where no systemd delegates to it. Where Slurm knows no way to switch it off, the plugin
    for cgroup v1 is the one that asks nothing of the machine.
    """
    if version >= (23, 2):
        return "CgroupPlugin=disabled\n"
    if version >= (22, 5):
        return "CgroupPlugin=cgroup/v1\n"
    return ""


def slurmdbd_conf(layout: Layout, site: Site) -> str:
    """The text of ``slurmdbd.conf``: MariaDB behind a socket in the lab's own folder."""
    settings = {
        "DbdHost": "localhost",
        "DbdAddr": "127.0.0.1",
        "DbdPort": str(site.dbd_port),
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={layout.munge_socket},cred_expire=5",
        "SlurmUser": site.user,
        "LogFile": f"{layout.log}/slurmdbd.log",
        "PidFile": f"{layout.run}/slurmdbd.pid",
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "localhost",
        "StorageUser": "root",
        "StorageLoc": "slurm_acct_db",
        "CommitDelay": "1",
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())
