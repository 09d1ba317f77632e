"""The reasons for which a test may be skipped where nobody is looking (CI); a plugin of pytest."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest

STRICT = os.environ.get("CI", "") not in ("", "0", "false")

# One line each: what is absent, and why its absence is no fault of the project.
ALLOWED = (
    # The shared material stands beside a developer's work tree; a clone elsewhere lacks it.
    re.compile(r"\.\./shared\b.* is absent"),
    # axe-core is an npm package; a machine without a registry has every other browser test.
    re.compile(r"axe-core is absent"),
    # A lab that is run by an ordinary user has no second one.
    re.compile(r"only root can run commands as somebody else"),
)


def allowed(reason: str) -> bool:
    """Return whether a skip with this reason is no failure."""
    return any(pattern.search(reason) for pattern in ALLOWED)


def _reason(report: Any) -> str:
    where = getattr(report, "longrepr", None)
    return str(where[2]) if isinstance(where, tuple) else str(getattr(report, "wasxfail", where))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Name each skip that nobody allowed; in CI it is a failure."""
    bad = [
        f"{report.nodeid}: {_reason(report)}"
        for how in ("skipped", "xfailed", "xpassed")
        for report in terminalreporter.stats.get(how, [])
        if not allowed(_reason(report))
    ]
    for line in bad:
        terminalreporter.write_line(f"NOT ALLOWED TO SKIP (tests/skips.py): {line}", red=True)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail a run in CI that skipped what it may not skip."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not STRICT or reporter is None or hasattr(session.config, "workerinput"):
        return
    for how in ("skipped", "xfailed", "xpassed"):
        if any(not allowed(_reason(report)) for report in reporter.stats.get(how, [])):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
