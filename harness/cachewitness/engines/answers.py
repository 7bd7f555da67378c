"""What answers prompts: an engine in this process or a server behind HTTP.

A score is a property of answers, so a backend is judged from outside: prompts go in, texts come
out, and with each answer the backend says how many of the prompt's tokens it took from a cache, per
cache group if it knows. Without that last number an equal score proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec


class Ask(msgspec.Struct, frozen=True):
    """One prompt. Generation is greedy, ends before any of `stop`, and has at most `max_tokens`
    tokens.

    `salt` is part of the identity of everything cached for it: requests with different salts share
    nothing. The first `shared` characters of the prompt are a part that other prompts have too, as
    far as is known.
    """

    id: str
    prompt: str
    stop: tuple[str, ...] = ()
    max_tokens: int = 64
    salt: str = ""
    shared: int = 0


class Answer(msgspec.Struct, frozen=True):
    """What came back for one prompt.

    `restored` counts prompt tokens that were not computed: under `""` as the backend reports them
    for the whole request, and under a cache group's name what that group resumed from (a recurrent
    group: the position of the state it was given). `from_tier` of the request's restored tokens
    came from a second tier; `preemptions` counts how often the request lost its place while it ran,
    `drafted` its tokens that were guessed and stood, `evictions` the cached blocks that made room
    while it was answered. `tokens` are those generated, the one that ended it included;
    `margins[i]` is how far (in logits) the token chosen at step i was ahead of the next one. Both
    are empty if the backend cannot say; `generated` counts the tokens of one that does not name
    them.
    """

    id: str
    text: str
    tokens: tuple[int, ...] = ()
    prompt_tokens: int = 0
    restored: Mapping[str, int] = {}
    from_tier: int = 0
    preemptions: int = 0
    drafted: int = 0
    evictions: int = 0
    margins: tuple[float, ...] = ()
    generated: int = 0


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """How an engine is to be opened for one arm of a comparison.

    `caching` turns prefix caching on; `tier` adds a second tier that keeps its copies through
    `Backend.reset`; `preempt` makes running requests lose their place; `drafts` has tokens guessed
    and verified; `scarce` gives the cache so little space that what was cached is evicted. `policy`
    names the rules to follow. An empty `dtype` or `checkpoint` is the engine's own.
    """

    caching: bool = True
    tier: bool = False
    preempt: bool = False
    drafts: bool = False
    scarce: bool = False
    policy: str = "vllm"
    device: str = "cpu"
    dtype: str = ""
    checkpoint: str = ""
    seed: int = 0


class Backend(Protocol):
    """An engine that answers batches of prompts."""

    name: str

    def answer(self, asks: Sequence[Ask]) -> list[Answer]:
        """Answer every prompt, in the order asked.

        Raises BackendError if an answer cannot be had; the message names the prompt and says what
        came instead.
        """

    def reset(self, *, external: bool = False) -> bool:
        """Forget every prefix cached in the engine's own pools; return whether that was done.

        What lies in a second tier stays, unless `external` says that it is to be forgotten as well.
        """

    def versions(self) -> Mapping[str, str]:
        """Return what a result must name to be repeated: engine, checkpoint hash, device,
        precision, packages.
        """

    def close(self) -> None:
        """Let go of everything."""


class BackendError(RuntimeError):
    """A backend that did not answer; the message is one line."""


@dataclass(frozen=True)
class Prompts:
    """How an engine is opened to answer prompts, for one arm of a score.

    `open(options, opening)` raises UsageError for options that do not fit or an opening that the
    engine does not offer, and EngineMissing if something has to be installed first.
    `bit_exact(options)` tells with which options, `dtype` and `device` among them, it declares that
    its answers do not depend on chance, on a batch, or on what was cached, but for near-ties; None:
    with none.
    """

    open: Callable[[Mapping[str, str], Opening], Backend]
    bit_exact: Callable[[Mapping[str, str]], bool] | None = None
