"""Keeps a handful of processes running together, and leaves none of them behind."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PR_SET_PDEATHSIG = 1
# A child that lived shorter than this died at its start: the next try waits longer.
SETTLED_SECONDS = 10.0
LONGEST_WAIT_SECONDS = 10.0
STOP_SECONDS = 10.0
LOG_BYTES = 10_000_000


def _follow_the_parent(parent: int) -> Callable[[], None]:
    libc = ctypes.CDLL(None, use_errno=True)

    def _ask() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        # The parent may have gone between the fork and the line above.
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)

    return _ask


@dataclass(slots=True)
class Child:
    """One process to keep running; ``before`` runs ahead of each start."""

    name: str
    command: Sequence[str]
    environment: dict[str, str]
    log: Path
    before: Callable[[], None] | None = None
    process: subprocess.Popen[bytes] | None = None
    born: float = 0.0
    quick_deaths: int = 0
    not_before: float = 0.0

    def start(self) -> None:
        """Start the process in a session of its own; it ends when this process does."""
        if self.before is not None:
            self.before()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if self.log.exists() and self.log.stat().st_size > LOG_BYTES:
            self.log.replace(self.log.with_suffix(".log.1"))
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(  # noqa: S603  our own commands
                self.command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                preexec_fn=_follow_the_parent(os.getpid()),
            )
        self.born = time.monotonic()

    def ended(self) -> int | None:
        """Return the exit status of a process that ended, None while it runs."""
        return None if self.process is None else self.process.poll()

    def stop(self, patience: float = STOP_SECONDS) -> None:
        """Ask the process to end, and end it when it does not."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def last_words(self, lines: int = 12) -> str:
        """Return the end of its log."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return ""


@dataclass(slots=True)
class Supervisor:
    """Children in their order of start; they stop in the order of ``stop_order``."""

    say: Callable[[str], None]
    stop_order: Sequence[str]
    children: dict[str, Child] = field(default_factory=dict)

    def start(self, child: Child) -> None:
        """Start one more child."""
        self.children[child.name] = child
        child.start()

    def look(self) -> None:
        """Start again each child that ended, more slowly the more often it ends at its start."""
        now = time.monotonic()
        for child in self.children.values():
            status = child.ended()
            if status is not None and child.not_before == 0.0:
                quick = now - child.born < SETTLED_SECONDS
                child.quick_deaths = child.quick_deaths + 1 if quick else 0
                wait = min(0.25 * 2**child.quick_deaths, LONGEST_WAIT_SECONDS)
                child.not_before = now + wait
                self.say(f"{child.name} ended ({status}) and is started again; see {child.log}")
            elif status is not None and now >= child.not_before:
                child.not_before = 0.0
                child.start()

    def stop(self) -> None:
        """Stop every child, in order."""
        for name in self.stop_order:
            if name in self.children:
                self.children[name].stop()
