"""The health page, and the pulse of beat."""

from __future__ import annotations

import os
import time

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection

from apps.config import health


@pytest.mark.django_db
def test_a_stranger_may_ask_whether_all_is_well(client):
    response = client.get("/healthz")

    assert response.status_code == 200
    assert response.json() == {"status": "ok", "database": True}
    assert "no-store" in response.headers["Cache-Control"]


def test_a_lost_database_is_told_as_503(rf, monkeypatch):
    def lost():
        raise DatabaseError("server closed the connection")

    monkeypatch.setattr(connection, "cursor", lost)

    response = health.healthz(rf.get("/healthz"))

    assert response.status_code == 503


def test_it_is_asked_not_told(client):
    assert client.post("/healthz").status_code == 405


def test_beat_is_well_while_its_pulse_is_young(settings, tmp_path):
    settings.DATA_DIR = tmp_path
    with pytest.raises(CommandError, match="no tick lately"):
        call_command("healthy", "beat")

    health.beat_once()
    call_command("healthy", "beat")

    long_ago = time.time() - 60
    os.utime(health.pulse_file(), (long_ago, long_ago))
    with pytest.raises(CommandError, match="no tick lately"):
        call_command("healthy", "beat")
