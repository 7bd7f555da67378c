"""Ways to damage a cache at the moment at which a request resumes from it.

A damage overwrites some of what the request is about to read: the recurrent memories, the
convolutions' states, the window's blocks, blocks of full attention. What is put there is nothing
(zeros), an earlier or later state of the same request, what another tenant's text leaves at the
same place, or the same numbers with fewer bits.

`ledger` says whether the ghost ledger would see it, by its class: it knows what every page holds by
name, so it sees content that belongs to another text or another position; it knows nothing of what
a device loses or rounds, nor of parts of a page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cachewitness.toy.model import Model
from cachewitness_reference.toy_model import recurrent
from cachewitness_reference.toy_model.paged import Chunk, Pools, step

FAR = 4
"""How many blocks a memory that is long out of date lies behind."""
PRICES = 1
"""A column of the price list, which stands at the very start of a context."""


@dataclass(frozen=True)
class Cached:
    """What a request reads at a position, as views of the pools: [layers, ...] each, blocks by
    column, the oldest first.

    What a model does not have is empty.
    """

    conv: Tensor
    memory: Tensor
    window: list[Tensor]
    full: list[Tensor]


Part = Callable[[Cached], list[Tensor]]


class Texts:
    """What texts leave in a cache, computed apart from the engine, in pools of their own."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._states: dict[tuple[int, ...], Cached] = {}
        self._whole: dict[tuple[int, ...], Cached] = {}

    def state(self, tokens: Sequence[int]) -> Cached:
        """Return the recurrent state after a text, and no blocks."""
        key = tuple(tokens)
        if key not in self._states:
            whole = self._compute(key)
            self._states[key] = Cached(whole.conv.clone(), whole.memory.clone(), [], [])
        return self._states[key]

    def whole(self, tokens: Sequence[int]) -> Cached:
        """Return all that a text leaves."""
        key = tuple(tokens)
        if key not in self._whole:
            self._whole[key] = self._compute(key)
        return self._whole[key]

    def _compute(self, tokens: tuple[int, ...]) -> Cached:
        pools, (tables,) = self._model.fresh(len(tokens))
        step(pools, [Chunk(tokens, 0, tables)], self._model.weights)
        return read(pools, tables, len(tokens))


@dataclass
class Resumed:
    """A request about to read what it resumes from: its own `tokens` from 0 on, resumed `at`, and
    another tenant's text.

    `exchanged` remembers, for as long as one pass over the questions lasts, the places that have
    changed contents.
    """

    pools: Pools
    tables: Sequence[Sequence[int]]
    tokens: Sequence[int]
    at: int
    other: Sequence[int]
    texts: Texts
    exchanged: set[tuple[int, ...]] = field(default_factory=set)

    @property
    def here(self) -> Cached:
        """What it is about to read."""
        return read(self.pools, self.tables, self.at)

    @property
    def block(self) -> int:
        """The block size of the groups in tokens."""
        return self.pools.groups[0].block_size

    def own(self, later: int) -> Cached:
        """Return its own state so many tokens later (earlier if negative)."""
        return self.texts.state(self.tokens[: self.at + later])

    def others(self) -> Cached:
        """Return what the other tenant's text leaves at the same position."""
        return self.texts.whole(self.other[: self.at])


@dataclass(frozen=True)
class Damage:
    """A way to damage a cache, which is named as the groups of questions are, or empty: all.
    `ledger`: would it see it.
    """

    name: str
    cache: str
    ledger: bool
    do: Callable[[Resumed], None]


