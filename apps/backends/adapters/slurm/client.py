"""Asks slurmrestd, in the newest version that both sides know; errors in an answer are errors."""

from __future__ import annotations

import http.client
import json
import re
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from apps.backends.adapters.slurm import tokens
from apps.backends.adapters.slurm.options import Options
from apps.backends.adapters.slurm.runner import AWAY
from apps.backends.port import BackendError
from apps.common.sealing import Unreadable, unseal

KNOWN = (38, 39, 40, 41, 42)
OFFERED = re.compile(r"/slurm/v0\.0\.(\d+)/")
# What was found is kept for the process: by address, the version.
VERSIONS: dict[str, int] = {}
MOST_BYTES = 512 * 1024 * 1024
CHUNK = 64 * 1024
# Slurm's numbers: below these it was not reached or could not read us, in these it is the token.
FIRST_REFUSAL = 2_000
TOKEN_REFUSED = range(6_000, 7_000)
PROTOCOL_AUTHENTICATION = 1_007


class SlurmError(Exception):
    """Slurm was reached and said no; ``number`` is Slurm's, the message its words."""

    def __init__(self, words: str, number: int) -> None:
        super().__init__(words)
        self.number = number


def newest(offered: Sequence[int]) -> int:
    """Return the version to speak: the newest known, else the oldest of those that are newer.

    :raises BackendError: if there is none.
    """
    known = [version for version in offered if version in KNOWN]
    later = [version for version in offered if version > KNOWN[-1]]
    if known:
        return max(known)
    if later:
        return min(later)
    told = ", ".join(f"v0.0.{version}" for version in sorted(offered)) or "none"
    raise BackendError(
        f"slurmrestd offers {told}; Rollcall knows v0.0.{KNOWN[0]} and later.", retry=False
    )


class NotBelieved(BackendError):
    """slurmrestd answered that it does not take a token, or as if it did not."""


