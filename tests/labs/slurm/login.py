"""A login node: a real sshd on a port of its own, which lets in one key."""

from __future__ import annotations

import getpass
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.services import die_with_parent

PATIENCE = 15.0
SSHD = Path("/usr/sbin/sshd")
CONF = """\
ListenAddress 127.0.0.1:{port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
StrictModes no
"""


@dataclass(frozen=True)
class Login:
    """How the login node is reached, in the words of a cluster's options."""

    port: int
    key: Path
    known_hosts: Path

    @property
    def options(self) -> dict[str, object]:
        return {
            "way": "ssh", "host": "127.0.0.1", "port": self.port, "user": getpass.getuser(),
            "key": str(self.key), "known_hosts": str(self.known_hosts),
        }  # fmt: skip


def _make_key(path: Path) -> str:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)], check=True
    )
    return path.with_suffix(".pub").read_text().strip()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def login_node(folder: Path) -> Iterator[Login]:
    """Run a login node for as long as the block."""
    folder.mkdir()
    host, port = _make_key(folder / "host_key"), _free_port()
    (folder / "authorized_keys").write_text(_make_key(folder / "key") + "\n")
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {host}\n")
    (folder / "sshd_config").write_text(CONF.format(port=port, folder=folder))
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # Debian's sshd will not start without it
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [str(SSHD), "-D", "-e", "-f", str(folder / "sshd_config")],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            preexec_fn=die_with_parent(signal.SIGKILL),
        )  # fmt: skip
    try:
        end = time.monotonic() + PATIENCE
        while b"listening" not in (folder / "log").read_bytes():
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < end, (folder / "log").read_text()
            time.sleep(0.05)
        yield Login(port, folder / "key", folder / "known_hosts")
    finally:
        process.terminate()
        process.wait()
