"""Cold runs in the chunks of a cached run, which must agree in every bit.

Other requests computed the cached prefix in chunks. If all of them used the same chunks, each alone
in its step, then a cold run in those chunks and in the request's own does the same arithmetic, and
every bit must be the same. A chunk is one step of the engine: other batches, and cuts at other
places, round differently.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from cachewitness.parity.tensors.record import ComputedChunk, RequestLifetime
from cachewitness.parity.tensors.states import State, states_of
from cachewitness.toy.model import Model
from cachewitness_reference.toy_model.kernels import Kernels
from cachewitness_reference.toy_model.paged import Chunk, step

Chain = tuple[tuple[int, int], ...]
"""Pieces [start, stop), one behind the other from 0 on."""


class ChunkHistory:
    """Knows in which pieces everything was computed so far, life by life in order of their first
    piece.
    """

    def __init__(self) -> None:
        self._known: list[tuple[tuple[int, ...], int, Chain, bool]] = []

    def chain(self, life: RequestLifetime) -> Chain | None:
        """Return the pieces that a life and what it found were computed in; None if they are not
        known. Remembers them.
        """
        tokens = life.pieces[-1].tokens
        version = life.pieces[-1].version
        before = self._found(tokens, version, life.resume)
        own = tuple((piece.start, piece.stop) for piece in life.pieces)
        plain = all(piece.alone and not piece.drafts for piece in life.pieces)
        sure = before is not None and plain
        chain = (*(before or ()), *own)
        self._known.append((tokens, version, chain, sure))
        return chain if sure else None

    def _found(self, tokens: tuple[int, ...], version: int, resume: int) -> Chain | None:
        """Return the one way in which [0, resume) was computed."""
        ways: set[Chain] = set()
        for other, its_version, chain, sure in self._known:
            end = min(_common(other, tokens), resume) if version == its_version else 0
            part = tuple(piece for piece in chain if piece[0] < end)
            if part and (not sure or part[-1][1] > end):
                return None
            ways.add(part)
        longest = max(ways, key=len, default=())
        agreed = all(longest[: len(way)] == way for way in ways)
        return longest if agreed and resume == (longest[-1][1] if longest else 0) else None


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


def recompute(
    model: Model, kernels: Kernels, pad_rows: int, pieces: Sequence[ComputedChunk], chain: Chain
) -> tuple[list[Tensor], State]:
    """Compute a text cold in the pieces of a chain, by an engine's own kernels, in batches that are
    filled up to a multiple of `pad_rows` as its are: another shape may round otherwise.

    Returns the logits of its last `pieces`, and the last states.
    """
    last = pieces[-1]
    tokens = list(last.tokens)
    weights = model.version(last.version)
    pools, (tables,) = model.fresh(last.stop)
    chunks = [
        Chunk(tokens[start:stop], start, tables, outputs=stop - start) for start, stop in chain
    ]
    logits = [step(pools, [chunk], weights, pad_rows=pad_rows, kernels=kernels) for chunk in chunks]
    return logits[len(chain) - len(pieces) :], states_of(pools, tables, last.stop)
