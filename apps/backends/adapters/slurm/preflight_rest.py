"""What works by slurmrestd, what is missing and the command that grants it; it only asks.

Where there are commands beside it, the questions of ``preflight`` follow; else those of them that
slurmrestd can answer.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from time import perf_counter
from typing import Any
from urllib.parse import quote, urlsplit

from apps.backends.adapters.slurm import tokens, verdicts
from apps.backends.adapters.slurm.client import KNOWN, Client, SlurmError
from apps.backends.adapters.slurm.options import Options
from apps.backends.adapters.slurm.rest import CANNOT_SIGNAL_ALONE, NEW_SHAPE, SIGNALS_ALONE
from apps.backends.adapters.slurm.shapes import instant, listed, node_of, text, words
from apps.backends.port import BackendError, Finding
from apps.common.sealing import Unreadable, unseal
from apps.common.time import MICROSECOND, to_us

# A token that ends sooner is worth a word.
SOON_SECONDS = 7 * 86_400
LIFESPAN = 31_536_000
UNKNOWN_USER = 9_003


class RestPreflight:
    """One preflight by slurmrestd: how it is reached, and what it tells."""

    def __init__(self, options: Options, now: datetime, *, advised: bool = False) -> None:
        self._options = options
        self._client = Client(options)
        self._now = now
        self._advised = advised
        self._began = perf_counter()

    def reach(self) -> list[Finding]:
        """Return how slurmrestd and slurmctld behind it are reached; one that is missing ends it."""
        found = [self._token(), *self._encryption()]
        if found[0].state == "missing":
            return found
        try:
            offered, version = self._client.offered(), self._client.version
            found.append(_spoken(self._options.url, offered, version))
        except BackendError as error:
            found.append(self._away(error.message))
            return found
        try:
            answer = self._client.get("diag")
        except (BackendError, SlurmError) as error:
            # 22.05 says alike of a slurmctld that is down and of one that does not take the token.
            command = f"scontrol ping && {self._grant()}"
            return [*found, Finding("slurmctld", "missing", str(error), command)]
        found.append(verdicts.service_user(self._options.user))
        found.append(verdicts.version(_release(answer)))
        found.append(Finding("slurmctld", "ok", "slurmctld answers slurmrestd."))
        counts = answer.get("statistics")
        as_of = instant(counts.get("req_time")) if isinstance(counts, Mapping) else None
        if as_of is not None:
            passed = int(perf_counter() - self._began)
            found.append(verdicts.clock(as_of - to_us(self._now) // MICROSECOND - passed))
        return found

    def rest(self, wanted: Sequence[str]) -> list[Finding]:
        """Return what slurmrestd alone tells; ``wanted`` are the accounts that are submitted to."""
        found = []
        try:
            found += self._partition()
        except (BackendError, SlurmError) as error:
            found.append(Finding("partition", "warning", str(error)))
        found += self._accounting(wanted)
        said = "slurmrestd cannot try a submission without making one: the first launch shows it."
        found.append(Finding("submission", "warning", said))
        said = (
            "slurmrestd does not tell RequeueExit, KillWait, cred_expire, PrivateData and"
            " PriorityType: see with scontrol whether they are as docs/SLURM.md wants them."
        )
        found.append(Finding("settings", "warning", said, "scontrol show config"))
        if self._client.version < SIGNALS_ALONE:
            found.append(Finding("signal", "warning", CANNOT_SIGNAL_ALONE))
        return found

    def _grant(self) -> str:
        return f"scontrol token username={shlex.quote(self._options.user)} lifespan={LIFESPAN}"

    def _token(self) -> Finding:
        """Return whose the token is and until when it is valid; never the token."""
        user = self._options.user
        if self._options.jwt_key:
            said = f"Tokens of {user} are signed here, each for {tokens.SECONDS} s."
            return Finding("token", "ok", said)
        try:
            whose, until = tokens.claims(unseal(self._options.token))
        except Unreadable:
            said = "The token cannot be read with today's SECRET_KEY; enter it again."
            return Finding("token", "missing", said, self._grant())
        if whose and whose != user:
            said = f"The token is for {whose}, not for {user}."
            return Finding("token", "missing", said, self._grant())
        if until is None:
            return Finding("token", "warning", "The token does not say when it ends.")
        left = until - to_us(self._now) // MICROSECOND
        when = datetime.fromtimestamp(until, UTC).strftime("%Y-%m-%d %H:%M UTC")
        if left <= 0:
            said = f"The token of {user} ended at {when}."
            return Finding("token", "missing", said, self._grant())
        said = f"The token of {user} is valid until {when}."
        if left < SOON_SECONDS:
            return Finding("token", "warning", said, self._grant())
        return Finding("token", "ok", said)

    def _encryption(self) -> list[Finding]:
        parts = urlsplit(self._options.url)
        if parts.scheme == "https" or parts.hostname in ("127.0.0.1", "localhost", "::1"):
            return []
        said = "The token goes over the network as it is: slurmrestd's address is not https."
        return [Finding("encryption", "warning", said)]

    def _away(self, message: str) -> Finding:
        said = message.lower()
        command = "systemctl start slurmrestd" if "refused" in said and "token" not in said else ""
        return Finding(
            "slurmrestd", "missing", message, self._grant() if "token" in said else command
        )

    def _partition(self) -> list[Finding]:
        known = {
            text(one.get("name")): {
                "Default": "YES" if "default" in words(one.get("flags")) else "NO",
                "State": _state(one),
            }
            for one in listed(self._client.get("partitions"), "partitions")
        }
        if not self._options.partition and self._client.version >= NEW_SHAPE:
            said = "slurmrestd does not tell which partition is the default one: name one."
            return [Finding("partition", "warning", said)]
        nodes = [node_of(node) for node in listed(self._client.get("nodes"), "nodes")]
        return verdicts.partition(self._options.partition, known, nodes)

    def _accounting(self, wanted: Sequence[str]) -> list[Finding]:
        user = self._options.user
        more = "?with_assocs=true" if self._client.version >= NEW_SHAPE else ""
        path = f"user/{quote(user, safe='')}{more}"
        try:
            found = listed(self._client.get(path, service="slurmdb"), "users")
        except SlurmError as error:
            if error.number != UNKNOWN_USER:
                return [verdicts.no_slurmdbd(str(error))]
            found = []
        except BackendError as error:
            return [verdicts.no_slurmdbd(error.message)]
        try:
            accounts = listed(self._client.get("accounts", service="slurmdb"), "accounts")
        except (BackendError, SlurmError) as error:
            return [verdicts.no_slurmdbd(str(error))]
        known = {text(one.get("name")) for one in accounts}
        places = _places(found)
        told = verdicts.accounting(user, places, known, wanted)
        if self._advised:
            may = user == "root" or any(place[1] in verdicts.OPERATORS for place in places)
            told.append(verdicts.ranking(user, may=may))
        return told


def _spoken(url: str, offered: Sequence[int], version: int) -> Finding:
    told = f"slurmrestd answers at {url}; Rollcall speaks v0.0.{version} with it."
    if version in KNOWN:
        return Finding("slurmrestd", "ok", told)
    least = f"v0.0.{min(offered)}"
    return Finding("slurmrestd", "warning", f"{told} That is untried: it offers {least} and later.")


def _release(answer: Mapping[str, Any]) -> str:
    """Return Slurm's release as an answer's meta tells it."""
    meta = answer.get("meta")
    told = (meta.get("slurm") or meta.get("Slurm")) if isinstance(meta, Mapping) else None
    return text(told.get("release")) if isinstance(told, Mapping) else ""


def _state(partition: Mapping[str, Any]) -> str:
    inner = partition.get("partition")
    told = inner.get("state") if isinstance(inner, Mapping) else partition.get("state")
    return (words(told) or [""])[0]


def _places(users: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return user, admin level, default account and account, one for each place of the user."""
    rows = []
    for one in users:
        level, default = words(one.get("administrator_level")), one.get("default")
        usual = text(default.get("account")) if isinstance(default, Mapping) else ""
        for place in one.get("associations") or []:
            account = text(place.get("account"))
            rows.append([text(one.get("name")), (level or [""])[0], usual, account])
    return rows
