"""Which tokens a group must hold for a computation to go on; the worker and the safety law share
this rule.

A query at position p reads, by the mathematics of its layer,

* full attention: [0, p)
* full attention with a window of W tokens over the answer, behind a prompt of n: [0, n) and [max(n,
  p − W + 1), p)
* sliding window of W tokens, the query counted: [max(0, p − W + 1), p)
* chunked-local attention with chunk C: [⌊p / C⌋ · C, p)
* recurrent (state and conv state alike): the state after exactly p tokens

so a null column to the left of that range is legal, and any wrong content inside it is not.
"""

from __future__ import annotations

from cachewitness.core.events import Group


def first_needed(group: Group, position: int) -> int:
    """Return the first token position that the query at `position` reads; recurrent groups need
    `position` itself.
    """
    if group.kind == "full":
        return 0
    if group.kind == "sliding":
        return max(0, position - group.window + 1)
    if group.kind == "chunked":
        return position // group.chunk * group.chunk
    return position


def spans_read(group: Group, start: int, stop: int, prompt: int) -> list[tuple[int, int]]:
    """Return the tokens that the queries at [start, stop) of an attention group read, as half-open
    ranges.

    `prompt` is the length of the request's prompt, in tokens.
    """
    first = first_needed(group, start)
    if group.answer_window and start - group.answer_window + 1 > prompt:
        return [(0, prompt), (start - group.answer_window + 1, stop)]
    return [(first, stop)]


def has_window(group: Group) -> bool:
    """Whether blocks of a running request leave what its queries read."""
    return group.kind in ("sliding", "chunked") or group.answer_window > 0


def columns(group: Group, start: int, stop: int) -> tuple[int, int]:
    """Return the half-open range of block-table columns that tokens [start, stop) lie in."""
    size = group.block_size
    return start // size, -(-stop // size)


def needed_lengths(group: Group, position: int) -> list[int]:
    """Return the prefix lengths whose keys together let a request resume at `position`.

    Attention: the ends of the blocks that cover what the query at `position` reads, the last one
    cut at `position`. Recurrent: `position` alone. Empty if nothing is read, as at position 0 and
    at the start of a chunk.
    """
    first = first_needed(group, position)
    if group.kind == "recurrent":
        return [position] if position else []
    if first == position:
        return []
    size = group.block_size
    return [
        min((column + 1) * size, position) for column in range(first // size, -(-position // size))
    ]
