"""Messages of MessagePack, one behind the other in a file.

msgspec decodes one message that is all of its bytes, so the end of each is found first.
Source: the MessagePack specification, github.com/msgpack/msgpack, spec.md.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from cachewitness._util.errors import UsageError

_FIXED = {
    **dict.fromkeys((0xC0, 0xC2, 0xC3), 0),
    0xCA: 4,
    0xCB: 8,
    **{0xCC + power: 1 << power for power in range(4)},
    **{0xD0 + power: 1 << power for power in range(4)},
    **{0xD4 + power: 1 + (1 << power) for power in range(5)},
}
"""By first byte: how many bytes follow it."""
_COUNTED = {
    **{0xC4 + power: (1 << power, 0) for power in range(3)},
    **{0xC7 + power: (1 << power, 1) for power in range(3)},
    **{0xD9 + power: (1 << power, 0) for power in range(3)},
}
"""By first byte: of how many bytes the length is that follows, and how many come beside it."""
_NESTED = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""By first byte: of how many bytes the number of entries is, and of how many messages each."""


def messages(content: bytes, path: str) -> Iterator[object]:
    """Yield the messages of a file in turn. Raises UsageError, with the byte, where there is
    none.
    """
    at = 0
    while at < len(content):
        end = _end(content, at)
        if not 0 < end <= len(content):
            raise UsageError(f"{path}: byte {at + 1:,} is not the beginning of a whole message")
        try:
            yield msgspec.msgpack.decode(content[at:end])
        except (msgspec.DecodeError, RecursionError) as error:
            raise UsageError(f"{path}: the message at byte {at + 1:,}: {error}") from None
        at = end


def _end(content: bytes, at: int) -> int:
    """Return the first byte behind a message; 0 if none begins there."""
    left = 1
    while left and at < len(content):
        left -= 1
        first = content[at]
        at += 1
        if first < 0x80 or first >= 0xE0:
            continue
        if first < 0xA0:
            left += (first & 0x0F) * (2 if first < 0x90 else 1)
        elif first < 0xC0:
            at += first & 0x1F
        elif first in _FIXED:
            at += _FIXED[first]
        elif first in _COUNTED:
            size, more = _COUNTED[first]
            at += size + more + int.from_bytes(content[at : at + size], "big")
        elif first in _NESTED:
            size, each = _NESTED[first]
            left += each * int.from_bytes(content[at : at + size], "big")
            at += size
        else:
            return 0
    return 0 if left else at
