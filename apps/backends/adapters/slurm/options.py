"""What an owner says about a Slurm cluster so that Rollcall can reach it, checked field by field."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from apps.common.errors import Invalid

WORD = re.compile(r"[A-Za-z0-9_.@-]+")
LONGEST = 255


@dataclass(frozen=True, slots=True)
class Options:
    """How a Slurm cluster is reached, and what is asked of it for each job."""

    way: str = "local"
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
    directory: str = "/tmp"  # noqa: S108  every node has one, and the owner may name another
    output: str = "%x.out"
    timeout_seconds: int = 5
    start_seconds: int = 60
    settle_seconds: int = 15


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
    if value not in ("local", "ssh"):
        raise _refuse(key, f"must be local or ssh, not {value!r}.")
    return str(value)


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


READ: dict[str, Callable[[str, object], Any]] = {
    "way": _way,
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
    if read.way == "ssh" and not read.host:
        raise _refuse("host", "must name the login node, since options.way is ssh.")
    if read.way == "ssh" and not read.key:
        raise _refuse("key", "must be the path of a private key, since options.way is ssh.")
    if read.way == "local" and (read.host or read.key):
        raise _refuse("way", "must be ssh, since a host or a key is named.")
    if not read.directory:
        raise _refuse("directory", "must be a folder that the jobs may write to.")
    return read


def check_options(options: Mapping[str, Any]) -> None:
    """Raise Invalid naming the field unless a Slurm cluster can be reached by these options."""
    read_options(options)
