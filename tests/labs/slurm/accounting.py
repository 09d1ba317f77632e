"""The lab's accounting: a private mariadb behind slurmdbd, accounts by file, usage by hand."""

from __future__ import annotations

import os
import pwd
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tests.labs.slurm.lab import Lab

CLUSTER = "rollcall-lab"
LOAD_PATIENCE = 300.0  # 3,000 users take 12 s where nothing else runs
QUICK = (
    "--skip-networking", "--skip-log-bin", "--performance-schema=OFF", "--skip-name-resolve",
    "--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=OFF", "--innodb-fast-shutdown=2",
    "--innodb-lock-wait-timeout=900", "--innodb-buffer-pool-size=128M",
    "--innodb-log-file-size=32M",
)  # fmt: skip
"""No one but the lab reaches it, and what a crash would lose is thrown away at the end anyway."""


class Association(NamedTuple):
    """An account, or a user in one."""

    account: str
    user: str  # empty: the account itself


class PastJob(NamedTuple):
    """A job as Slurm's database keeps it; ``state`` is Slurm's number, instants are in seconds.

    ``start`` 0: it never ran.
    """

    id: int
    who: Association
    submit: int
    start: int
    end: int
    state: int
    nodes: str
    count: int  # type: ignore[assignment]  # hides the method of a tuple, which nobody calls
    gpus: int
    name: str = "train"
    array: tuple[int, int] | None = None  # the array's id, and the task
    partition: str = "main"


COMPLETED, CANCELLED, FAILED, TIMEOUT, NODE_FAIL, PREEMPTED = 3, 4, 5, 6, 7, 8
REQUEUED = 0x400
NO_VALUE = 4_294_967_294
LAID_AT_ONCE = 2_000


