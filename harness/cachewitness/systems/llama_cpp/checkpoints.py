"""Follows what llama.cpp's server keeps of prompts, by its log: in slots, in their checkpoints, on
the host.

The log names tasks and not requests, so each request has its number in a parameter of a sampler
that is off (`NUMBERED`), which the log repeats. A checkpoint is known by its positions and its
number of tokens; whose tokens they are is who was in its slot.

Source: `tools/server/server-context.cpp` and `server-task.cpp` (`server_prompt_cache`) as of
October 2026.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from cachewitness.core.checkers.resumes import shared_tokens
from cachewitness.core.events import Resumed, Resumes

NUMBERED, FIRST = "dry_allowed_length", 1000
"""The parameter that has the number of a request, and the first number."""
_NUMBER = re.compile(NUMBERED + r" = (\d+)")
_OF_SLOT = re.compile(r" slot +\S+: id +(\d+) \| task +-?\d+ \| +(.*)")
_OF_HOST = re.compile(r" srv +(prompt_save|alloc|load|update): +- (.*)")
_PURGED = re.compile(r" srv .*: +purging slot (\d+) with")
_LIKENESS = r".* f_keep = -?(\d+)\.(\d+), f_sim = (\d+)\.(\d+)"
_PLACE = r".*\(pos_min = (-?\d+), pos_max = (-?\d+), n_tokens = (\d+)"

NEAR = 32
"""Tokens that are computed again and not owed, where a checkpoint nearly as far is used: a block of
the traces."""

Line = tuple[re.Pattern[str], Callable[..., None]]
"""What a line of the log begins with, and what is done with the numbers in it."""


@dataclass(frozen=True)
class KeptState:
    """A state behind `taken` tokens of request `of`, or cells of as many; the oldest position
    that it has, −1 if unknown.
    """

    of: str
    taken: int
    first: int = -1


NOTHING = KeptState("", 0)


@dataclass
class Slot:
    """What a slot has: its cells, its checkpoints, the request in it, and the checkpoint that
    this one was given, of those that were `offered` when it came. `purged` since then, or `erased`
    and not `brought_back` from a file, or so before it (`doubted`): what it has is not certain.
    `full`: what the host had for it did not fit.
    """

    cells: KeptState = NOTHING
    checkpoints: list[KeptState] = field(default_factory=list)
    r: str = ""
    begins: bool = False
    restored: KeptState | None = None
    offered: list[KeptState] = field(default_factory=list)
    purged: bool = False
    erased: bool = False
    brought_back: bool = False
    doubted: bool = False
    full: bool = False

    @property
    def cleared(self) -> bool:
        """Whether what it has is not certain."""
        return self.purged or (self.erased and not self.brought_back)


@dataclass(eq=False)
class Prompt:
    """A prompt on the host: a slot's cells, and its checkpoints."""

    cells: KeptState
    checkpoints: list[KeptState]


