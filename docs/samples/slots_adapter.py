"""A cache that keeps what a request leaves at its end, under cachewitness: a sample to copy.

`SlotCache` stands for your engine: a few slots, each as long as the longest request, as in
llama.cpp. A request computes in a slot of its own. When it ends, the slot keeps its states as they
are then, and a prompt that goes on from there is given the slot. A recurrent state cannot be taken
back, so a prompt that leaves what a slot has earlier begins anew. `SlotAdapter` drives it and shows
its tables, keys and counts, which the harness compares with what they were.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from cachewitness import (
    CAPABILITIES,
    Accepts,
    Claim,
    Count,
    Driver,
    EngineKind,
    FirstCome,
    Group,
    Header,
    KeyId,
    Pool,
    Refused,
    Rules,
    Scheduled,
    Submit,
    Tables,
    TraceHeader,
    UnpublishReason,
    UsageError,
)

SLOTS = 4
NO_SLOT = -1
Content = tuple[Hashable, ...]  # (salt, adapter), then each token, or the image that is there


class SlotCache:
    """The slots: who holds each, and what it keeps when nobody does."""

    def __init__(self, slots: int) -> None:
        self.references = [0] * slots
        self.kept: dict[int, Content] = {}  # the slot that ended longest ago is first

    def find(self, content: Content) -> int:
        """Return the slot that keeps the most of a prompt's beginning, to its last but one token at
        most; NO_SLOT if none does.
        """
        fitting = [
            slot
            for slot, kept in self.kept.items()
            if len(kept) < len(content) and kept == content[: len(kept)]
        ]
        return max(fitting, key=lambda slot: len(self.kept[slot]), default=NO_SLOT)

    def take(self) -> int:
        """Hold an empty slot, or the one that ended longest ago; NO_SLOT if all are held."""
        unheld = [slot for slot, count in enumerate(self.references) if not count]
        empty = [slot for slot in unheld if slot not in self.kept]
        slot = next(iter([*empty, *self.kept]), NO_SLOT)
        if slot != NO_SLOT:
            self.kept.pop(slot, None)
            self.references[slot] += 1
        return slot

    def release(self, slot: int, content: Content) -> None:
        """Hold a slot no longer; it keeps the states behind this content."""
        self.references[slot] -= 1
        if len(content) > 1:
            self.kept[slot] = content


@dataclass
class Request:
    """Its content, how many tokens of it are computed, and in which slot."""

    content: list[Hashable]
    computed: int = 0
    slot: int = NO_SLOT


class SlotAdapter(FirstCome):
    """First come, first served; whoever finds no slot waits."""

    def __init__(self, header: Header, options: Mapping[str, int]) -> None:
        self.cache, self.groups = SlotCache(header.pools[0].pages), header.groups
        self.max_model_len = options["max_model_len"]
        self.budget = options["max_num_batched_tokens"]
        self.requests: dict[str, Request] = {}
        self.admitted: list[str] = []

    def add(self, submit: Submit, tokens: list[int], shared: int) -> None:
        if len(tokens) >= self.max_model_len:
            raise Refused(f"{len(tokens)} tokens are not less than {self.max_model_len}")
        content: list[Hashable] = [(submit.salt, submit.adapter), *tokens]
        for image in submit.media:
            content[1 + image.at : 1 + image.at + image.length] = [image.hash] * image.length
        self.requests[submit.r] = Request(content)

    def accept(self, r: str, tokens: Sequence[int]) -> None:
        self.requests[r].content += tokens

    def end(self, r: str, *, finished: bool) -> None:
        self.preempt(r)
        del self.requests[r]

    def preempt(self, r: str) -> None:
        request = self.requests[r]
        if request.slot == NO_SLOT:
            return
        self.admitted.remove(r)
        self.cache.release(request.slot, (*request.content[: 1 + request.computed],))
        request.slot, request.computed = NO_SLOT, 0
        self.diff.settle([r], served=r)

    def running(self) -> list[str]:
        return list(self.admitted)

    def waiting(self) -> list[str]:
        return [r for r in self.requests if r not in self.admitted]

    def forget(self, reason: UnpublishReason) -> bool:
        self.cache.kept.clear()
        self.diff.settle(reason=reason)
        return True

    def compute(self, r: str, tokens: int) -> tuple[int, int] | None:
        request = self.requests[r]
        if request.slot == NO_SLOT and not self.admit(r, request):
            return None
        stop = min(request.computed + tokens, len(request.content) - 1)
        return request.computed, stop

    def admit(self, r: str, request: Request) -> bool:
        """Give a request the slot that it goes on in, or any; return whether there is one."""
        hit = self.cache.find((*request.content,))
        if hit == NO_SLOT:
            request.slot = self.cache.take()
            if request.slot == NO_SLOT:
                return False
            self.diff.hit(r, 0, [[] for _ in self.groups])
        else:
            request.slot, request.computed = hit, len(self.cache.kept[hit]) - 1
            self.cache.references[hit] += 1
            self.diff.hit(r, request.computed, [[hit] for _ in self.groups])
            self.diff.settle([r])
            del self.cache.kept[hit]  # once it is held: the next token overwrites its states
        self.admitted.append(r)
        self.diff.settle([r], reason="replace" if hit != NO_SLOT else "evict")
        return True

    def complete(self, scheduled: Scheduled) -> None:
        for r, (_, stop) in scheduled.chunks.items():
            self.requests[r].computed = stop

    def tables(self, r: str) -> Tables:
        slot = self.requests[r].slot if r in self.requests else NO_SLOT
        return [[slot] for _ in self.groups] if slot != NO_SLOT else []

    def keys(self) -> Mapping[KeyId, Claim]:
        return {
            (group.id, slot, content): Claim(len(content) - 1)
            for group in self.groups
            for slot, content in self.cache.kept.items()
        }

    def counts(self) -> Mapping[int, Count]:
        held = sum(self.cache.references)
        cached = sum(not self.cache.references[slot] for slot in self.cache.kept)
        count = Count(len(self.cache.references) - held - cached, held, cached)
        return {group.pool: count for group in self.groups}

    def references(self, pool: int, page: int) -> int:
        return self.cache.references[page]


OPTIONS = {"max_model_len": 4096, "max_num_batched_tokens": 2048}
ACCEPTS = Accepts(
    kinds=("full", "recurrent"),
    options={**dict.fromkeys(OPTIONS, ()), "retention_interval": (None,)},
)


def open_engine(header: TraceHeader, options: Mapping[str, str]) -> Driver:
    """Build an engine for one trace; a UsageError says that it cannot run it."""
    if refusal := ACCEPTS.refusal(header.layout, header.options):
        raise UsageError(f"layout {header.layout.name!r}: this cache does not take {refusal}")
    limits = {name: header.options.get(name, value) for name, value in OPTIONS.items()}
    count = len(header.layout.groups)
    described = Header(
        engine="slots",
        level=header.level,
        pools=[Pool(index, SLOTS) for index in range(count)],
        groups=[
            Group(index, group.kind, limits["max_model_len"], pool=index)
            for index, group in enumerate(header.layout.groups)
        ],
        rules=Rules(late_keys=True),  # a key begins when its request ends
        capabilities=CAPABILITIES,
        trace=header.name,
    )
    return Driver(described, SlotAdapter(described, limits))


SUMMARY = "a sample: slots that keep what a request leaves at its end"
ENGINE = EngineKind(
    "slots", SUMMARY, ("manager", "scheduler"), open_engine, replays=False, accepts=ACCEPTS
)
