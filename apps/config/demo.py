"""The demo: prepares its data, starts every process of Rollcall, and watches over them."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import http.client
import multiprocessing
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from django.conf import settings
from django.contrib.staticfiles.finders import get_finders
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connections

from apps.backends.models import Cluster
from apps.config import redis_server
from apps.config.supervisor import Child, Supervisor

HOST = "127.0.0.1"
LEAST_FREE_MB = 300
# Long enough for a machine that is busy with other things.
START_SECONDS = 180.0


class Trouble(Exception):
    """Why the demo does not run, in one sentence that says what to type."""


def port_of(text: str) -> int:
    """Return the port a person asked for."""
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= 65_535:
        raise Trouble(
            f"PORT must be a number from 1 to 65535, not {text!r}; type: make demo PORT=8123"
        )
    return int(text)


def _may_listen(port: int) -> int:
    """Return 0 when we can listen there, else the system's error number."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            return error.errno or -1
    return 0


def claim_port(port: int, *, patience: float = 3.0) -> None:
    """Make sure the web server will get its port, before anything is started."""
    end = time.monotonic() + patience
    # The web server of a run that was killed needs a moment to end.
    while (why := _may_listen(port)) == errno.EADDRINUSE and time.monotonic() < end:
        time.sleep(0.1)
    if why == 0:
        return
    other = next((n for n in range(port + 1, 65_536) if n > 1023 and _may_listen(n) == 0), 8123)
    if why == errno.EACCES:
        raise Trouble(f"port {port} is for root alone; type: make demo PORT={other}")
    raise Trouble(f"port {port} is taken by another program; type: make demo PORT={other}")


def enough_room(folder: Path) -> None:
    """Make sure the disk can hold the demo's data."""
    free = shutil.disk_usage(folder).free // 1_000_000
    if free < LEAST_FREE_MB:
        raise Trouble(
            f"the disk of {folder} has {free} MB left and the demo needs {LEAST_FREE_MB};"
            " free some space, then type: make demo"
        )


def clear_dead_leases() -> None:
    """Give back the leases of processes of this machine that are gone: the tick need not wait."""
    name = re.compile(re.escape(socket.gethostname()) + r":(\d+)/")
    for pk, holder in Cluster.objects.exclude(lease_holder="").values_list("pk", "lease_holder"):
        found = name.match(holder)
        if found and not Path(f"/proc/{found[1]}").exists():
            Cluster.objects.filter(pk=pk, lease_holder=holder).update(
                lease_holder="", lease_until=None
            )


