"""What reaches the log, and what must not."""

from __future__ import annotations

import logging

import pytest
from django.http import HttpResponse

from apps.config.logs import LineFormatter, RequestIdFilter, RequestIdMiddleware, redact


@pytest.mark.parametrize(
    "line",
    [
        "connect to postgres://rollcall:hush@db:5432/rollcall failed",
        "redis://:hush@redis:6379/0",
        "{'Authorization': 'Bearer hush'}",
        "Authorization: Token hush",
        '"password": "hush"',
        "password=hush&next=/",
        "new_password1=hush",
        "csrfmiddlewaretoken=hush&a=b",
        "SECRET_KEY='hush'",
        "sessionid=hush; path=/",
    ],
)
def test_a_secret_does_not_reach_the_log(line):
    assert "hush" not in redact(line)


def test_a_plain_line_stays_as_it_is():
    line = "tick 12: 3 starts, 40 pending on atlas at http://127.0.0.1:8000/queue/?tenant=nlp"

    assert redact(line) == line


def test_a_traceback_is_redacted_too():
    try:
        raise ValueError("could not reach postgres://rollcall:hush@db/rollcall")
    except ValueError as error:
        record = logging.LogRecord(
            "x", logging.ERROR, "f", 1, "it broke", (), (ValueError, error, error.__traceback__)
        )

    line = LineFormatter().format(record)

    assert "ValueError" in line
    assert "hush" not in line


def _record() -> logging.LogRecord:
    record = logging.LogRecord("x", logging.INFO, "f", 1, "hello", (), None)
    RequestIdFilter().filter(record)
    return record


def test_every_line_of_a_request_carries_its_id(rf):
    lines = []

    def view(request):
        lines.append(LineFormatter().format(_record()))
        return HttpResponse()

    response = RequestIdMiddleware(view)(rf.get("/", headers={"X-Request-ID": "from-the-proxy-1"}))

    assert response.headers["X-Request-ID"] == "from-the-proxy-1"
    assert "[from-the-proxy-1] hello" in lines[0]
    assert "[-]" in LineFormatter().format(_record())


@pytest.mark.parametrize("given", ["", "short", "a b c d e f g h", "x" * 65, 'quote"quote"'])
def test_an_id_that_is_none_is_replaced(rf, given):
    response = RequestIdMiddleware(lambda request: HttpResponse())(
        rf.get("/", headers={"X-Request-ID": given})
    )

    assert response.headers["X-Request-ID"] != given
    assert len(response.headers["X-Request-ID"]) == 32
