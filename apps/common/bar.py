"""A progress bar for commands that take their time."""

from __future__ import annotations

import sys


class Bar:
    """A progress bar on standard error: it moves on a terminal, else says each quarter."""

    WIDTH = 40

    def __init__(self, name: str) -> None:
        self._name = name
        self._told = -1
        self._moves = sys.stderr.isatty()

    def __call__(self, read: int, size: int) -> None:
        """Show how much of something is read."""
        percent = 100 if size <= 0 else min(100, read * 100 // size)
        step = percent if self._moves else percent // 25
        if step == self._told:
            return
        self._told = step
        if not self._moves:
            sys.stderr.write(f"Reading {self._name}: {percent} %\n")
            return
        done = percent * self.WIDTH // 100
        bar = "█" * done + "░" * (self.WIDTH - done)
        sys.stderr.write(f"\rReading {self._name} {bar} {percent:3} %")
        if percent == 100:
            sys.stderr.write("\n")
        sys.stderr.flush()