class Client:
    """One conversation with slurmrestd; the token is in no message."""

    def __init__(self, options: Options) -> None:
        parts = urlsplit(options.url)
        self._options = options
        self._host = parts.hostname or ""
        self._port = parts.port
        self._secure = parts.scheme == "https"
        self._folder = parts.path.rstrip("/")
        self._open: http.client.HTTPConnection | None = None

    @property
    def version(self) -> int:
        """Return the version that is spoken; asked for once a process."""
        if self._options.url not in VERSIONS:
            VERSIONS[self._options.url] = newest(self.offered())
        return VERSIONS[self._options.url]

    def offered(self) -> list[int]:
        """Return the versions that slurmrestd offers."""
        paths = self._answer("GET", "/openapi/v3", None).get("paths")
        names = paths if isinstance(paths, Mapping) else {}
        return sorted({int(found[1]) for name in names if (found := OFFERED.match(str(name)))})

    def get(self, path: str, *, service: str = "slurm") -> dict[str, Any]:
        """Return what is told of a path, as ``jobs`` or ``nodes``.

        :raises BackendError: if nothing answered in time.
        :raises SlurmError: if Slurm said no.
        """
        return self._asked("GET", path, None, service)

    def post(
        self, path: str, body: Mapping[str, Any], *, user: str = "", token: str = ""
    ) -> dict[str, Any]:
        """Change something; as ``get``. What it comes to is not known if nothing answers.

        ``user``: as whom, if not the service user, by their token or one that is signed for them.
        """
        if not user:
            return self._asked("POST", path, body)
        as_them = replace(self._options, user=user, token=token)
        return Client(as_them)._asked("POST", path, body)

    def delete(self, path: str) -> dict[str, Any]:
        """Cancel or signal something; as ``get``."""
        return self._asked("DELETE", path, None)

    def _asked(
        self, method: str, path: str, body: Mapping[str, Any] | None, service: str = "slurm"
    ) -> dict[str, Any]:
        whole = f"/{service}/v0.0.{self.version}/{path}"
        answer = self._answer(method, whole, body)
        errors = answer.get("errors")
        # A submission that is held tells so as an error, beside its id.
        if errors and not answer.get("job_id"):
            self._raise(errors)
        return answer

    def _raise(self, errors: object) -> None:
        """Raise for what stands in an answer's errors, with whatever status it came."""
        first = errors[0] if isinstance(errors, list) else errors
        said = first if isinstance(first, Mapping) else {"error": str(first)}
        number = said.get("error_number", said.get("error_code", -1))
        number = number if isinstance(number, int) else -1
        words = str(said.get("error") or "")
        if words in ("", "Unspecified error"):
            words = str(said.get("description") or words or "it does not say why")
        words = words.strip().rstrip(".")[:200]
        if number in TOKEN_REFUSED or number == PROTOCOL_AUTHENTICATION:
            raise self._refused_token()
        if number < FIRST_REFUSAL or any(sign in words.lower() for sign in AWAY):
            raise self._not_reached(words)
        raise SlurmError(words, number)

    def _not_reached(self, words: str) -> BackendError:
        """Return what is to be said of an error without a cause.

        Slurm 22.05 says the same whether slurmctld is down or does not believe the token.
        """
        if self._wrong_token():
            return self._refused_token()
        return NotBelieved(
            f"Slurm does not answer: slurmrestd says {words}; slurmctld is down, or does not take the"
            f" token of {self._options.user}.",
            retry=True,
        )

    def _refused_token(self) -> BackendError:
        why = self._wrong_token() or "it is not valid"
        return NotBelieved(
            f"slurmrestd refuses the token of {self._options.user}: {why}.", retry=True
        )

    def _wrong_token(self) -> str:
        """Return what is wrong with the token by what it says itself; empty: nothing."""
        user, until = tokens.claims(self._token())
        if until is not None and until < time.time():
            return f"it ended at {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(until))} UTC"
        return f"it is for {user}" if user and user != self._options.user else ""

    def _token(self) -> str:
        options = self._options
        try:
            if options.token:
                return unseal(options.token)
            return tokens.signed(Path(options.jwt_key).read_bytes(), options.user, now=time.time())
        except Unreadable:
            raise BackendError(
                "The token cannot be read with today's SECRET_KEY; enter it again.", retry=False
            ) from None
        except OSError as error:
            raise BackendError(
                f"The key for tokens cannot be read: {error.strerror}.", retry=False
            ) from None

    # One request

    def _answer(self, method: str, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        try:
            status, text = self._exchange(method, path, body)
        except TimeoutError:
            self._close()
            raise self._away(f"no answer within {self._options.timeout_seconds} s") from None
        except (OSError, http.client.HTTPException) as error:
            self._close()
            raise self._away(_words_of(error)) from None
        if status == 401:
            raise self._refused_token()
        if status == 404:
            VERSIONS.pop(self._options.url, None)
            raise self._away("it has no such address (HTTP 404)")
        try:
            read = json.loads(text)
        except ValueError:
            read = None
        if not isinstance(read, dict):
            raise self._away(f"its answer is no JSON (HTTP {status})")
        if status >= 300 and not read.get("errors"):
            raise self._away(f"HTTP {status} without a reason")
        return read

    def _exchange(
        self, method: str, path: str, body: Mapping[str, Any] | None
    ) -> tuple[int, bytes]:
        """Send one request and return status and body; what takes too long raises TimeoutError."""
        end = time.monotonic() + self._options.timeout_seconds
        headers = {
            "Accept": "application/json",
            "X-SLURM-USER-NAME": self._options.user,
            "X-SLURM-USER-TOKEN": self._token(),
        }
        sent = None
        if body is not None:
            sent = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        connection = self._connection()
        connection.request(method, self._folder + path, sent, headers)
        answer = connection.getresponse()
        parts: list[bytes] = []
        size = 0
        while part := answer.read(CHUNK):
            parts.append(part)
            size += len(part)
            if time.monotonic() > end:
                raise TimeoutError
            if size > MOST_BYTES:
                raise OSError(0, "its answer is too large")
        if answer.will_close:
            self._close()
        return answer.status, b"".join(parts)

    def _connection(self) -> http.client.HTTPConnection:
        """Return the connection, which is kept for the questions of one tick."""
        if self._open is None:
            limit = self._options.timeout_seconds
            if self._secure:
                trust = ssl.create_default_context(cafile=self._options.ca or None)
                self._open = http.client.HTTPSConnection(
                    self._host, self._port, timeout=limit, context=trust
                )
            else:
                self._open = http.client.HTTPConnection(self._host, self._port, timeout=limit)
        return self._open

    def _close(self) -> None:
        if self._open is not None:
            self._open.close()
        self._open = None

    def _away(self, words: str) -> BackendError:
        where = f"{self._host}:{self._port}" if self._port else self._host
        return BackendError(
            f"Slurm does not answer: slurmrestd at {where}: {words.rstrip('.')}.", retry=True
        )


def _words_of(error: Exception) -> str:
    """Return what a failed request is called; never the request itself."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return "the connection was cut off" if isinstance(error, OSError) else "it does not speak HTTP"
