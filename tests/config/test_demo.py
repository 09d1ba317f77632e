"""The parts of the demo that need no processes: room, leases, sockets, children."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.utils import timezone

from apps.backends.models import Cluster
from apps.config import demo, redis_server
from apps.config.supervisor import Child, Supervisor


def test_a_small_disk_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=12_000_000))

    with pytest.raises(demo.Trouble, match=r"has 12 MB left .* free some space"):
        demo.enough_room(tmp_path)


def _demo(tmp_path):
    return demo.Demo(tmp_path, "8000", "", reset=False, own_redis=True, say=print)


def test_a_disk_that_fills_up_is_one_sentence(tmp_path):
    trouble = _demo(tmp_path)._explained(OSError(errno.ENOSPC, "No space left on device"))

    assert str(trouble) == "the disk is full; free some space, then type: make demo"


@pytest.mark.django_db
def test_only_the_leases_of_the_dead_are_given_back():
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    until = timezone.now() + timedelta(seconds=15)
    host = socket.gethostname()
    holders = {
        "gone": f"{host}:{dead.pid}/abc",
        "alive": f"{host}:{os.getpid()}/abc",
        "elsewhere": f"not-{host}:{dead.pid}/abc",
    }
    for name, holder in holders.items():
        Cluster.objects.create(
            name=name, kind="simulator", lease_holder=holder, lease_until=until, lease_fence=7
        )

    demo.clear_dead_leases()

    left = dict(Cluster.objects.values_list("name", "lease_holder"))
    gone = Cluster.objects.get(name="gone")
    assert left == {**holders, "gone": ""}
    assert (gone.lease_until, gone.lease_fence) == (None, 7)


def test_a_long_path_does_not_fit_a_socket(tmp_path):
    assert redis_server.fits_a_socket(Path("/tmp/x/redis.sock"))
    assert not redis_server.fits_a_socket(Path("/" + "é" * 50) / "redis.sock")


def test_the_redis_that_is_found_runs():
    program = redis_server.find_program(print)

    assert program.works()


def test_without_any_redis_the_sentence_says_what_to_type(monkeypatch):
    for name in ("_on_the_path", "_in_the_wheel", "_unpacked"):
        monkeypatch.setattr(redis_server, name, lambda *_: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)

    with pytest.raises(
        redis_server.NoRedis, match=r"this is no Debian.*apt-get install redis-server"
    ):
        redis_server.find_program(print)


def _child(tmp_path, code, name="one"):
    command = [sys.executable, "-c", code]
    return Child(name, command, dict(os.environ), tmp_path / "log" / f"{name}.log")


def test_a_child_that_ends_is_started_again_and_told_of(tmp_path):
    said = []
    supervisor = Supervisor(said.append, stop_order=("one",))
    child = _child(tmp_path, "import sys; print('last words'); sys.exit(3)")
    supervisor.start(child)
    first = child.process.pid
    child.process.wait()

    end = time.monotonic() + 20
    while child.process.pid == first and time.monotonic() < end:
        supervisor.look()
        time.sleep(0.05)
    child.process.wait()

    assert child.process.pid != first
    assert "one ended (3) and is started again" in said[0]
    assert "last words" in child.last_words()


def test_a_child_that_will_not_end_is_ended(tmp_path):
    child = _child(
        tmp_path,
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)",
    )
    child.start()
    while "up" not in child.last_words():
        time.sleep(0.02)

    child.stop(patience=0.2)

    assert child.ended() == -9


def test_children_end_in_the_order_that_was_asked_for(tmp_path):
    supervisor = Supervisor(print, stop_order=("b", "a"))
    order = tmp_path / "order"
    code = (
        "import signal, sys, time\n"
        "def end(*_):\n    open({path!r}, 'a').write({name!r}); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end); print('up', flush=True); time.sleep(60)"
    )
    for name in ("a", "b"):
        child = _child(tmp_path, code.format(path=str(order), name=name), name)
        supervisor.start(child)
        while "up" not in child.last_words():
            time.sleep(0.02)

    supervisor.stop()

    assert order.read_text() == "ba"


def test_a_long_log_makes_room_for_a_new_one(tmp_path, monkeypatch):
    monkeypatch.setattr("apps.config.supervisor.LOG_BYTES", 10)
    child = _child(tmp_path, "print('new')")
    child.log.parent.mkdir()
    child.log.write_text("the old one, which is long\n")

    child.start()
    child.process.wait()

    assert child.last_words() == "new"
    assert "the old one" in child.log.with_suffix(".log.1").read_text()


def test_starting_over_keeps_the_lock_the_key_and_the_logs(tmp_path, settings, monkeypatch):
    monkeypatch.setitem(settings.DATABASES["default"], "ENGINE", "django.db.backends.sqlite3")
    settings.SIMULATOR_DIR, settings.STATIC_ROOT = tmp_path / "worlds", tmp_path / "static"
    for name in ("worlds/atlas", "static/a.css", "log/web.log", "lock", "secret_key",
                 "rollcall.sqlite3", "rollcall.sqlite3-wal"):  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()

    _demo(tmp_path)._start_over()

    assert {path.name for path in tmp_path.iterdir()} == {"log", "lock", "secret_key"}


def test_starting_over_spares_a_database_that_is_not_the_demos(tmp_path, settings, monkeypatch):
    monkeypatch.setitem(settings.DATABASES["default"], "ENGINE", "django.db.backends.postgresql")

    with pytest.raises(demo.Trouble, match="RESET=1 empties only the demo's own SQLite"):
        _demo(tmp_path)._start_over()


def test_static_files_are_laid_out_once(settings, monkeypatch, tmp_path):
    settings.STATIC_ROOT = tmp_path / "static"
    calls = []
    monkeypatch.setattr(
        demo, "call_command", lambda *a, **k: (calls.append(a), settings.STATIC_ROOT.mkdir())
    )

    demo.collect_static()
    demo.collect_static()

    assert calls == [("collectstatic",)]
