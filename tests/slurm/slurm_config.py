"""Settings, nodes and configuration files of a test cluster."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ClusterSettings:
    """Settings of a cluster; the times are Slurm's, short enough for tests.

    Args:
        slurmd_timeout_s: a node that does not respond is DOWN after about two and a half times this.
        kill_wait_s: between SIGTERM and SIGKILL of a cancelled job.
        preempt_user_signal: the signal of `--signal` is also sent at preemption.
        requeue_allowed: JobRequeue: the default of --requeue.
        min_job_age_s: how long slurmctld keeps an ended job.
        message_timeout_s: how long clients wait for a response.
        accounting: start mariadbd and slurmdbd too, so that sacct works.
        warm_tasks: agents are forks of the tests' server where that makes no difference but for the time.
        accounting_enforced: unknown accounts and QOS are refused.
    """

    nodes: int = 4
    gpus_per_node: int = 4
    cpus_per_node: int = 8
    memory_mb_per_node: int = 4000
    slurmd_timeout_s: int = 10
    kill_wait_s: int = 10
    preempt_user_signal: bool = False
    requeue_allowed: bool = True
    min_job_age_s: int = 3600
    message_timeout_s: int = 5
    accounting: bool = False
    accounting_enforced: bool = False
    warm_tasks: bool = False


@dataclass(frozen=True)
class Node:
    """Name, host and address of a daemon."""

    name: str
    hostname: str
    address: str
    port: int


@dataclass(frozen=True)
class Layout:
    """Folder and daemons of a cluster."""

    folder: Path
    controller: Node
    nodes: Sequence[Node]
    dbd_port: int

    @property
    def task_prolog(self) -> Path:
        """What every task of a cluster with warm tasks runs first."""
        return self.at("warm", "prolog.sh")

    def at(self, *parts: str) -> Path:
        """A path in the folder."""
        return self.folder.joinpath(*parts)


def short_hostname() -> str:
    """Short host name, which slurmctld compares with SlurmctldHost."""
    return socket.gethostname().partition(".")[0]


def slurm_conf(settings: ClusterSettings, layout: Layout) -> str:
    """Text of slurm.conf."""
    parts = [_general(settings, layout), _times(settings, layout)]
    if settings.accounting:
        parts.append(_accounting(settings, layout))
    parts += [_node(settings, node) for node in layout.nodes]
    return "\n".join([*parts, _partitions(layout), ""])


def _general(settings: ClusterSettings, layout: Layout) -> str:
    folder, controller, user = layout.folder, layout.controller, getpass.getuser()
    # slurmd loads a cgroup plugin even if nothing uses it: see cgroup.conf.
    return f"""\
ClusterName=dev
SlurmctldHost={controller.hostname}({controller.address})
SlurmctldPort={controller.port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
GresTypes=gpu,nvme
ReturnToService=1
JobRequeue={int(settings.requeue_allowed)}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE"""


def _times(settings: ClusterSettings, layout: Layout) -> str:
    lines = f"""\
SchedulerParameters=bf_interval=1,sched_interval=2,batch_sched_delay=0,sched_min_interval=0
SlurmdTimeout={settings.slurmd_timeout_s}
KillWait={settings.kill_wait_s}
TCPTimeout=2
MessageTimeout={settings.message_timeout_s}
MinJobAge={settings.min_job_age_s}"""
    if settings.warm_tasks:
        lines += f"\nTaskProlog={layout.task_prolog}"
    if settings.preempt_user_signal:
        lines += "\nSlurmctldParameters=preempt_send_user_signal"
    return lines


def _accounting(settings: ClusterSettings, layout: Layout) -> str:
    # AuthInfo does not apply to this connection: the munge socket is given as its password.
    enforce = "\nAccountingStorageEnforce=associations,qos,limits" if settings.accounting_enforced else ""
    return f"""\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={layout.dbd_port}
AccountingStoragePass={layout.folder}/munge/socket{enforce}"""


def _node(settings: ClusterSettings, node: Node) -> str:
    # A second kind beside the GPUs, as sites have for node-local disks: counted, without devices.
    kinds = [*([f"gpu:{settings.gpus_per_node}"] if settings.gpus_per_node else []), "nvme:2"]
    gres = f" Gres={','.join(kinds)}"
    return (
        f"NodeName={node.name} NodeHostname={node.hostname} NodeAddr={node.address} Port={node.port}"
        f" CPUs={settings.cpus_per_node} RealMemory={settings.memory_mb_per_node}{gres} State=UNKNOWN"
    )


def _partitions(layout: Layout) -> str:
    everywhere = f"Nodes={','.join(node.name for node in layout.nodes)} State=UP"
    return f"""\
PartitionName=main {everywhere} Default=YES PriorityTier=1 GraceTime=0
PartitionName=low5 {everywhere} PriorityTier=1 GraceTime=5
PartitionName=low15 {everywhere} PriorityTier=1 GraceTime=15
PartitionName=high {everywhere} PriorityTier=10 PreemptMode=OFF
PartitionName=tiny Nodes={layout.nodes[-1].name} State=UP PriorityTier=1 MaxTime=2"""


def slurmdbd_conf(layout: Layout) -> str:
    """Text of slurmdbd.conf; the file must be readable by its owner only."""
    folder, user = layout.folder, getpass.getuser()
    return f"""\
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
DbdHost={layout.controller.hostname}
DbdAddr=127.0.0.1
DbdPort={layout.dbd_port}
SlurmUser={user}
PidFile={folder}/run/slurmdbd.pid
LogFile={folder}/log/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser={user}
StorageLoc=slurm_acct
"""


def gres_conf(devices: Sequence[Path]) -> str:
    """Text of gres.conf: the same GPUs on every node, and two node-local disks."""
    return "".join([*(f"Name=gpu File={device}\n" for device in devices), "Name=nvme Count=2\n"])


# Detection fails in containers; the plugin is not used with linuxproc and task/none.
CGROUP_CONF = "CgroupPlugin=cgroup/v1\n"