class Accounting:
    """The accounts of a lab whose shape asks for them."""

    PROGRAMS = (
        "mariadbd", "mariadb", "mariadb-install-db", "slurmdbd", "sacctmgr", "sshare", "sprio",
        "sacct", "sreport",
    )  # fmt: skip

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    @property
    def socket(self) -> Path:
        """Where mariadb listens."""
        return self.lab.dir / "mysql" / "mysqld.sock"

    def start(self) -> None:
        """Start mariadb and slurmdbd, on nothing, and register the cluster."""
        lab, data = self.lab, self.lab.dir / "mysql" / "data"
        data.mkdir(parents=True)
        user = pwd.getpwuid(os.geteuid()).pw_name
        lab.run(
            "mariadb-install-db", "--no-defaults", "--force", f"--user={user}",
            f"--datadir={data}", "--skip-test-db", "--auth-root-authentication-method=socket",
            f"--auth-root-socket-user={user}", "--innodb-log-file-size=32M",
        )  # fmt: skip
        # How slurmdbd learns where it listens.
        lab.env |= {"MYSQL_UNIX_PORT": str(self.socket), "MARIADB_UNIX_PORT": str(self.socket)}
        lab.spawn(
            "mariadbd", "mariadbd", "--no-defaults", f"--user={user}", f"--datadir={data}",
            f"--socket={self.socket}", f"--pid-file={data}/mysqld.pid", *QUICK,
        )  # fmt: skip
        lab.wait(self._listens, "mariadb")
        self._start_slurmdbd()
        lab.run("sacctmgr", "-i", "add", "cluster", CLUSTER)

    def _start_slurmdbd(self) -> None:
        self.lab.spawn("slurmdbd", "slurmdbd", "-D")
        self.lab.wait(self._answers, "slurmdbd to answer")

    @contextmanager
    def away(self) -> Iterator[None]:
        """Stop slurmdbd for a while; slurmctld goes on with what it knows."""
        self.lab.stop_daemon("slurmdbd")
        try:
            yield
        finally:
            self._start_slurmdbd()
            # By itself slurmctld comes back to it late, and hears of no change until then.
            self.register()

    def register(self) -> None:
        """Wait until slurmctld is registered: only then is it told of changes.

        It does so late, but at once when it starts and finds slurmdbd.
        """
        self.lab.stop_controller()
        self.lab.start_controller()
        self.lab.wait(self._registered, "slurmctld to be registered")

    def _registered(self) -> bool:
        out = self.lab.run("sacctmgr", "-nP", "show", "cluster", "format=controlport")
        return out.strip() not in ("", "0")

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as one:
            return one.connect_ex(str(self.socket)) == 0

    def _answers(self) -> bool:
        return "Cluster" in self.lab.run("sacctmgr", "show", "cluster")

    def load(
        self, lines: Iterable[str], *, clean: bool = False, qos: Iterable[str] = ("normal",)
    ) -> None:
        """Load accounts, users and associations as ``sacctmgr dump`` writes them.

        ``Parent - 'root'`` and what follows; all names are lower-cased. ``clean``: none else stay.
        ``qos``: those that everybody may ask for; they are there already.
        Limits on GPUs are known only once slurmctld has registered, which it has after ``start``.
        """
        path = self.lab.dir / "etc" / "accounts.cfg"
        head = f"Cluster - '{CLUSTER}':Fairshare=1:QOS='{','.join(qos)}'"
        path.write_text("\n".join([head, *lines, ""]))
        self.lab.run(
            "sacctmgr", "-i", "-Q", "load", *(["clean"] if clean else []), f"file={path}",
            patience=LOAD_PATIENCE,
        )  # fmt: skip

    def associations(self) -> dict[Association, int]:
        """Return the ids of all associations."""
        out = self.lab.run("sacctmgr", "-n", "-P", "show", "assoc", "format=account,user,id")
        rows = [line.split("|") for line in out.splitlines()]
        return {Association(account, user): int(number) for account, user, number in rows}

    def seed_usage(self, usage: Mapping[Association, float]) -> None:
        """Give users so much raw usage, and nobody else any; accounts sum up what is theirs.

        There is no command for it. slurmctld reads assoc_usage when it starts: a version, an
        instant, and for each association its id, its usage in decimals, no TRES and no wall time.
        Where usage decays it does so from then on.
        """
        ids = self.associations()
        self.lab.stop_controller()
        path = self.lab.dir / "state" / "assoc_usage"
        (version,) = struct.unpack("!H", path.read_bytes()[:2])
        parts = [struct.pack("!HQ", version, int(time.time()))]
        for who, used in usage.items():
            said = f"{used:.6f}".encode() + b"\0"
            parts.append(struct.pack("!II", ids[who], len(said)) + said + struct.pack("!II", 0, 0))
        path.write_bytes(b"".join(parts))
        self.lab.start_controller()

    def sql(self, statement: str) -> list[list[str]]:
        """Run SQL in Slurm's own database and return the rows it answers."""
        out = self.lab.run(
            "mariadb", "--no-defaults", f"--socket={self.socket}", "-N", "-B", "slurm_acct_db",
            stdin=statement, patience=LOAD_PATIENCE,
        )  # fmt: skip
        return [line.split("\t") for line in out.splitlines()]

    def forget_jobs(self) -> None:
        """Empty the table of jobs; none may run."""
        self.sql(f"DELETE FROM `{CLUSTER}_job_table`;")  # noqa: S608  a name of our own

    def lay_jobs(self, jobs: Iterable[PastJob]) -> None:
        """Lay jobs that are over into the database, as slurmctld would have reported them."""
        ids = self.associations()
        kinds = self._gpu_kinds()
        rows = [_row_of(job, ids[job.who], kinds) for job in jobs]
        columns = (
            "id_job, id_assoc, account, id_user, id_group, time_submit, time_eligible, time_start,"
            " time_end, state, nodelist, nodes_alloc, job_name, tres_alloc, id_array_job,"
            " id_array_task, `partition`, cpus_req, id_resv, id_wckey, het_job_id, het_job_offset,"
            " state_reason_prev, priority, timelimit"
        )
        head = f"INSERT INTO `{CLUSTER}_job_table` ({columns}) VALUES "  # noqa: S608  our own
        for low in range(0, len(rows), LAID_AT_ONCE):
            self.sql(head + ",\n".join(rows[low : low + LAID_AT_ONCE]) + ";")

    def _gpu_kinds(self) -> list[str]:
        """Return the numbers of GPUs among all that is counted: without a type, and with it."""
        rows = self.sql("SELECT id FROM tres_table WHERE type = 'gres' ORDER BY id;")
        return [number for (number,) in rows]

    def roll_up(self, since: int) -> None:
        """Have slurmdbd sum up usage by hours anew, from an instant on: what sreport reads."""
        for of in ("usage", "assoc_usage"):
            for step in ("hour", "day", "month"):
                self.sql(f"TRUNCATE `{CLUSTER}_{of}_{step}_table`;")
        # Before the cluster told what it has, nothing is summed up.
        shape, kinds = self.lab.shape, self._gpu_kinds()
        gpus = "".join(f",{kind}={shape.nodes * shape.gpus}" for kind in kinds)
        events = f"`{CLUSTER}_event_table`"
        self.sql(
            f"DELETE FROM {events} WHERE node_name = '';"  # noqa: S608  numbers and names of ours
            f"INSERT INTO {events} (time_start, node_name, cluster_nodes, reason, tres) VALUES"
            f" ({since}, '', 'gpu[1-{shape.nodes}]', 'Cluster Registered TRES',"
            f" '1={shape.nodes * shape.cpus}{gpus}');"
        )
        begin = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(since))
        self.lab.run("sacctmgr", "-i", "roll", begin, patience=LOAD_PATIENCE)


def _row_of(job: PastJob, association: int, kinds: list[str]) -> str:
    """Return a row of the table of jobs, for ``lay_jobs``."""
    tres = f"1={job.count},2=100,4={job.count},5={job.count}" if job.start else ""
    if tres and job.gpus:
        tres += "".join(f",{kind}={job.gpus}" for kind in kinds)
    array, task = job.array or (0, NO_VALUE)
    values: list[int | str] = [
        job.id, association, job.who.account, 0, 0, job.submit, job.submit, job.start, job.end,
        job.state, job.nodes, job.count, job.name, tres, array, task, job.partition, 1, 0,
        0, 0, NO_VALUE, 0, 1, 60,
    ]  # fmt: skip
    return f"({', '.join(_literal(value) for value in values)})"


def _literal(value: int | str) -> str:
    if isinstance(value, int):
        return str(value)
    quoted = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{quoted}'"
