"""The rules of axe-core, from its own package on npm: fetched once, kept beside the caches."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from functools import cache
from pathlib import Path

import pytest

VERSION = "4.14.1"
KEPT = Path(__file__).resolve().parents[2] / ".cache" / f"axe-core-{VERSION}.min.js"


@cache
def axe_source() -> str:
    """Return axe's script; the test is skipped where neither a kept copy nor npm can give it."""
    if not KEPT.is_file() and not _fetch():
        pytest.skip("axe-core is absent: npm could not fetch it")
    return KEPT.read_text(encoding="utf-8")


def _fetch() -> bool:
    npm = shutil.which("npm")
    if npm is None:
        return False
    KEPT.parent.mkdir(exist_ok=True)
    try:
        subprocess.run(
            [npm, "pack", f"axe-core@{VERSION}", "--silent"],
            cwd=KEPT.parent,
            check=True,
            timeout=60,
            capture_output=True,
        )
    except (subprocess.SubprocessError, OSError):
        return False
    package = KEPT.parent / f"axe-core-{VERSION}.tgz"
    with tarfile.open(package) as archive:
        script = archive.extractfile("package/axe.min.js")
        if script is None:
            return False
        KEPT.write_bytes(script.read())
    package.unlink()
    return True
