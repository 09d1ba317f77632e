"""Runs Slurm's commands, here or on a login node over SSH, and says in one sentence what failed."""

from __future__ import annotations

import os
import secrets
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir

from apps.backends.adapters.slurm.options import Options
from apps.backends.port import BackendError

PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
# Read by machines: no locale, no zone, instants as seconds since 1970.
PLAIN = {"LC_ALL": "C", "TZ": "UTC", "SLURM_TIME_FORMAT": "%s"}
AWAY = (
    "unable to contact slurm controller",
    "socket timed out",
    "zero bytes were transmitted",
    "connection refused",
    "slurm backup controller in standby",
    "transport endpoint is not connected",
    "munge encode failed",
    "protocol authentication error",
    "try again later",
    "resource temporarily unavailable",
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What one command printed, and its exit status."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """Return the command's last words, without its name before them."""
        lines = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        return lines[-1].split("error: ", 1)[-1][:200] if lines else f"exit status {self.code}"

    @property
    def is_away(self) -> bool:
        """Return whether the controller was not reached, so that asking again may help."""
        words = self.err.lower()
        return any(sign in words for sign in AWAY)


class Runner:
    """One way to run commands on a cluster; it keeps nothing between two calls."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._where = options.commands

    def run(
        self,
        *command: str,
        stdin: str = "",
        plain: bool = True,
        extra: Mapping[str, str] | None = None,
        patience: float | None = None,
        before: Sequence[str] = (),
    ) -> Answer:
        """Run one command; ``plain``: its output is to be parsed, ``before``: what starts it.

        :raises BackendError: if it did not end in time, or the controller was not reached.
        """
        env = self._env(plain) | dict(extra or {})
        whole = [*before, *self._found(command)]
        if self._where == "local":
            limit = patience or self._options.timeout_seconds
            answer = self._wait(whole, env, stdin, limit)
        else:
            answer = self._ssh(_spelled(whole, env), stdin, patience)
        if answer.code and answer.is_away:
            raise self._away(command[0], answer.said)
        return answer

    def read(self, *commands: Sequence[str], patience: float | None = None) -> list[Answer]:
        """Run several commands that only read: one round trip over SSH.

        ``patience``: so many seconds instead of the cluster's, for what reads a database.

        :raises BackendError: as ``run``, or if the answer was cut off.
        """
        if self._where == "local":
            return [self.run(*command, patience=patience) for command in commands]
        mark = secrets.token_hex(8)
        parts = [
            f"{_spelled(self._found(command), self._env(True))} 2>&1 </dev/null;"
            f" printf '\\n{mark} %s\\n' $?"
            for command in commands
        ]
        whole = self._ssh("; ".join(parts), "", patience)
        answers = _split(whole.out, mark)
        if len(answers) != len(commands):
            raise self._away("ssh", f"the answer was cut off ({whole.said})")
        for command, answer in zip(commands, answers, strict=True):
            if answer.code and answer.is_away:
                raise self._away(command[0], answer.said)
        return answers

    def _found(self, command: Sequence[str]) -> list[str]:
        """Return a command of Slurm's where the options say it is; a whole path stays as it is."""
        folder = self._options.bin
        if not self._where:
            raise BackendError(
                f"Only slurmrestd is known of this cluster, and {command[0]} is not done by it: name a"
                " login node, or the folder of Slurm's commands.",
                retry=False,
            )
        if command[0].startswith("/"):
            return list(command)
        return [f"{folder.rstrip('/')}/{command[0]}" if folder else command[0], *command[1:]]

    def _env(self, plain: bool) -> dict[str, str]:
        """Return all that a command finds in its environment: sbatch hands it on to the job."""
        env = {"PATH": f"{self._options.bin}:{PATH}" if self._options.bin else PATH}
        if self._options.conf:
            env["SLURM_CONF"] = self._options.conf
        return env | PLAIN if plain else env

    def _ssh(self, line: str, stdin: str, patience: float | None = None) -> Answer:
        options, limit = self._options, self._options.timeout_seconds
        command = [
            "ssh", "-T", "-i", options.key, "-p", str(options.port),
            "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-o", f"ConnectTimeout={limit}",
            "-o", "StrictHostKeyChecking=yes", "-o", "LogLevel=ERROR",
            "-o", "ControlMaster=auto", "-o", "ControlPersist=60",
            "-o", f"ControlPath={_sockets()}/%C",
        ]  # fmt: skip
        if options.known_hosts:
            command += ["-o", f"UserKnownHostsFile={options.known_hosts}"]
        if options.user:
            command += ["-l", options.user]
        env = {"PATH": PATH, "HOME": os.environ.get("HOME", "/")}
        answer = self._wait([*command, "--", options.host, line], env, stdin, patience or limit)
        if answer.code == 255:
            raise BackendError(
                f"{options.host} cannot be reached over SSH: {answer.said}.", retry=True
            )
        return answer

    def _wait(
        self, command: Sequence[str], env: Mapping[str, str], stdin: str, limit: float
    ) -> Answer:
        try:
            done = subprocess.run(  # noqa: S603  a list, never through a shell of this machine
                list(command), env=dict(env), input=stdin.encode(), capture_output=True,
                timeout=limit, check=False, cwd="/",
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            name = Path(command[0]).name
            raise self._away(name, f"no answer within {limit:g} s") from None
        except OSError as error:
            raise BackendError(
                f"{command[0]} cannot be started here: {error.strerror}.", retry=False
            ) from None
        out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        return Answer(done.returncode, out, err)

    @staticmethod
    def _away(command: str, words: str) -> BackendError:
        return BackendError(f"Slurm does not answer: {command}: {words.rstrip('.')}.", retry=True)


def _spelled(command: Sequence[str], env: Mapping[str, str]) -> str:
    """Return a command as the login node's shell reads it: each word quoted, nothing inherited."""
    words = [f"{name}={value}" for name, value in env.items()]
    return shlex.join(["env", "-i", *words, *command])


def _split(out: str, mark: str) -> list[Answer]:
    """Take apart the answers of several commands; what has no closing mark is left out."""
    answers = []
    for part in out.split(f"\n{mark} ")[1:]:
        answers.append(part.split("\n", 1)[0])
    bodies = out.split(f"\n{mark} ")
    texts = [bodies[0], *(part.split("\n", 1)[-1] for part in bodies[1:])]
    return [
        Answer(int(code), text, text if int(code) else "")
        for code, text in zip(answers, texts, strict=False)
        if code.isdigit()
    ]


def _sockets() -> Path:
    """Return the folder of the connections that are kept open, which is nobody else's."""
    folder = Path(gettempdir()) / f"rollcall-ssh-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise BackendError(f"{folder} is not ours; remove it.", retry=False)
    return folder
