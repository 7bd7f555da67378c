"""The key that goes with every request to a server. Nothing of it is ever said."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from cachewitness._util.errors import UsageError
from cachewitness.engines.server_errors import error_text


@dataclass(frozen=True)
class ServerKey:
    """A key, sent as a bearer token; an empty one is not sent."""

    value: str = field(default="", repr=False)

    @classmethod
    def named(cls, variable: str, refusal: str) -> ServerKey:
        """Return the key that a variable of the environment holds, none if no variable is named.

        Raises UsageError, which says `refusal`, if it holds none.
        """
        value = os.environ.get(variable, "").strip() if variable else ""
        if variable and (not value or not value.isascii() or not value.isprintable()):
            raise UsageError(refusal)
        return cls(value)

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of a request with a body of JSON."""
        bearer = {"Authorization": f"Bearer {self.value}"} if self.value else {}
        return {"Content-Type": "application/json", **bearer}

    def redacted(self, text: str) -> str:
        """Return a text in which the key is not repeated."""
        return text.replace(self.value, "(key)") if self.value else text

    def error_text(self, body: bytes | str) -> str:
        """Return a server's own words about an error, in which it may repeat the key: before they
        are cut, since a part of a key is known no more.
        """
        text = body.decode(errors="replace") if isinstance(body, bytes) else body
        return self.redacted(error_text(self.redacted(text)))


NO_KEY = ServerKey()
