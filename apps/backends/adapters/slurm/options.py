"""What an owner says about a Slurm cluster so that Rollcall can reach it, checked field by field."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from apps.backends.adapters.slurm.tokens import TOKEN
from apps.common.errors import Invalid
from apps.common.sealing import is_sealed

WORD = re.compile(r"[A-Za-z0-9_.@-]+")
LONGEST = 255
LONGEST_TOKEN = 4_096


@dataclass(frozen=True, slots=True)
class Options:
    """How a Slurm cluster is reached, and what is asked of it for each job."""

    way: str = "local"
    url: str = ""
    token: str = field(default="", repr=False)
    jwt_key: str = ""
    ca: str = ""
    host: str = ""
    user: str = ""
    port: int = 22
    key: str = ""
    known_hosts: str = ""
    bin: str = ""
    conf: str = ""
    partition: str = ""
    account: str = ""
    accounts: Mapping[str, str] = field(default_factory=dict)
    qos: str = ""
    run_as: str = "service"
    users: Mapping[str, str] = field(default_factory=dict)
    directory: str = "/tmp"  # noqa: S108  every node has one, and the owner may name another
    output: str = "%x.out"
    timeout_seconds: int = 5
    start_seconds: int = 60
    settle_seconds: int = 15

    @property
    def commands(self) -> str:
        """Return where Slurm's commands are run: local, ssh, or empty: slurmrestd is the only way."""
        if self.way != "rest":
            return self.way
        if self.host:
            return "ssh"
        return "local" if self.bin or self.conf else ""


def _refuse(key: str, message: str) -> Invalid:
    return Invalid(f"options.{key} {message}", field=f"options.{key}")


def _text(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise _refuse(key, f"must be text, not {value!r}.")
    if len(value) > LONGEST or not value.isprintable():
        raise _refuse(key, f"must be at most {LONGEST} printable characters.")
    return value


def _word(key: str, value: object) -> str:
    """Return a name that no command takes for one of its options."""
    text = _text(key, value)
    if text and (text.startswith("-") or not WORD.fullmatch(text)):
        raise _refuse(key, "must be letters, digits, and . _ @ - inside.")
    return text


def _label(key: str, value: object) -> str:
    """Return a name of Slurm's own; an account's may hold spaces."""
    text = _text(key, value)
    if text.startswith("-") or "," in text:
        raise _refuse(key, "must not start with - nor hold a comma.")
    return text


def _path(key: str, value: object) -> str:
    """Return a path; what is none is not repeated: it may be the key itself."""
    text = _text(key, value)
    if text and not PurePosixPath(text).is_absolute():
        raise _refuse(key, "must be a whole path that starts with /.")
    return text


def _way(key: str, value: object) -> str:
    if value not in ("local", "ssh", "rest"):
        raise _refuse(key, f"must be local, ssh or rest, not {value!r}.")
    return str(value)


def _run_as(key: str, value: object) -> str:
    if value not in ("service", "sudo", "token"):
        raise _refuse(key, f"must be service, sudo or token, not {value!r}.")
    return str(value)


def _url(key: str, value: object) -> str:
    text = _text(key, value)
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise _refuse(key, "must be an address as https://slurm.example.org:6820.") from None
    if not text:
        return ""
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise _refuse(key, "must be an address as https://slurm.example.org:6820.")
    if parts.username is not None or parts.query or parts.fragment or " " in text:
        raise _refuse(key, "must be an address alone: no user, no ? and no # in it.")
    return text.rstrip("/")


def _token(key: str, value: object) -> str:
    """Return a token, sealed or not; one that is none is never repeated."""
    if not isinstance(value, str) or len(value) > LONGEST_TOKEN:
        raise _refuse(key, f"must be text of at most {LONGEST_TOKEN} characters.")
    text = value.strip().removeprefix("SLURM_JWT=")
    if text and not is_sealed(text) and not TOKEN.fullmatch(text):
        raise _refuse(key, "must be a token as `scontrol token` prints it: three parts with dots.")
    return text


def _within(low: int, high: int) -> Callable[[str, object], int]:
    def read(key: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise _refuse(key, f"must be a whole number, not {value!r}.")
        if not low <= value <= high:
            raise _refuse(key, f"must be from {low} to {high}.")
        return value

    return read


def _accounts(key: str, value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise _refuse(key, "must be an object: the path of a tenant, and its account.")
    return {str(tenant): _label(f"{key}.{tenant}", name) for tenant, name in value.items()}


def _users(key: str, value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise _refuse(
            key, "must be an object: a user of Rollcall's, and their name on the cluster."
        )
    return {str(user): _word(f"{key}.{user}", name) for user, name in value.items()}


READ: dict[str, Callable[[str, object], Any]] = {
    "way": _way,
    "url": _url,
    "token": _token,
    "jwt_key": _path,
    "ca": _path,
    "host": _word,
    "user": _word,
    "port": _within(1, 65_535),
    "key": _path,
    "known_hosts": _path,
    "bin": _path,
    "conf": _path,
    "partition": _label,
    "account": _label,
    "accounts": _accounts,
    "qos": _label,
    "run_as": _run_as,
    "users": _users,
    "directory": _path,
    "output": _text,
    "timeout_seconds": _within(1, 60),
    "start_seconds": _within(5, 86_400),
    "settle_seconds": _within(0, 600),
}


def read_options(options: Mapping[str, Any]) -> Options:
    """Return the options of a cluster.

    :raises Invalid: naming ``options.<key>``.
    """
    unknown = sorted(str(key) for key in options if key not in READ)
    if unknown:
        raise _refuse(unknown[0][:80], f"is not known; there are {', '.join(READ)}.")
    read = Options(**{key: READ[key](key, value) for key, value in options.items()})
    if read.way == "rest":
        _check_rest(read)
    elif read.url or read.jwt_key or read.ca:
        raise _refuse("way", "must be rest, since slurmrestd's address or its key is named.")
    if read.commands == "ssh" and not read.host:
        raise _refuse("host", "must name the login node, since options.way is ssh.")
    if read.commands == "ssh" and not read.key:
        raise _refuse("key", "must be the path of a private key, since a login node is named.")
    if read.commands != "ssh" and (read.host or read.key):
        raise _refuse("way", "must be ssh, since a host or a key is named.")
    if read.run_as == "sudo" and not read.commands:
        raise _refuse("run_as", "can be sudo only where Slurm's commands are run.")
    if read.run_as == "token" and read.way != "rest":
        raise _refuse("run_as", "can be token only where options.way is rest.")
    if not read.directory:
        raise _refuse("directory", "must be a folder that the jobs may write to.")
    return read


def _check_rest(read: Options) -> None:
    if not read.url:
        raise _refuse("url", "must be the address of slurmrestd, since options.way is rest.")
    if not read.user:
        raise _refuse("user", "must name the user that the token is for.")
    if not read.token and not read.jwt_key:
        raise _refuse("token", "must be a token, or options.jwt_key the path of the key for one.")
    if read.ca and not read.url.startswith("https:"):
        raise _refuse("ca", "goes with an address that starts with https://.")


def check_options(options: Mapping[str, Any]) -> None:
    """Raise Invalid naming the field unless a Slurm cluster can be reached by these options."""
    read_options(options)
