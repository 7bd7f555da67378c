"""Messages of MessagePack are told apart in a file, whatever they are made of."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachewitness._util.errors import UsageError
from cachewitness._util.msgpack import messages

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.binary(max_size=300)
    | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=30,
)


@given(st.lists(VALUES, max_size=5))
def test_what_was_written_one_behind_the_other_is_read_in_turn(values: list[object]) -> None:
    content = b"".join(map(msgspec.msgpack.encode, values))
    assert list(messages(content, "f")) == values


def test_long_forms_and_extensions_are_passed_over_whole() -> None:
    long = [b"x" * 70_000, "y" * 70_000, [1] * 70_000, math.pi]
    extension = msgspec.msgpack.Ext(5, b"z" * 17)
    content = b"".join(map(msgspec.msgpack.encode, [*long, extension, 1]))
    assert list(messages(content, "f"))[-1] == 1


@pytest.mark.parametrize("content", [b"\x92\x01", b"\xc1", b"\xdb\xff\xff\xff\xffa"])
def test_what_is_cut_off_or_no_message_is_refused_with_its_place(content: bytes) -> None:
    with pytest.raises(UsageError, match="f: byte 2 is not the beginning of a whole message"):
        list(messages(b"\x01" + content, "f"))
