"""Where a server is, and what goes with every request to it. Nothing of the key is ever said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from threading import Event
from typing import Any
from urllib.parse import urlsplit

from cachewitness._util import http
from cachewitness._util.errors import UsageError
from cachewitness.engines.server_errors import base_of
from cachewitness.engines.server_key import NO_KEY, ServerKey

NAME = "openai-server"
BODY_MAX = 1 << 20
"""Bytes that are read of a body which is no answer to a prompt."""


class ServerFailed(Exception):
    """The server did not answer what it must; one line."""


@dataclass(frozen=True)
class Address:
    """A server's base address, without `/v1`, and the key that it is sent."""

    base: str
    key: ServerKey = NO_KEY

    def exchange(self, path: str, body: bytes, sent: Event) -> http.Exchange:
        """Return a POST that is not sent yet; it takes as long as it takes, unless it is left."""
        return http.Exchange("POST", f"{self.base}{path}", body, self.key.headers, sent=sent)

    def ask(self, path: str, seconds: float) -> Any:
        """Return the JSON that a GET answers. Raises ServerFailed if there is none."""
        url = f"{self.base}{path}"
        try:
            reply = http.ask("GET", url, headers=self.key.headers, within=seconds, most=BODY_MAX)
            if reply.status != http.OK:
                words = self.key.error_text(reply.body)
                raise ServerFailed(f"{path} answers {reply.status}: {words}")
            return reply.json()
        except http.NoAnswer as error:
            words = self.key.redacted(str(error))
            raise ServerFailed(f"{self.base} does not answer ({words})") from None
        except ValueError:
            raise ServerFailed(f"{path} answers 200, but its body is no JSON") from None


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
    key = ServerKey.named(
        variable,
        f"--engine {NAME}: key={variable} names a variable of the environment that holds no key",
    )
    return Address(base, key)
