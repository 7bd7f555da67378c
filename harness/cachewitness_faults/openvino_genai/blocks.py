"""The blocks of OpenVINO GenAI's own cache, where they lie in the memory of its process.

The library shows no block. But each layer's keys, and each one's values, are one allocation of
float32 [blocks, heads, 32, width], which glibc maps apart with its size in front, and blocks are
taken in order. So who has seen a prompt computed alone knows which blocks it filled. Linux with
glibc alone, and models of attention alone, whose pool is theirs.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cachewitness.engines.fault_tools import wrap
from cachewitness.systems.openvino_genai.settings import KV_BLOCK

PAGE = 4096
HEAD = 16
"""Bytes of glibc's head of an allocation: eight that are nothing here, and in eight the size that
is mapped, with flags in the last three bits."""
MAPPED = 2
"""The flag of an allocation that is mapped apart."""
SURPLUS = 24
"""Bytes that are mapped beside an allocation, before pages are filled."""
LOOKED_AT = 64
"""Bytes of a block by which it is seen whether it is filled."""

Damage = Callable[[Any, Sequence[int], Sequence[int]], None]
"""Takes the blocks of a layer's keys or values [blocks, bytes], those that a request resumes from,
and as many of another prompt (fewer, if it has not so many)."""


class Blocks:
    """Which blocks the prompts of a pipeline filled, and what is in them."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._tensors: list[Any] = []
        self._filled: set[int] = set()
        self._of: dict[tuple[int, ...], int] = {}
        """By the tokens up to a block's end: the block."""
        self._pending: list[Sequence[int]] = []

    def asked(self, tokens: Sequence[int]) -> tuple[list[int], list[int]]:
        """Take note of a prompt; return the blocks that it resumes from, and as many of another
        prompt.
        """
        self._look()
        self._pending.append(tokens)
        own = self._known(tokens)
        return own, self._others(tokens)[: len(own)]

    def damaged(self, damage: Damage, own: list[int], other: list[int]) -> Callable[[], None]:
        """Damage what a request resumes from, in all layers; return what undoes it."""
        kept = [tensor[own] for tensor in self._tensors]
        for tensor in self._tensors:
            damage(tensor, own, other)

        def undo() -> None:
            for tensor, contents in zip(self._tensors, kept, strict=True):
                tensor[own] = contents

        return undo

    def _known(self, tokens: Sequence[int]) -> list[int]:
        """Return the blocks of a prompt that were filled before: its last token is computed."""
        blocks = []
        for end in range(KV_BLOCK, len(tokens), KV_BLOCK):
            if (block := self._of.get(tuple(tokens[:end]))) is None:
                break
            blocks.append(block)
        return blocks

    def _others(self, tokens: Sequence[int]) -> list[int]:
        """Return the blocks of the longest prompt that begins otherwise."""
        first = tuple(tokens[:KV_BLOCK])
        others = [text for text in self._of if text[:KV_BLOCK] != first]
        return self._known((*max(others, key=len), 0)) if others else []

    def _look(self) -> None:
        """Find out which blocks the last prompt filled, if it was computed alone."""
        asked, self._pending = self._pending, []
        if not asked:
            return
        import numpy as np

        self._tensors = self._tensors or list(tensors(self._engine))
        now = {int(block) for block in np.flatnonzero(self._tensors[0][:, :LOOKED_AT].any(axis=1))}
        new = sorted(now - self._filled)
        self._filled = now
        if len(asked) == 1:
            (tokens,) = asked
            ends = range(KV_BLOCK, len(tokens) + 1, KV_BLOCK)
            missing = [tokens[:end] for end in ends if tuple(tokens[:end]) not in self._of]
            self._of |= zip(map(tuple, missing), new, strict=False)


def tensors(engine: Any) -> Iterator[Any]:
    """Yield the blocks of each layer's keys, and of each one's values, as bytes [blocks, bytes].

    Raises RuntimeError if they are not found.
    """
    total = engine.pipeline.get_metrics().kv_cache_size_in_bytes
    blocks = engine.blocks
    found: dict[int, list[int]] = {}
    for address, size in _mapped_apart():
        found.setdefault(size, []).append(address)
    for size, addresses in found.items():
        of_each = total // len(addresses)
        if of_each * len(addresses) == total and _pages(of_each) == size:
            for address in addresses:
                yield _viewed(address, of_each).reshape(blocks, -1)
            return
    raise RuntimeError(f"no allocations of {total:,} bytes together are found in this process")


def _viewed(address: int, size: int) -> Any:
    import numpy as np

    return np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)


def _pages(size: int) -> int:
    """Return the bytes that are mapped for an allocation."""
    return -(-(size + SURPLUS) // PAGE) * PAGE


def _mapped_apart() -> Iterator[tuple[int, int]]:
    """Yield the address of each allocation that is mapped apart, and the bytes mapped."""
    memory = os.open("/proc/self/mem", os.O_RDONLY)
    try:
        for first, end in _anonymous():
            at = first
            while at < end:
                try:
                    before, size = struct.unpack("QQ", os.pread(memory, HEAD, at))
                except OSError:
                    break
                mapped = size - MAPPED
                if before or mapped % PAGE or not 0 < mapped <= end - at:
                    at += PAGE
                    continue
                yield at + HEAD, mapped
                at += mapped
    finally:
        os.close(memory)


def _anonymous() -> Iterator[tuple[int, int]]:
    """Yield where memory lies that no file is behind, and that can be written."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        place, rights, _, _, _, *name = line.split()
        if rights.startswith("rw") and not name:
            first, _, end = place.partition("-")
            yield int(first, 16), int(end, 16)


def resumed_from(engine: Any, damage: Damage) -> None:
    """Have `damage` done to the blocks that a request resumes from, until it has its answer."""
    blocks = Blocks(engine)
    undo: list[Callable[[], None]] = []

    def submit(original: Any, op: Any) -> None:
        own, other = blocks.asked(op.tokens)
        if own:
            undo.append(blocks.damaged(damage, own, other))
        original(op)

    def collect(original: Any) -> Any:
        answers = original()
        while answers and undo:
            undo.pop()()
        return answers

    wrap(engine, "_submit", submit)
    wrap(engine, "_collect", collect)
