"""The API's figure: submissions a second, over 4 web workers on a PostgreSQL of its own."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
HOST = "127.0.0.1"
WORKERS = 4
CONNECTIONS = 8
WARM_SECONDS = 2.0
WARM_ROUNDS = 10
SECONDS = 10.0
PATIENCE = 60.0
LIMIT = 100.0
NODES = 100
TENANTS = 50
WAITING = 10_000


def prepare() -> None:
    """Fill the database, and print a token; runs in a process of its own, with its settings."""
    import django

    django.setup()
    from datetime import UTC, datetime

    from apps.accounts.services import create_user, issue_token
    from apps.backends.models import Node, Pool
    from apps.backends.services import add_cluster
    from apps.jobs.services import JobSpec, submit_many
    from apps.tenants.services import add_member, create_tenant

    now = datetime.now(UTC)
    cluster = add_cluster(
        "bench", kind="simulator", grade="drive", now=now, first_look_at=now, observed_at=now
    )
    pool = Pool.objects.create(cluster=cluster, name="h100")
    Node.objects.bulk_create(
        Node(cluster=cluster, pool=pool, name=f"n{n:03}", gpus=8, state_since=now)
        for n in range(NODES)
    )
    parents = [create_tenant(f"t{n}", now=now) for n in range(TENANTS)]
    team = create_tenant("team", parent=parents[0], now=now)
    user = create_user("bench", password="", check_password=False)
    add_member(team, user, "member", now=now)
    spec = JobSpec(
        tenant=team, cluster=cluster, pool=pool, name="before", size=2, gpus_per_member=8
    )
    submit_many([spec] * WAITING, at=[now] * WAITING)
    print(issue_token(user, name="bench", now=now)[1])


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@contextmanager
def served(environment: dict[str, str]) -> Iterator[int]:
    """Run gunicorn as production does, with 4 workers; give its port."""
    port = free_port()
    command = [sys.executable, "-m", "gunicorn", "apps.config.wsgi"]
    command += ["--config", "python:apps.config.gunicorn", "--bind", f"{HOST}:{port}"]
    command += ["--workers", str(WORKERS), "--log-level", "warning"]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    try:
        end = time.monotonic() + PATIENCE
        while socket.socket().connect_ex((HOST, port)) != 0:
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError("gunicorn did not start")
            time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait(PATIENCE)


class Caller(threading.Thread):
    """One connection that submits one job after the other until a given instant."""

    def __init__(self, port: int, secret: str, number: int, until: float) -> None:
        super().__init__(daemon=True)
        self.port, self.until, self.number = port, until, number
        self.headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
        self.took: list[float] = []
        self.problems: list[str] = []

    def run(self) -> None:
        """Submit, and note how long each took and what went wrong."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=PATIENCE)
        count = 0
        while time.monotonic() < self.until and not self.problems:
            count += 1
            body = {
                "name": f"train {self.number}-{count}",
                "tenant": "t0/team",
                "cluster": "bench",
                "pool": "h100",
                "size": 1 + count % 8,
                "gpus_per_member": 8,
                "limit_seconds": 3_600,
            }
            key = f"{self.until}-{self.number}-{count}"
            began = time.monotonic()
            try:
                connection.request(
                    "POST",
                    "/api/v1/jobs",
                    json.dumps(body),
                    {**self.headers, "Idempotency-Key": key},
                )
                answer = connection.getresponse()
                text = answer.read()
            except OSError as error:
                self.problems.append(repr(error))
                return
            if answer.status != 201:
                self.problems.append(f"{answer.status} {text[:200]!r}")
            self.took.append(time.monotonic() - began)


def load(port: int, secret: str, seconds: float) -> tuple[list[float], float]:
    """Submit over all connections at once; return what each took, and how long in all."""
    began = time.monotonic()
    callers = [Caller(port, secret, n, began + seconds) for n in range(CONNECTIONS)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(seconds + PATIENCE)
    problems = [problem for caller in callers for problem in caller.problems]
    if problems:
        raise RuntimeError(f"the API refused a submission: {problems[0]}")
    return sorted(took for caller in callers for took in caller.took), time.monotonic() - began


def warm(port: int, secret: str) -> None:
    """Submit until every worker has loaded what its first request loads."""
    for _ in range(WARM_ROUNDS):
        took, _ = load(port, secret, WARM_SECONDS)
        if took[-1] < 10 * took[len(took) // 2]:
            return


def run() -> list[dict[str, Any]]:
    """Measure, and return a row per figure."""
    from tests.services import private_postgres

    with (
        tempfile.TemporaryDirectory(prefix="rollcall-bench-") as data,
        private_postgres() as server,
    ):
        environment = os.environ | {
            "DATABASE_URL": server.create("bench"),
            "DJANGO_SETTINGS_MODULE": "apps.config.settings",
            "ROLLCALL_DATA": data,
            "PYTHONPATH": str(ROOT),
        }
        run = {"cwd": ROOT, "env": environment, "check": True, "stdout": subprocess.PIPE}
        subprocess.run([sys.executable, "manage.py", "migrate", "-v", "0"], **run)  # type: ignore[call-overload]  # one table of options for both
        code = "from benchmarks.api import prepare; prepare()"
        prepared = subprocess.run([sys.executable, "-c", code], text=True, **run)  # type: ignore[call-overload]  # likewise
        secret = prepared.stdout.strip()
        with served(environment) as port:
            warm(port, secret)
            took, seconds = load(port, secret, SECONDS)
    rate = len(took) / seconds
    return [
        {
            "name": f"api: POST /api/v1/jobs, {WORKERS} workers, {CONNECTIONS} connections",
            "value": round(rate, 1),
            "unit": "1/s",
            "limit": LIMIT,
            "ok": rate >= LIMIT,
        },
        *(
            {
                "name": f"api: POST /api/v1/jobs, p{percent}",
                "value": round(took[len(took) * percent // 100] * 1000, 1),
                "unit": "ms",
                "limit": limit,
                "ok": took[len(took) * percent // 100] * 1000 <= limit,
            }
            for percent, limit in ((50, 200.0), (99, 1_000.0))
        ),
    ]


if __name__ == "__main__":
    rows = run()
    json.dump(rows, sys.stdout, indent=1)
    sys.exit(0 if all(row["ok"] for row in rows) else 1)
