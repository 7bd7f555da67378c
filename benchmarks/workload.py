"""The named workload of the throughput benchmark: `three-groups`.

Full attention, a sliding window and a recurrent group, blocks of 16 tokens. A constant number of
requests is live. Each shares a system prompt and one of a few documents with others, brings words
of its own, prefills up to six blocks a step and decodes; when it ends the next one takes its place.
So everything that a cache manager does is there all the time: look-ups that hit, blocks that are
shared, taken, keyed, skipped by the window, given back and, the pool being small, evicted.

One operation is one operation of the trace: a submit, a step of one request, a finish. The number
of live requests, their lengths and the mix of operations do not change with the length of the trace
or the size of the pool.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from cachewitness.core.trace_format import Finish, GroupSpec, Layout, Op, Step, Submit, TraceHeader

BLOCK = 16
LAYOUT = Layout(
    name="three-groups",
    groups=[
        GroupSpec(kind="full", block_size=BLOCK),
        GroupSpec(kind="sliding", block_size=BLOCK, window=4 * BLOCK),
        GroupSpec(kind="recurrent", block_size=BLOCK),
    ],
)
CHUNK = 6 * BLOCK
LIVE = 3
PAGES = 200
DECODE_MAX = 32


@dataclass
class _Talker:
    r: str
    steps: int


def header(pages: int = PAGES) -> TraceHeader:
    """Return the header of the workload over a pool of so many pages."""
    return TraceHeader(
        name="three-groups", layout=LAYOUT, pages=pages, options={"max_model_len": 4096}
    )


def operations(count: int, *, seed: int = 0, live: int = LIVE, name: str = "r") -> Iterator[Op]:
    """Yield so many operations; requests that are still live then stay so."""
    draw = random.Random(seed)
    queue: deque[_Talker] = deque()
    made = 0
    for _ in range(count):
        if len(queue) < live:
            tokens = draw.randint(1, 4) * BLOCK + draw.randint(-1, 1)
            own = draw.randint(5, 10) * BLOCK + draw.randint(-1, 1)
            r = f"{name}{made}"
            made += 1
            yield Submit(r=r, prompt=f"sys:{2 * BLOCK} doc{draw.randrange(6)}:{tokens} {r}:{own}")
            # An engine hits some of the prompt and cuts chunks at boundaries; steps left over by
            # the one or the other decode.
            prefills = -(-(2 * BLOCK + tokens + own) // CHUNK) + 2
            queue.append(_Talker(r, prefills + draw.randint(1, DECODE_MAX)))
            continue
        talker = queue.popleft()
        if talker.steps:
            talker.steps -= 1
            queue.append(talker)
            yield Step(run=[(talker.r, CHUNK)])
        else:
            yield Finish(talker.r)


def filling(pages: int) -> Iterator[Op]:
    """Yield operations that leave a pool full of keys: long prompts, one after the other, all
    different.

    Only the blocks that the last prompt's window gave back, at most 64, are left without one.
    """
    blocks = min(64, pages // 4)
    for index in range(pages // blocks + 1):
        r = f"fill{index}"
        yield Submit(r=r, prompt=f"{r}:{blocks * BLOCK}")
        yield from [Step(run=[(r, blocks * BLOCK)])] * 2
        yield Finish(r)
