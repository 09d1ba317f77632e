"""The lab's slurmrestd, and the tokens that it asks for."""

from __future__ import annotations

import os
import pwd
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.labs.slurm.lab import Lab


class Rest:
    """The REST of a lab whose shape asks for it; ``port`` stays its own while it is down."""

    PROGRAMS = ("slurmrestd",)

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.port = 0

    @property
    def key(self) -> Path:
        """Where the key is with which tokens are signed."""
        return self.lab.dir / "jwt" / "key"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def prepare(self, port: int) -> None:
        """Make the key, which slurmctld reads when it starts."""
        self.port = port
        self.key.parent.mkdir()
        self.key.write_bytes(os.urandom(32))
        self.key.chmod(0o600)

    def start(self) -> None:
        """Start slurmrestd: as anybody but root, who may not run it, nor Slurm's own user."""
        other = ("-u", "nobody", "-g", "nogroup") if os.geteuid() == 0 else ()
        # One of later years starts without a slurmdbd too, if it is told to leave it out.
        alone = () if self.lab.shape.accounting else ("-s", "slurmctld")
        # Without SLURM_JWT it refuses every request; the check is whether it is Slurm's own user.
        env = {"SLURM_JWT": "daemon", "SLURMRESTD_SECURITY": "disable_user_check"}
        self.lab.spawn(
            "slurmrestd", "slurmrestd", *other, *alone, "-a", "rest_auth/jwt",
            f"127.0.0.1:{self.port}",
            env=env,
        )  # fmt: skip
        self.lab.wait(self._listens, "slurmrestd")

    def _listens(self) -> bool:
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", self.port)) == 0

    def token(self, user: str = "") -> str:
        """Return a token of Slurm's own for a user, by default us."""
        said = self.lab.run("scontrol", "token", f"username={user or self.user}", "lifespan=3600")
        return said.partition("=")[2]

    @property
    def user(self) -> str:
        return pwd.getpwuid(os.geteuid()).pw_name

    def options(self, **changes: Any) -> dict[str, Any]:
        """Return how it is reached, in the words of a cluster's options: without commands."""
        reach = {"way": "rest", "url": self.url, "user": self.user, "token": self.token()}
        return {"conf": "", "bin": "", **reach, **changes}
