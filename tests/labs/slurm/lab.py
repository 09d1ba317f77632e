"""Starts and stops a real munged, slurmctld and one slurmd a node, all in one folder.

Where its shape asks for it, a mariadb and a slurmdbd stand behind them, a slurmrestd before them.

As a command, ``python -m tests.labs.slurm.lab -- CMD`` runs CMD beside a lab, with SLURM_CONF set,
and ends with CMD's exit status.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from tests.labs.slurm.accounting import Accounting
from tests.labs.slurm.conf import Shape, names_of, write_conf
from tests.labs.slurm.rest import Rest
from tests.services import die_with_parent

PATIENCE = 30.0
PROGRAMS = ("munged", "slurmctld", "slurmd", "scontrol", "sbatch", "squeue", "scancel", "sinfo")
# Where another Slurm than this system's is to be the lab's.
BIN = os.environ.get("LAB_SLURM_BIN", "")
PATH = ":".join(filter(None, [BIN, "/usr/sbin:/usr/bin:/sbin:/bin"]))


class LabMissing(RuntimeError):
    """Slurm is not installed, or did not come up; the message says what to do."""


def missing(*more: str) -> str:
    """Return why there can be no lab here, with ``more`` programs; empty: there can."""
    absent = [name for name in (*PROGRAMS, *more) if shutil.which(name, path=PATH) is None]
    if not absent:
        return ""
    return f"Slurm is absent ({absent[0]}): make test ONLY=slurm installs it"


def faketime() -> str:
    """Return the library that gives a process another clock; empty: it is not here."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    return str(found[0]) if found else ""


def shifted(seconds: int) -> dict[str, str]:
    """Return the environment of a process whose clock is ahead by so much; timers stay true."""
    if not seconds:
        return {}
    return {
        "LD_PRELOAD": faketime(), "FAKETIME": f"{seconds:+d}s", "FAKETIME_DONT_FAKE_MONOTONIC": "1"
    }  # fmt: skip


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