def read(pools: Pools, tables: Sequence[Sequence[int]], at: int) -> Cached:
    """Return what a request reads that resumes at a position."""
    kinds = ["recurrent" if recurrent.is_recurrent(kind) else kind for kind in pools.kinds]
    of = {kind: g for g, kind in enumerate(kinds)}
    size = pools.groups[0].block_size
    columns = -(-at // size)
    oldest = max(at - pools.config.sliding_window + 1, 0) // size
    conv = memory = torch.empty(0)
    if "recurrent" in of:
        g = of["recurrent"]
        conv, memory = (view[:, tables[g][columns - 1]] for view in pools.views[g])

    def blocks(kind: str, first: int) -> list[Tensor]:
        return (
            [pools.views[of[kind]][0][:, page] for page in tables[of[kind]][first:columns]]
            if kind in of
            else []
        )

    return Cached(conv, memory, blocks("sliding_attention", oldest), blocks("full_attention", 0))


# --- which part -----------------------------------------------------------------------------------


def _memory(cached: Cached) -> list[Tensor]:
    return [cached.memory]


def _last_memory(cached: Cached) -> list[Tensor]:
    return [cached.memory[-1]]


def _first_memory(cached: Cached) -> list[Tensor]:
    return [cached.memory[0]]


def _head(cached: Cached) -> list[Tensor]:
    return [cached.memory[:, :1]]


def _conv(cached: Cached) -> list[Tensor]:
    return [cached.conv]


def _state(cached: Cached) -> list[Tensor]:
    return [cached.conv, cached.memory]


def _window(cached: Cached) -> list[Tensor]:
    return cached.window


def _oldest(cached: Cached) -> list[Tensor]:
    return cached.window[:1]


def _prices(cached: Cached) -> list[Tensor]:
    return [cached.full[PRICES]]


def _last_full(cached: Cached) -> list[Tensor]:
    return cached.full[-1:]


def _full(cached: Cached) -> list[Tensor]:
    return cached.full


def _all(cached: Cached) -> list[Tensor]:
    return [*_state(cached), *cached.window, *cached.full]


# --- what becomes of it ---------------------------------------------------------------------------


def zeroed(part: Part) -> Callable[[Resumed], None]:
    """Return what overwrites a part by zeros."""

    def do(resumed: Resumed) -> None:
        for tensor in part(resumed.here):
            tensor.zero_()

    return do


def another_tenants(part: Part) -> Callable[[Resumed], None]:
    """Return what overwrites a part by another tenant's."""
    return lambda resumed: _put(part(resumed.here), part(resumed.others()))


def moved(part: Part, blocks: int = 0, tokens: int = 0) -> Callable[[Resumed], None]:
    """Return what overwrites a part of the state by the same request's, so much later."""
    return lambda resumed: _put(
        part(resumed.here), part(resumed.own(blocks * resumed.block + tokens))
    )


def rounded(part: Part, dtype: torch.dtype) -> Callable[[Resumed], None]:
    """Return what stores a part with fewer bits."""
    return lambda resumed: _put(
        part(resumed.here), [kept.to(dtype).to(kept.dtype) for kept in part(resumed.here)]
    )


def exchanged(resumed: Resumed) -> None:
    """Let two columns of full attention change places."""
    _exchange(resumed, resumed.here.full[PRICES], resumed.here.full[PRICES + 1])


def layers_exchanged(resumed: Resumed) -> None:
    """Let the memories of the first and the last recurrent layer change places."""
    _exchange(resumed, resumed.here.memory[0], resumed.here.memory[-1])


def _exchange(resumed: Resumed, one: Tensor, other: Tensor) -> None:
    """Let two places change contents, once: whoever shares them would put things right again."""
    pair = (one.data_ptr(), other.data_ptr())
    if pair not in resumed.exchanged:
        resumed.exchanged.add(pair)
        kept = one.clone()
        _put([one, other], [other, kept])


def _put(places: Sequence[Tensor], contents: Sequence[Tensor]) -> None:
    for place, content in zip(places, contents, strict=True):
        place.copy_(content)


DAMAGES = (
    Damage("recurrent memory zeroed", "recurrent", False, zeroed(_memory)),
    Damage(
        "recurrent memory zeroed in the first layer alone",
        "recurrent",
        False,
        zeroed(_first_memory),
    ),
    Damage(
        "recurrent memory zeroed in the last layer alone", "recurrent", False, zeroed(_last_memory)
    ),
    Damage("recurrent memory zeroed in one head of each layer", "recurrent", False, zeroed(_head)),
    Damage("recurrent memories of two layers exchanged", "recurrent", False, layers_exchanged),
    Damage("recurrent memory one block stale", "recurrent", True, moved(_memory, blocks=-1)),
    Damage(f"recurrent memory {FAR} blocks stale", "recurrent", True, moved(_memory, blocks=-FAR)),
    Damage("recurrent memory of another tenant", "recurrent", True, another_tenants(_memory)),
    Damage("convolution's state one block stale", "recurrent", False, moved(_conv, blocks=-1)),
    Damage("convolution's state zeroed", "recurrent", False, zeroed(_conv)),
    Damage(
        "memory and convolution's state one block stale",
        "recurrent",
        True,
        moved(_state, blocks=-1),
    ),
    Damage("snapshot one token late", "recurrent", True, moved(_state, tokens=1)),
    Damage("window zeroed", "window", False, zeroed(_window)),
    Damage("window of another tenant", "window", True, another_tenants(_window)),
    Damage("oldest block of the window lost", "window", True, zeroed(_oldest)),
    Damage(
        "a full-attention block (prices) of another tenant", "full", True, another_tenants(_prices)
    ),
    Damage("a full-attention block (prices) zeroed", "full", False, zeroed(_prices)),
    Damage(
        "last full-attention block of another tenant", "full", True, another_tenants(_last_full)
    ),
    Damage("all full-attention blocks of another tenant", "full", True, another_tenants(_full)),
    Damage("all full-attention blocks zeroed", "full", False, zeroed(_full)),
    Damage("two full-attention blocks exchanged", "full", True, exchanged),
    Damage("whole prefix of another tenant", "", True, another_tenants(_all)),
    Damage(
        "recurrent memory stored in bfloat16", "recurrent", False, rounded(_memory, torch.bfloat16)
    ),
    Damage(
        "recurrent memory stored in float16", "recurrent", False, rounded(_memory, torch.float16)
    ),
    Damage("window stored in float8", "window", False, rounded(_window, torch.float8_e4m3fn)),
    Damage(
        "full-attention blocks stored in float8", "full", False, rounded(_full, torch.float8_e4m3fn)
    ),
)
WHOLE = {
    "recurrent": ("recurrent memory zeroed", "recurrent memory of another tenant"),
    "window": ("window zeroed", "window of another tenant"),
    "full": ("all full-attention blocks zeroed", "all full-attention blocks of another tenant"),
}
"""The damages that take all of a cache, by its kind."""
