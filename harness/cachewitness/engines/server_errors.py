"""A server's address as the user names it, and a server's own words about an error as they are
repeated.
"""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

from cachewitness._util.errors import UsageError

WORDS_MAX = 300
"""How many letters of a server's words are repeated."""


def base_of(url: str, option: str) -> str:
    """Return the address of a server without `/v1` behind it. Raises UsageError, naming the
    option, if it is none.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise UsageError(f"{option}: {url!r} is no address ({error})") from None
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UsageError(f"{option}: {url!r} is not of the form http://HOST:PORT")
    return url.rstrip("/").removesuffix("/v1")


def error_text(body: bytes | str) -> str:
    """Return a server's own words about an error: its message if the body has one, the beginning
    of the body otherwise.
    """
    text = body.decode(errors="replace") if isinstance(body, bytes) else body
    try:
        found = msgspec.json.decode(text.encode())
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        found = None
    error = found.get("error", found) if isinstance(found, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    words = " ".join((message if isinstance(message, str) else text).split())
    return (
        "".join(letter if letter.isprintable() else "?" for letter in words[:WORDS_MAX])
        or "nothing"
    )