class Lab:
    """A running cluster; use it in a ``with``, which kills all of it at the end."""

    def __init__(self, shape: Shape | None = None) -> None:
        self.shape = shape or Shape()
        reason = missing(
            *(Accounting.PROGRAMS if self.shape.accounting else ()),
            *(Rest.PROGRAMS if self.shape.rest else ()),
        )
        if reason:
            raise LabMissing(reason)
        if self.shape.ahead and not faketime():
            raise LabMissing("libfaketime is absent: make test ONLY=slurm installs it")
        self.nodes = names_of(self.shape)
        # Under /tmp: the path of munge's socket may not be long.
        self.dir = Path(tempfile.mkdtemp(prefix="rollcall-slurm-", dir="/tmp"))
        self.dir.chmod(0o755)
        self.conf = self.dir / "etc" / "slurm.conf"
        self.env = {
            "PATH": PATH,
            "SLURM_CONF": str(self.conf),
            "LC_ALL": "C",
            "HOME": str(self.dir),
        }
        self.accounting = Accounting(self)
        self.rest = Rest(self)
        self._stock_conf = ""
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    # Up and down

    def __enter__(self) -> Lab:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start all of it, and wait until every node is idle."""
        for name in ("etc", "run", "log", "munge", "state", "spool", "jobs"):
            (self.dir / name).mkdir()
        (self.dir / "jobs").chmod(0o1777)
        version = self.run("slurmd", "-V").split()[-1]
        *ports, rest_port = _free_ports(4 + len(self.nodes))
        if self.shape.rest:
            self.rest.prepare(rest_port)
        write_conf(
            self.dir, self.shape, host=socket.gethostname().split(".")[0],
            user=pwd.getpwuid(os.geteuid()).pw_name, version=version,
            ports=ports,
        )  # fmt: skip
        self._stock_conf = self.conf.read_text()
        self._start_munge()
        if self.shape.accounting:
            self.accounting.start()
        self.start_controller()
        # Only now: a slurmd that finds no slurmctld waits long before it tries again.
        for name in self.nodes:
            (self.dir / "spool" / name).mkdir()
            self.start_node(name)
        if self.shape.rest:
            self.rest.start()
        self.wait(self._all_up, "every node to be idle")

    def stop(self) -> None:
        """Cancel what runs, kill every process of the lab, and remove its folder."""
        if self.alive("slurmctld"):
            with contextlib.suppress(subprocess.SubprocessError):
                self.clear(patience=5)
        nodes = [name for name in self._running if name.startswith("slurmd-")]
        for name in (*nodes, "slurmrestd", "slurmctld", "slurmdbd", "mariadbd", "munged"):
            self.end(name)
        self._kill_jobs()
        shutil.rmtree(self.dir, ignore_errors=True)

    def _start_munge(self) -> None:
        key = self.dir / "munge" / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        (self.dir / "munge").chmod(0o711)
        folder = self.dir / "munge"
        self.spawn(
            "munged", "munged", "--foreground", "--force", f"--key-file={key}",
            f"--socket={folder}/munge.sock", f"--pid-file={folder}/munged.pid",
            f"--log-file={folder}/munged.log", f"--seed-file={folder}/munged.seed",
            "--num-threads=4",
        )  # fmt: skip
        self.wait((folder / "munge.sock").exists, "munged")

    def start_controller(self) -> None:
        """Start slurmctld, with the state it left if it ran before, and wait for its answer."""
        self.spawn("slurmctld", "slurmctld", "-D")
        self.wait(self._answers, "slurmctld to answer")

    def stop_controller(self) -> None:
        """Stop slurmctld as its operator would: it saves all that it knows."""
        self.end("slurmctld", patience=PATIENCE)

    def kill_controller(self, *, forget: bool = False) -> None:
        """Kill slurmctld as a crash would.

        ``forget``: with the state of ``remember``, as if nothing had been saved since.
        """
        process = self._running.pop("slurmctld")
        process.kill()
        process.wait()
        if forget:
            shutil.rmtree(self.dir / "state")
            shutil.move(self.dir / "kept", self.dir / "state")

    @contextlib.contextmanager
    def frozen_controller(self) -> Iterator[None]:
        """Have slurmctld answer nobody for as long as this lasts, as if its machine swapped."""
        process = self._running["slurmctld"]
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)
            self.wait(self._answers, "slurmctld to answer again")

    def remember(self) -> None:
        """Keep slurmctld's state as it is on disk now, for ``kill_controller(forget=True)``."""
        self.settle()
        shutil.rmtree(self.dir / "kept", ignore_errors=True)
        # What is being written is not in force yet.
        unfinished = shutil.ignore_patterns("*.new")
        shutil.copytree(self.dir / "state", self.dir / "kept", ignore=unfinished)

    def start_node(self, name: str) -> None:
        """Start the slurmd of a node."""
        self.spawn(f"slurmd-{name}", "slurmd", "-D", "-N", name)

    def kill_node(self, name: str) -> None:
        """Kill a node's slurmd as a crash would; what it started runs on."""
        process = self._running.pop(f"slurmd-{name}")
        process.kill()
        process.wait()

    def alive(self, name: str) -> bool:
        """Return whether a daemon runs."""
        process = self._running.get(name)
        return process is not None and process.poll() is None

    def pid(self, name: str) -> int:
        """Return the process of a daemon that runs."""
        return self._running[name].pid

    def stop_daemon(self, name: str) -> None:
        """Stop a daemon of the lab's as its operator would."""
        self.end(name, patience=PATIENCE)

    def spawn(self, name: str, *command: str, env: Mapping[str, str] | None = None) -> None:
        """Start a daemon of the lab's; it ends with the lab, or with us."""
        program = shutil.which(command[0], path=PATH)
        assert program is not None
        more = dict(env or {}) | shifted(self.shape.ahead)
        with (self.dir / "log" / f"{name}.out").open("ab") as out:
            self._running[name] = subprocess.Popen(
                [program, *command[1:]], stdin=subprocess.DEVNULL, stdout=out,
                stderr=subprocess.STDOUT, env=self.env | more, start_new_session=True,
                preexec_fn=die_with_parent(signal.SIGKILL),
            )  # fmt: skip

    def end(self, name: str, *, patience: float = 5.0) -> None:
        """End a daemon of the lab's; one that is not there is ended."""
        process = self._running.pop(name, None)
        if process is None:
            return
        process.terminate()
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _kill_jobs(self) -> None:
        """Kill what jobs of this lab left behind: slurmstepd is nobody's child."""
        mark = f"SLURM_CONF={self.conf}".encode()
        for _ in range(40):
            left = [
                int(entry.name)
                for entry in Path("/proc").iterdir()
                if entry.name.isdigit() and int(entry.name) != os.getpid() and _has(entry, mark)
            ]
            if not left:
                return
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    # What tests do to it

    def run(
        self,
        *command: str,
        stdin: str | None = None,
        user: str | None = None,
        patience: float = PATIENCE,
    ) -> str:
        """Run one of Slurm's commands and return what it printed.

        ``user``: as somebody else, where we are root.
        """
        before, env = [], self.env
        if user is not None and os.geteuid() == 0:
            who = pwd.getpwnam(user)
            if BIN:
                # Root alone may change its root; who it then is, chroot itself sees to.
                env = env | {"LAB_USER": f"{who.pw_uid}:{who.pw_gid}"}
            else:
                before = ["setpriv", f"--reuid={user}", f"--regid={who.pw_gid}", "--clear-groups"]
        done = subprocess.run(
            [*before, *command], input=stdin, env=env, capture_output=True, text=True,
            timeout=patience, check=False, cwd=self.dir / "jobs" if self.conf.exists() else "/",
        )  # fmt: skip
        if done.returncode:
            raise subprocess.CalledProcessError(
                done.returncode, list(command), done.stdout, done.stderr
            ) from RuntimeError(done.stderr.strip())
        return done.stdout.strip()

    def submit(self, body: str, *options: str, user: str | None = None) -> str:
        """Submit a job that Rollcall knows nothing of; return its id."""
        script = f"#!/bin/bash\n{body}\n"
        out = f"--output={self.dir}/jobs/%j.out"
        answer = self.run("sbatch", "--parsable", out, *options, stdin=script, user=user)
        return answer.split(";")[0]

    def state(self, job: str) -> str:
        """Return the state of a job as Slurm calls it."""
        return self.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").split("\n")[0]

    def jobs(self, *options: str) -> list[str]:
        """Return the ids of the jobs that are not over."""
        return self.run("squeue", "-h", "-o", "%A", *options).split()

    def configure(self, *lines: str) -> None:
        """Add lines to slurm.conf until the next ``clear``."""
        self.conf.write_text("\n".join([self._stock_conf.rstrip(), *lines, ""]))
        self.run("scontrol", "reconfigure")

    def settle(self) -> None:
        """Wait until slurmctld has saved what it knows: a crash forgets what is younger.

        A job on hold is left behind, by whose name the state on disk is known to be new.
        """
        name = f"settle-{secrets.token_hex(4)}"
        self.submit("true", "--hold", f"--job-name={name}")
        state = self.dir / "state" / "job_state"
        self.wait(
            lambda: state.exists() and name.encode() in state.read_bytes(), "its state to be saved"
        )

    def clear(self, *, patience: float = PATIENCE) -> None:
        """Cancel every job, resume every node, and wait until all is idle again."""
        if self.conf.read_text() != self._stock_conf:
            self.configure()
        self.run("scontrol", "update", "PartitionName=main", "State=UP")
        left = self.jobs()
        if left:
            subprocess.run(
                ["scancel", *left], env=self.env, timeout=patience, check=False,
                capture_output=True,
            )  # fmt: skip
        self.wait(lambda: not self.jobs(), "jobs to be gone", patience=patience)
        for name in self.nodes:
            if not self.alive(f"slurmd-{name}"):
                self.start_node(name)
        states = self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%N %T").split("\n")
        for line in states:
            name, state = line.split()
            if state.startswith(("drain", "down")):
                with contextlib.suppress(subprocess.CalledProcessError):
                    self.run("scontrol", "update", f"NodeName={name}", "State=RESUME")
        self.wait(self._all_up, "every node to be idle", patience=patience)

    def wait(self, ready: Callable[[], bool], what: str, *, patience: float = PATIENCE) -> None:
        """Wait until something is so.

        :raises LabMissing: if it is not in time; the last words of the logs stand in it.
        """
        end = time.monotonic() + patience
        while True:
            with contextlib.suppress(subprocess.SubprocessError):
                if ready():
                    return
            if time.monotonic() > end:
                raise LabMissing(f"The lab waited in vain for {what}.\n{self._last_words()}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        return "UP" in self.run("scontrol", "ping")

    def _all_up(self) -> bool:
        states = self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%T").split()
        return states == ["idle"] * len(self.nodes)

    def _last_words(self) -> str:
        words = []
        for path in sorted((self.dir / "log").glob("*")):
            words += [path.name, *path.read_text(errors="replace").splitlines()[-8:]]
        return "\n".join(words)


def _has(entry: Path, mark: bytes) -> bool:
    """Return whether a process was started with an environment that holds ``mark``."""
    try:
        return mark in (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def main(arguments: Sequence[str]) -> int:
    """Run a command beside a lab."""
    with Lab() as lab:
        command = list(arguments[1:] if arguments[:1] == ["--"] else arguments) or ["sinfo", "-N"]
        env = {**os.environ, "SLURM_CONF": str(lab.conf)}
        return subprocess.run(command, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
