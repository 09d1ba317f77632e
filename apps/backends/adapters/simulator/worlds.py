"""Which world belongs to which cluster: one open handle per process, safe over fork and threads."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from threading import Lock

from django.conf import settings

from apps.backends.adapters.simulator.world import World
from apps.backends.models import Cluster
from apps.backends.port import BackendError
from apps.common.time import to_us

_lock = Lock()
_worlds: dict[str, World] = {}
# A connection must not be used, nor closed, on the other side of a fork.
_inherited: list[World] = []


def _leave_to_parent() -> None:
    global _lock
    _lock = Lock()
    _inherited.extend(_worlds.values())
    _worlds.clear()


os.register_at_fork(after_in_child=_leave_to_parent)


def _key(cluster: Cluster) -> str:
    """Return a name no later cluster gets again, though primary keys restart after a reset."""
    if cluster.pk is None:
        raise BackendError("A cluster has no world before it is saved.", retry=False)
    return f"{cluster.pk}-{to_us(cluster.created_at)}"


def path_of(cluster: Cluster) -> Path | None:
    """Return the file of a cluster's world; None: it is kept in memory."""
    if cluster.options.get("world") == "memory":
        return None
    return Path(settings.SIMULATOR_DIR) / f"{_key(cluster)}.sqlite3"


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0


def world_of(cluster: Cluster) -> World:
    """Return a cluster's world, opened or made on demand.

    :raises BackendError: if its file cannot be opened.
    """
    path = path_of(cluster)
    key = str(path) if path else f"memory:{_key(cluster)}"
    with _lock:
        world = _worlds.get(key)
        if world is not None and (path is None or world.inode == _inode(path)):
            return world
        try:
            world = World(path)
        except (OSError, sqlite3.Error) as error:
            raise BackendError(
                f"The simulated world {path or 'in memory'} cannot be opened: {error}.", retry=True
            ) from error
        world.inode = _inode(path) if path else 0
        _worlds[key] = world
        return world


def forget_world(cluster: Cluster) -> None:
    """Erase a cluster's world, its file included; the next call finds a new, empty one."""
    path = path_of(cluster)
    with _lock:
        world = _worlds.pop(str(path) if path else f"memory:{_key(cluster)}", None)
        if world is not None:
            world.close()
        if path is not None:
            for suffix in ("", "-wal", "-shm"):
                Path(f"{path}{suffix}").unlink(missing_ok=True)
