"""The configuration files of a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from slurm.devcluster.files.folder import ClusterFolder
from slurm.devcluster.options import FAKE_GPUS
from slurm.devcluster.plan import ClusterPlan, NodePlan

# Keys that stand in slurm.conf more than once
_REPEATED = ("NodeName", "PartitionName", "NodeSet", "DownNodes")


def files(folder: ClusterFolder, plan: ClusterPlan) -> dict[str, str]:
    """Returns the texts by file name."""
    texts = {
        "slurm.conf": slurm_conf(folder, plan),
        "gres.conf": gres_conf(plan.options.gpus),
        "cgroup.conf": _CGROUP_CONF,
        "hosts": hosts(plan),
    }
    if plan.options.accounting:
        texts["slurmdbd.conf"] = slurmdbd_conf(folder, plan)
    return texts


def slurm_conf(folder: ClusterFolder, plan: ClusterPlan) -> str:
    sections = (_cluster(plan), _places(folder), _jobs(plan), _accounting(folder, plan))
    lines = [f"{key}={value}" for section in sections for key, value in section.items()]
    lines[0:0] = [f"AuthInfo={_auth_info(folder, plan)}"]
    lines += [_node(plan, node) for node in plan.nodes]
    lines += _partitions(plan.options.grace_s)
    return "\n".join(with_settings(lines, plan.options.settings)) + "\n"


def with_settings(lines: Iterable[str], settings: Iterable[str]) -> list[str]:
    """The lines, each setting in place of the one with its key; else before nodes and partitions,
    or last if it is one of these itself."""
    changed = list(lines)
    for setting in settings:
        key = setting.partition("=")[0].lower()
        if key in map(str.lower, _REPEATED):
            changed.append(setting)
            continue
        changed = [line for line in changed if line.partition("=")[0].lower() != key]
        changed.insert(0, setting)
    return changed


def gres_conf(gpus: int) -> str:
    # a Count= alone registers none: there has to be a device file for each
    files = f"Name=gpu File={','.join(FAKE_GPUS[:gpus])}\n" if gpus else ""
    return f"AutoDetect=off\n{files}"


def hosts(plan: ClusterPlan) -> str:
    """Returns the /etc/hosts of the nodes in the namespaces form."""
    named = {plan.hostname: plan.controller_address}
    named |= {node.name: node.address for node in plan.nodes}
    lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in named.items())]
    return "\n".join(lines) + "\n"


def slurmdbd_conf(folder: ClusterFolder, plan: ClusterPlan) -> str:
    """Returns slurmdbd.conf. The database knows its user by the socket, without a password."""
    values = {
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={folder.munge_socket}",
        "DbdHost": plan.hostname,
        "DbdAddr": plan.controller_address,
        "DbdPort": plan.accounting_port,
        "SlurmUser": plan.user,
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "localhost",
        "StorageUser": plan.user,
        "StorageLoc": "slurm",
        "LogFile": folder.logs / "slurmdbd.log",
        "PidFile": folder.run / "slurmdbd.pid",
        "DebugLevel": "info",
        **({"CommunicationParameters": "NoInAddrAny"} if plan.network or plan.loopback else {}),
        **_plugins(plan),
    }
    return "".join(f"{key}={value}\n" for key, value in values.items())


def _auth_info(folder: ClusterFolder, plan: ClusterPlan) -> str:
    expire = plan.options.cred_expire_s
    return f"socket={folder.munge_socket}" + ("" if expire is None else f",cred_expire={expire}")


def _cluster(plan: ClusterPlan) -> Mapping[str, object]:
    # Slurm listens where its host's name leads; nodes with namespaces need no such care, and have
    # to reach an srun on this machine
    private = ["NoCtldInAddrAny"] if plan.network or plan.loopback else []
    private += ["NoInAddrAny"] if plan.loopback and not plan.network else []
    return {
        "ClusterName": "devcluster",
        "SlurmctldHost": f"{plan.hostname}({plan.controller_address})",
        "SlurmctldPort": plan.controller_port,
        "SlurmUser": plan.user,
        "SlurmdUser": plan.user,
        "AuthType": "auth/munge",
        "CredType": "cred/munge",
        **({"CommunicationParameters": ",".join(private)} if private else {}),
        "ReturnToService": 2,  # a node is taken back whenever it registers
        "SlurmctldTimeout": 30,
        "SlurmdTimeout": plan.options.slurmd_timeout_s,
        "SlurmdParameters": "config_overrides",  # nodes have what is said, not what is there
        "SlurmctldDebug": "verbose",
        "SlurmdDebug": "verbose",
        "MailProg": "/bin/true",
        "MpiDefault": "none",
        "GresTypes": "gpu",
        **_plugins(plan),
    }


def _plugins(plan: ClusterPlan) -> Mapping[str, object]:
    """Returns where the plugins of another Slurm are, which looks where its packages put them."""
    if plan.options.slurm is None:
        return {}
    found = sorted(Path(plan.options.slurm).glob("lib*/**/select_cons_tres.so"))
    return {"PluginDir": found[0].parent} if found else {}


def _places(folder: ClusterFolder) -> Mapping[str, object]:
    return {
        "StateSaveLocation": folder.state,
        "SlurmdSpoolDir": f"{folder.spool}/%n",
        "SlurmctldPidFile": folder.run / "slurmctld.pid",
        "SlurmdPidFile": f"{folder.run}/slurmd-%n.pid",
        "SlurmctldLogFile": folder.logs / "slurmctld.log",
        "SlurmdLogFile": folder.slurmd_log("%n"),
        "JobCompType": "jobcomp/filetxt",
        "JobCompLoc": folder.logs / "jobcomp.txt",
    }


def _jobs(plan: ClusterPlan) -> Mapping[str, object]:
    by_cgroup = plan.has_cgroups
    user_signal = {"SlurmctldParameters": "preempt_send_user_signal"}
    return {
        "ProctrackType": "proctrack/cgroup" if by_cgroup else "proctrack/linuxproc",
        "TaskPlugin": "task/cgroup" if by_cgroup else "task/none",
        "JobAcctGatherType": "jobacct_gather/cgroup" if by_cgroup else "jobacct_gather/linux",
        "JobAcctGatherFrequency": "task=2",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory",
        "DefMemPerCPU": max(1, plan.memory_mib // plan.options.cpus),
        "SchedulerType": "sched/backfill",
        "SchedulerParameters": "bf_interval=1,sched_interval=2,bf_continue",
        "KillWait": 5,
        "CompleteWait": 0,
        "MinJobAge": 300,
        "JobRequeue": 1,
        "PreemptType": "preempt/partition_prio",
        "PreemptMode": "REQUEUE",
        **(user_signal if plan.options.user_signal else {}),
    }


def _accounting(folder: ClusterFolder, plan: ClusterPlan) -> Mapping[str, object]:
    if not plan.options.accounting:
        return {"AccountingStorageType": "accounting_storage/none"}
    return {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": plan.controller_address,
        "AccountingStoragePort": plan.accounting_port,
        "AccountingStoragePass": folder.munge_socket,  # the socket, and not in AuthInfo
        **({"AccountingStorageTRES": "gres/gpu"} if plan.options.gpus else {}),
    }


def _node(plan: ClusterPlan, node: NodePlan) -> str:
    values = {
        "NodeName": node.name,
        **({} if plan.network else {"NodeHostname": plan.hostname}),
        "NodeAddr": node.address,
        "Port": node.port,
        "CPUs": plan.options.cpus,
        "RealMemory": plan.memory_mib,
        **({"Gres": f"gpu:{plan.options.gpus}"} if plan.options.gpus else {}),
    }
    return " ".join(f"{key}={value}" for key, value in values.items())


def _partitions(grace_s: int) -> list[str]:
    both = "Nodes=ALL MaxTime=INFINITE State=UP"
    return [
        f"PartitionName=low {both} Default=YES PriorityTier=1 PreemptMode=REQUEUE "
        f"GraceTime={grace_s}",
        f"PartitionName=high {both} PriorityTier=10 PreemptMode=OFF",
    ]


_CGROUP_CONF = """\
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
ConstrainRAMSpace=yes
ConstrainSwapSpace=yes
"""
