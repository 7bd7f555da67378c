"""Where a server is, and what goes with every request to it. Nothing of the key is ever said."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from cachewitness._util.errors import UsageError
from cachewitness.engines.server_errors import base_of, error_text

NAME = "openai-server"
BODY_MAX = 1 << 20
"""Bytes that are read of a body which is no answer to a prompt."""
CONNECT_S = 20
"""Seconds in which a server must be reached."""


class ServerFailed(Exception):
    """The server did not answer what it must; one line."""


@dataclass(frozen=True)
class Address:
    """A server's base address, without `/v1`, and the key that it is sent; an empty one is not."""

    base: str
    key: str = field(default="", repr=False)

    def connection(self, seconds: float | None = None) -> http.client.HTTPConnection:
        """Return a connection that is not open yet; reading from it may take so many seconds, or
        for ever.
        """
        parts = urlsplit(self.base)
        kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        return kind(parts.hostname or "", parts.port, timeout=seconds)

    def request(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes | None = None,
    ) -> None:
        """Send a request over a connection."""
        connection.request(method, f"{urlsplit(self.base).path}{path}", body, self._headers())

    def ask(self, path: str, seconds: float) -> Any:
        """Return the JSON that a GET answers. Raises ServerFailed if there is none."""
        connection = self.connection(seconds)
        try:
            self.request(connection, "GET", path)
            response = connection.getresponse()
            content = response.read(BODY_MAX)
            if response.status != http.client.OK:
                raise ServerFailed(
                    f"{path} answers {response.status}: {self.told(error_text(content))}"
                )
            return json.loads(content)
        except (OSError, http.client.HTTPException) as error:
            raise ServerFailed(
                f"{self.base} does not answer ({self.told(str(error) or type(error).__name__)})"
            ) from None
        except (ValueError, RecursionError):
            raise ServerFailed(f"{path} answers 200, but its body is no JSON") from None
        finally:
            connection.close()

    def told(self, text: str) -> str:
        """Return a text in which the key is not repeated."""
        return text.replace(self.key, "(key)") if self.key else text

    def _headers(self) -> Mapping[str, str]:
        return {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {self.key}"} if self.key else {}
        )


def address_of(options: Mapping[str, str], name: str) -> Address:
    """Return the address that an option names, with the key that `key` names a variable for.

    Raises UsageError if it is none, or holds a password, or the variable is not set; the password
    is not repeated.
    """
    url = options[name]
    variable = options.get("key", "")
    if "@" in url:
        raise UsageError(
            f"--engine {NAME}: {name} holds a user or password; name a variable that holds the key,"
            " key=VARIABLE"
        )
    base = base_of(url, f"--engine {NAME}: {name}")
    try:
        reachable = urlsplit(base).port != 0 and bool(urlsplit(base).hostname)
    except ValueError:
        reachable = False
    if not reachable:
        raise UsageError(f"--engine {NAME}: {name}={url} is not of the form http://HOST:PORT")
    key = os.environ.get(variable, "").strip() if variable else ""
    if variable and (not key or not key.isascii() or not key.isprintable()):
        raise UsageError(
            f"--engine {NAME}: key={variable} names a variable of the environment that holds no key"
        )
    return Address(base, key)