class Checkpoints:
    """What is kept, line by line. `over` are the requests that have left their slots. The model
    keeps what `keeps` says (empty: not known), with a `window` of so many tokens (0: none).
    """

    def __init__(self, keeps: Resumes = "recurrent", window: int = 0) -> None:
        self.over: set[str] = set()
        self._keeps = keeps
        self._window = window
        self._names: dict[int, str] = {}
        self._prompts: dict[str, list[int]] = {}
        self._slots: defaultdict[int, Slot] = defaultdict(Slot)
        self._host: list[Prompt] = []
        self._resumed: defaultdict[str, list[Resumed]] = defaultdict(list)
        self._number, self._lost = -1, False
        self._why: dict[str, str] = {}
        self._unused: dict[str, str] = {}
        self._offered: list[tuple[int, int, tuple[int, ...]]] = []
        """The prompts on the host in their order: their lengths, and how much they are like the one
        that looks for a better."""
        self._slot = Slot()
        """The slot whose prompt is saved to the host, or given one from there."""
        self._leaving: Slot | None = None
        """The idle slot that is being cleared for that."""
        self._found: Prompt | None = None
        self._due = 0
        self._list = list[int]()
        """How many prompts are listed, and the lengths of those that were."""
        self._slot_lines = _compiled(
            ("selected slot by", self._is_concerned),
            ("saving idle slot", self._leaves),
            ("clearing prompt", self._cleared),
            ("failed to load prompt", self._not_loaded),
            ("processing task", self._launched),
            ("restored context checkpoint" + _PLACE, self._restored),
            ("created context checkpoint" + _PLACE, self._created),
            ("eras(?:ed|ing) .*context checkpoint" + _PLACE, self._erased),
            (r"superseding context checkpoint at n_tokens = (\d+)", self._superseded),
            (r"cached n_tokens = (\d+), memory_seq_rm", self._begun),
            (r"stop processing: n_tokens = (\d+)", self._stopped),
        )
        self._host_lines = _compiled(
            ("saving prompt with length", self._saved),
            ("prompt is already in the cache, skipping", self._not_saved),
            ("prompt state size .* skipping", self._not_saved),
            (r"removing obsolete cached prompt with length (\d+)", self._outlived),
            ("looking for better prompt", self._look),
            (r"prompt with length +(\d+), lcp = +(\d+)" + _LIKENESS, self._next),
            ("found better prompt" + _LIKENESS, self._better),
            (r"cache state: (\d+) prompts", self._settled),
            (r"prompt 0x[0-9a-f]+: +(\d+) tokens", self._listed),
        )

    def number(self, r: str, prompt: list[int]) -> int:
        """Return the number of a request that is about to be sent."""
        number = FIRST + len(self._names)
        self._names[number] = r
        self._prompts[r] = prompt
        return number

    def resumed(self, r: str) -> list[Resumed]:
        """Return from what a request has gone on; nothing if the log says what does not fit
        together.
        """
        resumed = self._resumed.pop(r, [])
        return [] if self._lost else resumed

    def why(self, r: str) -> str:
        """Return why nothing was restored for a request; empty if something fits (`unused`)."""
        if self._lost:
            return "the log does not fit together"
        return self._why.get(r, "" if r in self._unused else "the log does not show it")

    def unused(self, r: str) -> str:
        """Return what fitted the prompt of a request and was not restored for it; empty if nothing
        did.
        """
        return "" if self._lost else self._unused.get(r, "")

    def brought_back(self, number: int, tokens: int) -> None:
        """Take note that a slot was erased and has so many tokens of a file, by the server's own
        words; they are not in the log.
        """
        self._slots[number].brought_back = self._slots[number].cells.taken == tokens

    def follow(self, lines: Iterable[str]) -> None:
        """Take lines of the log in."""
        for line in lines:
            if found := _NUMBER.search(line):
                self._number = int(found[1])
            elif found := _OF_SLOT.search(line):
                _act(self._slot_lines, found[2], self._slots[int(found[1])])
            elif found := _OF_HOST.search(line):
                _act(self._host_lines, found[2])
            elif found := _PURGED.search(line):
                self._slots[int(found[1])].purged = True

    # --- slots ------------------------------------------------------------------------------------

    def _is_concerned(self, slot: Slot) -> None:
        self._slot = slot

    def _leaves(self, slot: Slot) -> None:
        self._slot = self._leaving = slot

    def _cleared(self, slot: Slot) -> None:
        """Forget what an idle slot had, once it is on the host. A slot that the harness erases
        gets it back from a file.
        """
        if slot is self._leaving:
            slot.cells = NOTHING
            slot.checkpoints = []
        else:
            slot.erased = True
        self._leaving = None

    def _launched(self, slot: Slot) -> None:
        slot.r = self._names.get(self._number, "")
        slot.begins = True
        slot.restored = None
        slot.offered = slot.checkpoints[:]
        slot.doubted = slot.cleared
        slot.purged = slot.erased = slot.brought_back = False

    def _restored(self, slot: Slot, first: int, last: int, taken: int) -> None:
        same = [kept for kept in slot.checkpoints if (kept.first, kept.taken) == (first, taken)]
        slot.restored = same[-1] if same else KeptState("", taken, first)

    def _created(self, slot: Slot, first: int, last: int, taken: int) -> None:
        slot.checkpoints.append(KeptState(slot.r, taken, first))

    def _erased(self, slot: Slot, first: int, last: int, taken: int) -> None:
        slot.checkpoints = [
            kept for kept in slot.checkpoints if (kept.first, kept.taken) != (first, taken)
        ]

    def _superseded(self, slot: Slot, taken: int) -> None:
        slot.checkpoints = [kept for kept in slot.checkpoints if kept.taken != taken]

    def _begun(self, slot: Slot, at: int) -> None:
        """Note from what a request goes on, which the first of these lines says."""
        if slot.begins and at:
            kept = slot.restored or slot.cells
            event = Resumed(r=slot.r, at=at, of=kept.of, taken=kept.taken, first=kept.first)
            self._resumed[slot.r].append(event)
            self._note_later(slot, at)
        elif slot.begins:
            self._note_missing(slot)
        slot.begins = slot.full = False

    def _note_later(self, slot: Slot, at: int) -> None:
        """Note that a checkpoint fits which lies a good deal further than where a request goes on.

        The server takes the newest that fits and not the furthest, and goes on a token in front of
        its end, so of checkpoints behind nearly as many tokens any will do.
        """
        prompt = self._prompts.get(slot.r, [])
        shared = self._shared(prompt, slot.cells)
        reach = min(shared, len(prompt) - 1)
        later = [kept.taken for kept in slot.offered if self._fits(kept, reach)]
        if later and max(later) - at > NEAR and not slot.doubted:
            self._unused[slot.r] = (
                f"a checkpoint behind {max(later)} tokens fits and was not used (it shares"
                f" {shared} tokens with {slot.cells.of})"
            )

    def _note_missing(self, slot: Slot) -> None:
        """Note what a slot lacks from which its request could go on: tokens that both begin with,
        or a checkpoint that is not behind them; or that it lacks nothing. Details are in brackets.
        """
        prompt = self._prompts.get(slot.r, [])
        shared = self._shared(prompt, slot.cells)
        if not shared:
            self._note_elsewhere(slot, prompt)
            return
        behind = ", ".join(str(kept.taken) for kept in slot.offered) or "none"
        detail = f"it shares {shared} tokens with {slot.cells.of}; checkpoints behind {behind}"
        # One token at least has to be computed, which a state behind all of them leaves none of.
        reach = min(shared, len(prompt) - 1)
        if slot.doubted:
            self._why[slot.r] = f"its slot was cleared before ({detail})"
        elif not self._keeps:
            self._why[slot.r] = f"what its model keeps is not known ({detail})"
        elif any(self._fits(kept, reach) for kept in slot.offered):
            self._unused[slot.r] = f"a checkpoint fits and was not used ({detail})"
        elif self._continues(slot.cells, reach):
            self._unused[slot.r] = f"the slot's cells fit and were not used ({detail})"
        else:
            self._why[slot.r] = f"no checkpoint lies where the prompt parts, or in front ({detail})"

    def _note_elsewhere(self, slot: Slot, prompt: list[int]) -> None:
        """Note that another slot, or the host, has all that the prompt begins with; or nobody. One
        that has much beyond it may be left there.
        """
        if slot.full:
            self._why[slot.r] = "its slot has no room for what the host keeps"
            return
        for where, kept in self._elsewhere(slot):
            shared = self._shared(prompt, kept.cells)
            reach = len(prompt) - 1
            fits = self._continues(kept.cells, reach) or any(
                self._fits(checkpoint, reach) for checkpoint in kept.checkpoints
            )
            if fits and shared == len(prompt) and kept.cells.taken < 2 * shared:
                detail = f"all its {shared} tokens, as of {kept.cells.of}"
                self._unused[slot.r] = f"{where} keeps the prompt and was not used ({detail})"
                return
        self._why[slot.r] = "its slot has nothing that the prompt begins with"

    def _elsewhere(self, slot: Slot) -> Iterator[tuple[str, Prompt]]:
        """Yield what is kept and not in this slot, and where."""
        for one in self._slots.values():
            if one is not slot and one.r in self.over and not one.cleared:
                yield "another slot", Prompt(one.cells, one.checkpoints)
        for kept in self._host:
            yield "the host", kept

    def _shared(self, prompt: list[int], cells: KeptState) -> int:
        return shared_tokens(prompt, self._prompts.get(cells.of, [])[: cells.taken])

    def _fits(self, kept: KeptState, reach: int) -> bool:
        """Whether a checkpoint is one to go on from: its window is whole at the end of what is
        shared, the next token's own place included.
        """
        whole = kept.first == 0 or 0 <= kept.first <= reach - self._window + 1
        return self._keeps in ("recurrent", "sliding") and kept.taken <= reach and whole

    def _continues(self, cells: KeptState, reach: int) -> bool:
        """Whether a slot's own cells are enough. How far back those of a window reach is not
        known.
        """
        if self._keeps == "full":
            return reach > 0
        return self._keeps == "recurrent" and cells.taken <= reach

    def _stopped(self, slot: Slot, tokens: int) -> None:
        """Note what a slot has when its request leaves; who never began left it as it was."""
        if not slot.begins:
            slot.cells = KeptState(slot.r, tokens)
        self.over.add(slot.r)

    # --- the host ---------------------------------------------------------------------------------

    def _saved(self) -> None:
        self._host.append(Prompt(self._slot.cells, self._slot.checkpoints[:]))

    def _not_saved(self) -> None:
        del self._host[-1:]

    def _outlived(self, tokens: int) -> None:
        """Drop the prompt of so many tokens with which the one begins that is saved now."""
        alike = [prompt for prompt in self._host[:-1] if prompt.cells.taken == tokens]
        gone = next(
            (one for one in alike if self._begins_alike(one.cells, self._slot.cells.of)), None
        )
        self._host = [prompt for prompt in self._host if prompt is not gone]

    def _begins_alike(self, cells: KeptState, other: str) -> bool:
        """Whether a request begins like these cells, which may be fewer than their prompt has
        tokens.
        """
        computed = self._prompts.get(cells.of, [])[: cells.taken]
        return all(a == b for a, b in zip(computed, self._prompts.get(other, ()), strict=False))

    def _look(self) -> None:
        self._offered = []
        self._found = None

    def _next(self, tokens: int, same: int, *likeness: int) -> None:
        self._offered.append((tokens, same, likeness))

    def _better(self, *likeness: int) -> None:
        """Note which of the prompts it is: of those that are as much like the new one in three
        decimals, the best.
        """
        best: Prompt | None = None
        length, most = 1, -1
        for prompt, (tokens, same, alike) in zip(self._host, self._offered, strict=False):
            if alike == likeness and same > most and same * length > most * tokens:
                best = prompt
                length = tokens
                most = same
        self._found = best

    def _not_loaded(self, slot: Slot) -> None:
        """Leave a prompt on the host for which the slot has no room."""
        self._found = None
        slot.full = True

    def _settled(self, prompts: int) -> None:
        """Give the slot what was found for it; what else is on the host is listed now."""
        if self._found is not None:
            self._slot.cells = self._found.cells
            self._slot.checkpoints = self._found.checkpoints
            self._host.remove(self._found)
            self._found = None
        self._due = prompts
        self._list = []
        self._compare()

    def _listed(self, tokens: int) -> None:
        self._list.append(tokens)
        self._compare()

    def _compare(self) -> None:
        """Compare the host with what is listed: the oldest go if there is no room for more, the
        newest had none at all.
        """
        if len(self._list) < self._due:
            return
        for left in (self._host[len(self._host) - self._due :], self._host[: self._due]):
            if [prompt.cells.taken for prompt in left] == self._list:
                self._host = left
                return
        self._lost = True


def _compiled(*lines: tuple[str, Callable[..., None]]) -> list[Line]:
    return [(re.compile(" *-? *" + pattern), act) for pattern, act in lines]


def _act(lines: Iterable[Line], text: str, *slot: Slot) -> None:
    """Do what the first of these lines stands for that the text is, with the numbers in it."""
    for pattern, act in lines:
        if found := pattern.match(text):
            act(*slot, *map(int, found.groups()))
            return
