"""A server's key goes with requests, and is said nowhere."""

from __future__ import annotations

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.engines.server_errors import WORDS_MAX
from cachewitness.engines.server_key import NO_KEY, ServerKey

KEY = "k-0123456789"


@pytest.mark.parametrize("before", [0, WORDS_MAX - 6, WORDS_MAX - 1])
def test_no_part_of_it_is_in_a_server_s_words(before: int) -> None:
    """Also where the words are cut within it."""
    body = b"x" * before + KEY.encode() + b" is refused"
    words = ServerKey(KEY).error_text(body)
    assert words.startswith("x" * before + "(key)"[: WORDS_MAX - before])
    assert "k-" not in words
    assert KEY[:1] in NO_KEY.error_text(body), "what is no key is repeated"


def test_a_variable_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", f" {KEY}\n")
    key = ServerKey.named("THE_KEY", "holds none")
    assert key.headers["Authorization"] == f"Bearer {KEY}" and KEY not in repr(key)
    assert ServerKey.named("", "holds none") == NO_KEY and "Authorization" not in NO_KEY.headers


@pytest.mark.parametrize("value", [None, "", " ", "schlüssel", "a\x07b"])
def test_a_variable_without_one_is_refused(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("THE_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("THE_KEY", value)
    with pytest.raises(UsageError, match="holds none"):
        ServerKey.named("THE_KEY", "holds none")
