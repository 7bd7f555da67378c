"""N from vLLM's log: the line that step 1 of LMCache's document greps for.

    INFO ... interface.py:670] Setting attention block size to 784 tokens to
    ensure that attention page size is >= mamba page size.

An engine may say more than once what it sets the block to, in other words each time: for a page
whose keys and values are quantized, and on XPU to a multiple of the kernel's block. What it says
last holds (vLLM 0.33.0, platforms/interface.py and xpu.py). The same words with another number are
another engine's, and such a log has no single N.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cachewitness._util.errors import UsageError

SAYS = "Setting attention block size to"
_LINE = re.compile(rf"{SAYS}\s+(\S*)\s+tokens\b\s*(.*)")
_TOKENS_MAX = 2**31 - 1


@dataclass(frozen=True)
class Logged:
    """A block size in tokens, and the line that says so."""

    tokens: int
    path: Path
    line: int

    @property
    def place(self) -> str:
        """Return the file and the line, as a message begins."""
        return f"{self.path}: line {self.line}"


def block_size_in(path: Path) -> Logged:
    """Return the block size that an engine set last. Raises UsageError with file, line and field
    if there is no single one.
    """
    by_engine: dict[str, Logged] = {}
    found: Logged | None = None
    for number, text in enumerate(_lines(path), start=1):
        match = _LINE.search(text)
        if match is None:
            continue
        found = Logged(_tokens(match[1], f"{path}: line {number}"), path, number)
        before = by_engine.setdefault(match[2].strip(), found)
        if before.tokens != found.tokens:
            other = f"line {before.line} says {before.tokens}"
            raise UsageError(
                f"{found.place}: N: {found.tokens} tokens, but {other}; give the log of one engine"
            )
    if found is None:
        raise UsageError(
            f"{path}: no line says '{SAYS} N tokens'; vLLM prints it while it starts, for a model"
            " with recurrent layers and with --enable-prefix-caching --mamba-cache-mode align"
        )
    return found


def _tokens(text: str, place: str) -> int:
    if not (
        text.isascii()
        and text.isdigit()
        and len(text) <= len(str(_TOKENS_MAX))
        and 0 < int(text) <= _TOKENS_MAX
    ):
        raise UsageError(f"{place}: N: {text[:40]!r} is no number of tokens, at least 1")
    return int(text)


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a log one by one, however long it is; bytes that are no text are
    replaced.
    """
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            yield from file
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from None
