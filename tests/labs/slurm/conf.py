"""The configuration of the lab: many nodes on one host, fake GPUs, nothing that needs cgroups."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Shape:
    """What a lab looks like; ``extra`` are further lines of slurm.conf.

    ``accounting``: with a slurmdbd of its own; else what a job is booked to is not looked at.
    ``rest``: with a slurmrestd, which takes accounting too before 23.02. ``ahead``: by so many
    seconds the clock of all of its daemons is ahead of this machine's.
    """

    nodes: int = 5
    gpus: int = 8
    gpu_type: str = "h100"
    cpus: int = 64
    memory_mib: int = 512_000
    accounting: bool = False
    rest: bool = False
    ahead: int = 0
    extra: tuple[str, ...] = field(default=())


SLURM_CONF = """\
ClusterName=rollcall-lab
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ctld_port}
SlurmdPort={spare_port}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={dir}/munge/munge.sock,cred_expire=5
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool/%n
SlurmctldPidFile={dir}/run/slurmctld.pid
SlurmdPidFile={dir}/run/slurmd-%n.pid
SlurmctldLogFile={dir}/log/slurmctld.log
SlurmdLogFile={dir}/log/slurmd-%n.log
SlurmctldDebug=info
SlurmdDebug=info
DebugFlags=NO_CONF_HASH
# The nodes claim more than the host has.
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
PropagateResourceLimits=NONE
ReturnToService=2
# Nobody beyond this host can reach the lab.
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmctldTimeout=30
SlurmdTimeout=60
MessageTimeout=10
KillWait=2
MinJobAge=300
CompleteWait=0
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,bf_continue,batch_sched_delay=0,sched_interval=5,sched_min_interval=100000
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=100
GresTypes=gpu
PriorityType=priority/multifactor
PriorityWeightAge=1000
JobCompType=jobcomp/none
"""

NO_ACCOUNTING = "AccountingStorageType=accounting_storage/none"

# The way to slurmdbd does not use AuthInfo: its munge socket stands here as the password.
ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort={dbd_port}
AccountingStoragePass={dir}/munge/munge.sock
AccountingStorageEnforce=associations,limits,qos
AccountingStorageTRES=gres/gpu,gres/gpu:{gpu_type}"""

JWT = """\
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key={dir}/jwt/key"""

SLURMDBD_CONF = """\
AuthType=auth/munge
AuthInfo=socket={dir}/munge/munge.sock
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={dbd_port}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmUser={user}
DebugLevel=info
LogFile={dir}/log/slurmdbd.log
PidFile={dir}/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser={user}
StorageLoc=slurm_acct_db
"""

NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} Boards=1"
    " SocketsPerBoard=1 CoresPerSocket={cpus} ThreadsPerCore=1 RealMemory={memory}"
    " Gres=gpu:{type}:{gpus} State=UNKNOWN"
)


def names_of(shape: Shape) -> list[str]:
    """Return the names of a lab's nodes."""
    return [f"gpu{number}" for number in range(1, shape.nodes + 1)]


def _cgroup_plugin(version: str) -> str:
    """Return what slurmd of this version loads without touching a cgroup.

    It always loads one: the first version of the plugin does nothing until it is asked to, and
    ``disabled`` is known only to later versions.
    """
    year = version.split(".")[0]
    return "disabled" if year.isdigit() and int(year) >= 23 else "cgroup/v1"


def _make_devices(folder: Path, count: int) -> None:
    """Lay out the files that stand for GPUs: null devices where that is allowed, else empty files.

    With empty files Slurm counts and numbers the GPUs, but CUDA_VISIBLE_DEVICES stays empty.
    """
    folder.mkdir(exist_ok=True)
    for number in range(count):
        path = folder / f"nvidia{number}"
        if path.exists():
            continue
        try:
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        except PermissionError:
            path.touch()


def write_conf(
    folder: Path, shape: Shape, *, host: str, user: str, version: str, ports: list[int]
) -> None:
    """Write slurm.conf, slurmdbd.conf, gres.conf and cgroup.conf into ``folder``/etc."""
    names = names_of(shape)
    ctld_port, spare_port, dbd_port, *node_ports = ports
    lines = [
        SLURM_CONF.format(
            dir=folder, host=host, user=user, ctld_port=ctld_port, spare_port=spare_port
        ).rstrip(),
        (ACCOUNTING if shape.accounting else NO_ACCOUNTING).format(
            dir=folder, dbd_port=dbd_port, gpu_type=shape.gpu_type
        ),
    ]
    if shape.rest:
        lines.append(JWT.format(dir=folder))
    lines += [
        NODE.format(
            name=name, host=host, port=port, cpus=shape.cpus, memory=shape.memory_mib,
            type=shape.gpu_type, gpus=shape.gpus,
        )
        for name, port in zip(names, node_ports, strict=True)
    ]  # fmt: skip
    every = f"gpu[1-{shape.nodes}]"
    lines.append(f"PartitionName=main Nodes={every} Default=YES MaxTime=INFINITE DefaultTime=60")
    lines.append(f"PartitionName=short Nodes={every} MaxTime=10 DefaultTime=5")
    lines += shape.extra
    etc = folder / "etc"
    (etc / "slurm.conf").write_text("\n".join(lines) + "\n")
    if shape.accounting:
        secret = etc / "slurmdbd.conf"  # it refuses to start if others may read it
        said = SLURMDBD_CONF.format(dir=folder, dbd_port=dbd_port, user=user)
        secret.write_text(said + (JWT.format(dir=folder) + "\n" if shape.rest else ""))
        secret.chmod(0o600)
    _make_devices(folder / "dev", shape.gpus)
    (etc / "gres.conf").write_text(
        "AutoDetect=off\n"
        f"NodeName={every} Name=gpu Type={shape.gpu_type}"
        f" File={folder}/dev/nvidia[0-{shape.gpus - 1}]\n"
    )
    (etc / "cgroup.conf").write_text(
        f"CgroupPlugin={_cgroup_plugin(version)}\nConstrainDevices=no\n"
    )