def _fingerprint_of_static() -> str:
    digest = hashlib.sha256()
    for finder in get_finders():
        for path, storage in finder.list([]):
            found = os.stat(storage.path(path))
            digest.update(f"{path} {found.st_size} {found.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def collect_static() -> None:
    """Lay out the static files, if any changed since."""
    root = Path(settings.STATIC_ROOT)
    mark = root / ".fingerprint"
    wanted = _fingerprint_of_static()
    if mark.exists() and mark.read_text() == wanted:
        return
    shutil.rmtree(root, ignore_errors=True)
    call_command("collectstatic", interactive=False, verbosity=0)
    mark.write_text(wanted)


def _collect_beside() -> None:
    """Lay out the static files in a process that goes quietly when it is told to."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    collect_static()


@dataclass(slots=True)
class Demo:
    """One run of the demo; ``folder`` holds everything that it keeps."""

    folder: Path
    port: str
    trace: str
    reset: bool
    own_redis: bool
    say: Callable[[str], None]

    @property
    def address(self) -> str:
        """Where its pages are."""
        return f"http://{HOST}:{self.port}/"

    def run(self) -> None:
        """Start everything, and stay until Ctrl-C.

        :raises Trouble: if something is in the way.
        """
        if not settings.DEMO:
            raise Trouble("the demo has log-ins that everybody knows; type: make demo")
        port = port_of(self.port)
        if self.trace and not Path(self.trace).is_file():
            raise Trouble(
                f"there is no trace at {self.trace}; type: make demo TRACE=path/of/a/trace.csv"
            )
        try:
            with self._alone():
                claim_port(port)
                enough_room(self.folder)
                self._run(port)
        except (OSError, DatabaseError) as error:
            raise self._explained(error) from error

    def _explained(self, error: OSError | DatabaseError) -> Trouble:
        full = getattr(error, "errno", None) == errno.ENOSPC or "is full" in str(error)
        if full:
            return Trouble("the disk is full; free some space, then type: make demo")
        if isinstance(error, DatabaseError):
            return Trouble(f"its database fails ({error}); to start over, type: make demo RESET=1")
        return Trouble(f"{error}; when that is mended, type: make demo")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock of the data; a killed process holds it no longer."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lock: IO[str]
        with (self.folder / "lock").open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                pid, _, address = lock.read().partition(" ")
                raise Trouble(
                    f"the demo already runs at {address}; to stop it, press Ctrl-C there or type: kill {pid}"
                ) from None
            lock.truncate(0)
            lock.write(f"{os.getpid()} {self.address}")
            lock.flush()
            yield

    def _start_over(self) -> None:
        if settings.DATABASES["default"]["ENGINE"] != "django.db.backends.sqlite3":
            raise Trouble(
                "RESET=1 empties only the demo's own SQLite; type: env -u DATABASE_URL make demo RESET=1"
            )
        for path in self.folder.glob("rollcall.sqlite3*"):
            path.unlink()
        for folder in (settings.SIMULATOR_DIR, settings.STATIC_ROOT):
            shutil.rmtree(folder, ignore_errors=True)

    def _prepare(self) -> None:
        if self.reset:
            self._start_over()
        # Beside the loading, on the second core; it touches no database.
        collecting = multiprocessing.get_context("fork").Process(
            target=_collect_beside, daemon=True
        )
        collecting.start()
        call_command("migrate", interactive=False, verbosity=0)
        try:
            call_command("load_demo", trace=Path(self.trace) if self.trace else None, verbosity=0)
        except CommandError as error:
            raise Trouble(str(error)) from error
        collecting.join()
        if collecting.exitcode:
            raise Trouble(
                f"the static files could not be laid out in {settings.STATIC_ROOT} (the reason stands"
                " above); when that is mended, type: make demo"
            )
        clear_dead_leases()
        connections.close_all()

    def _run(self, port: int) -> None:
        supervisor = Supervisor(self.say, stop_order=("beat", "worker", "web", "redis"))
        sockets: Path | None = None
        try:
            self.say("Rollcall is starting …")
            environment = dict(os.environ) | {
                "ROLLCALL_MODE": "demo",
                "ROLLCALL_DATA": str(self.folder),
                "PYTHONUNBUFFERED": "1",
            }
            if self.own_redis:
                sockets = self._place_for_a_socket()
                environment["REDIS_URL"] = self._start_redis(supervisor, sockets / "redis.sock")
            self._prepare()
            self._start_python(supervisor, environment, port)
            self._wait_for_the_web(supervisor, port)
            self.say(self._welcome())
            while True:
                time.sleep(0.2)
                supervisor.look()
        except KeyboardInterrupt:
            self.say("\nRollcall is stopping …")
        finally:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            supervisor.stop()
            if sockets is not None and sockets != self.folder:
                shutil.rmtree(sockets, ignore_errors=True)
        self.say("Rollcall has stopped; `make demo` goes on where it was.")

    def _place_for_a_socket(self) -> Path:
        if redis_server.fits_a_socket(self.folder / "redis.sock"):
            return self.folder
        return Path(tempfile.mkdtemp(prefix="rollcall-"))

    def _start_redis(self, supervisor: Supervisor, path: Path) -> str:
        try:
            program = redis_server.find_program(self.say)
        except redis_server.NoRedis as error:
            raise Trouble(str(error)) from error
        child = Child(
            "redis",
            redis_server.command(program, path, path.parent),
            program.environment(),
            self.folder / "log" / "redis.log",
            before=lambda: path.unlink(missing_ok=True),
        )
        supervisor.start(child)
        end = time.monotonic() + START_SECONDS
        while not path.exists():
            if child.ended() is not None or time.monotonic() > end:
                raise Trouble(f"Redis did not start; read {child.log}:\n{child.last_words()}")
            time.sleep(0.01)
        return f"redis+socket://{path}"

    def _start_python(self, supervisor: Supervisor, environment: dict[str, str], port: int) -> None:
        celery = [sys.executable, "-m", "celery", "-A", "apps.config"]
        commands = {
            "worker": [
                *celery, "worker", "-P", "threads", "-c", "4",
                "--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "INFO",
            ],
            "beat": [*celery, "beat", "-S", "celery.beat:Scheduler", "--pidfile=", "-l", "INFO"],
            "web": [
                sys.executable, "-m", "gunicorn", "apps.config.wsgi",
                "--config", "python:apps.config.gunicorn", "--bind", f"{HOST}:{port}",
            ],
        }  # fmt: skip
        for name, command in commands.items():
            before = self._forget_the_dead if name == "worker" else None
            log = self.folder / "log" / f"{name}.log"
            supervisor.start(Child(name, command, environment, log, before))

    def _forget_the_dead(self) -> None:
        with suppress(DatabaseError):
            clear_dead_leases()
        connections.close_all()

    def _wait_for_the_web(self, supervisor: Supervisor, port: int) -> None:
        end = time.monotonic() + START_SECONDS
        web = supervisor.children["web"]
        while not _answers(port):
            if web.ended() is not None or time.monotonic() > end:
                raise Trouble(f"the web server did not start; read {web.log}:\n{web.last_words()}")
            time.sleep(0.05)

    def _welcome(self) -> str:
        return (
            f"\n  Rollcall runs at {self.address}\n\n"
            "  log in as   admin    the whole installation\n"
            "              lead     lead of the team nlp\n"
            "              member   member of nlp/alignment\n"
            "  password    rollcall\n\n"
            f"  Its logs are in {self.folder / 'log'}. Ctrl-C stops it.\n"
        )


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
