"""What exllamav3 shows of itself: block tables, hashes of pages, checkpoints of states, and counts.

A page is found in two ways. A whole one is found by its hash, which is chained over the prompt. Any
other one, of which some tokens are written, is found by the hash of the page before it and its own
tokens (`Job.prefill`), and its beginning is copied. Both are keys here. A page of the history has
the number of exllamav3's and 1 more: page 0 is nobody's.

States lie in the slots of the cache, one for each job that runs, and the recurrent cache keeps
copies, each under the hash of the page at whose end it was taken. The copies have no numbers in
exllamav3: they are given places behind the slots.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from cachewitness.engines.cache_state import Claim, Count, KeyId, Tables
from cachewitness.systems.exllamav3.options import Asked

ATTENTION, RECURRENT = 0, 1
"""The groups, each with a pool of its number."""
CPU = 2
"""The pool of the CPU page cache, whose group comes behind the others."""
_NONE: KeyId = (-1, -1, None)
STATE_LAYER = (1, 0)
"""The layer of states, as a checkpoint names it."""


Sign = tuple[bytes, int, int, bool, int, bytes | None]
"""All that a page is known by, but for its tokens."""


class Shown:
    """Reads exllamav3's own books. `jobs` are those that have come and not ended."""

    def __init__(self, generator: Any, asked: Asked) -> None:
        self._generator = generator
        self._pagetable = generator.pagetable
        self._asked = asked
        self.jobs: dict[str, Any] = {}
        self.cpu_group = 2 if asked.recurrent else 1
        self._signs: list[Sign | None] = []
        """Of each page, as it was looked at last."""
        self._given: list[Any] = []
        """Pages that were looked at as if nobody referred to them."""
        self._key_of: dict[int, KeyId] = {}
        """By page of exllamav3: the key that it has."""
        self._found: dict[KeyId, Claim] = {}
        self._hashed: dict[bytes, Claim] = {}
        """By hash: the prefix that ends with the page."""
        self._by_number: dict[int, Any] = {}
        self._columns: dict[int, tuple[str, int]] = {}
        """By page of exllamav3: whose table it was in last, and which column it was."""

    # --- requests ---------------------------------------------------------------------------------

    def tables(self, r: str) -> Tables:
        """Return the pages of a request by column, and the slot of its state."""
        job = self.jobs.get(r)
        if job is None:
            return []
        tables = [[page_of(page) for page in _pages(job)]]
        if self._asked.recurrent:
            state = job.recurrent_state
            tables.append([] if state is None else [slot_of(state.target.slot)])
        return tables

    # --- keys -------------------------------------------------------------------------------------

    def keys(self, given: Sequence[Any] = ()) -> dict[KeyId, Claim]:
        """Return every key that can be hit now, and those that there are when nobody refers to the
        pages `given` any more.
        """
        changed = self._changed()
        self._learn({id(page) for page in changed})
        gives = {id(page) for page in given}
        for page in [*changed, *self._given, *given]:
            self._found.pop(self._key_of.pop(id(page), _NONE), None)
        for page in [*changed, *self._given, *given]:
            if key := self._key(page, given=id(page) in gives):
                self._key_of[id(page)] = key[0]
                self._found[key[0]] = key[1]
        self._given = list(given)
        states: dict[KeyId, Claim] = {
            (RECURRENT, place, name): self._hashed[name]
            for name, place in self.checkpoints()
            if name in self._hashed
        }
        return {**self._found, **states, **self._stored()}

    def _stored(self) -> dict[KeyId, Claim]:
        """Return the keys of the CPU page cache."""
        return {(self.cpu_group, slot, name): self._hashed[name] for name, slot in self._slots()}

    def _slots(self) -> list[tuple[bytes, int]]:
        """Return the hash and the slot of each page that the CPU page cache has."""
        tier = self._pagetable.cpu_tier
        entries = tier.entries.items() if tier is not None else ()
        return [(name, entry["slot"] + 1) for name, entry in entries]

    def _changed(self) -> list[Any]:
        """Return the pages that are not as they were when they were looked at last."""
        pages = self._pagetable.all_pages
        before = self._signs
        self._signs = list(map(_sign, pages))
        if before == self._signs:
            return []
        self._by_number = {page_of(page): page for page in pages}
        before = before or [None] * len(pages)
        return [
            page for page, old, new in zip(pages, before, self._signs, strict=True) if old != new
        ]

    def _key(self, page: Any, *, given: bool) -> tuple[KeyId, Claim] | None:
        """Return the key of a page, if it has one."""
        name, written = self._named(page, given=given)
        if written == self._asked.page_size and name in self._hashed:
            return (ATTENTION, page_of(page), name), self._hashed[name]
        if (page.ref_count == 0 or given) and self._is_copied(page, written):
            r, column = self._columns[id(page)]
            length = column * self._asked.page_size + written
            return (ATTENTION, page_of(page), (r, length)), Claim(length, r)
        return None

    def _is_copied(self, page: Any, written: int) -> bool:
        """Whether the beginning of a page is copied for who comes with the same tokens. One that
        has forgotten what is in front of it is none that anybody should find.
        """
        _, column = self._columns.get(id(page), ("", 0))
        before = page.prev_hash_revert if page.can_revert else page.prev_hash
        forgotten = column > 0 and before is None
        return (
            not self._asked.recurrent
            and written > 0
            and id(page) in self._columns
            and not forgotten
        )

    def _named(self, page: Any, *, given: bool) -> tuple[bytes, int]:
        """Return the hash of a page and how many tokens of it are written; of one that is given
        back unwritten, those that it gets back.
        """
        if given and page.can_revert:
            return page.phash_revert, page.kv_position_revert
        return page.phash, page.kv_position

    def _learn(self, changed: set[int]) -> None:
        """Note of which prefixes the hashes of changed pages are: a hash is met first in the table
        of a job.
        """
        size = self._asked.page_size
        if not changed:
            return
        kept = [name for name, _ in self.checkpoints()] + [name for name, _ in self._slots()]
        named: set[Hashable] = {name for name in kept if name in self._hashed}
        named.update(name for *_, name in self._found)
        for r, job in self.jobs.items():
            for column, page in enumerate(_pages(job)):
                if id(page) not in changed:
                    continue
                if not page.can_revert:
                    self._columns[id(page)] = (r, column)
                whole = page.kv_position == size and _is_content(page.phash)
                if whole and page.phash not in named:
                    self._hashed[page.phash] = Claim((column + 1) * size, r)

    def unwritten(self) -> list[Any]:
        """Return the pages that jobs were given and have not written: if they never do, these
        become again what they were.
        """
        return [
            page
            for page in self._pagetable.referenced_pages.values()
            if page.can_revert and page.kv_position_revert
        ]

    def given_by(self, job: Any) -> list[Any]:
        """Return the pages that nobody refers to when a job gives its own back, without those
        whose hash is another page's by now: these get none back.
        """
        taken = {page.phash for page in self._pagetable.all_pages}
        return [
            page
            for page in _pages(job)
            if page.ref_count == 1 and not (page.can_revert and page.phash_revert in taken)
        ]

    def checkpoints(self) -> Iterable[tuple[bytes, int]]:
        """Yield the hash and the place of each state that is kept."""
        for name, stashed in (self._generator.recurrent_cache or {}).items():
            yield name, stashed["target"][STATE_LAYER]

    def free_slots(self) -> list[int]:
        """Return the slots that no job has."""
        return [slot_of(slot) for slot in self._generator.cache.free_list if self._asked.recurrent]

    def free_place(self) -> int:
        """Return the first place that has no checkpoint."""
        used = {place for _, place in self.checkpoints()}
        first = 1 + self._asked.max_batch_size
        return next(place for place in range(first, self._asked.places) if place not in used)

    # --- books ------------------------------------------------------------------------------------

    def counts(self) -> dict[int, Count]:
        """Return the books of every pool: exllamav3 counts who refers to a page; of states, which
        slots are free and which checkpoints are kept.
        """
        table = self._pagetable
        found = {ATTENTION: self._pages(len(table.referenced_pages), table.unreferenced_pages)}
        if self._asked.recurrent:
            kept = len(self._generator.recurrent_cache)
            found[RECURRENT] = Count(self._asked.states - kept, self._asked.max_batch_size, kept)
        if self._asked.cpu_pages:
            kept = len(table.cpu_tier)
            found[CPU] = Count(self._asked.cpu_pages - kept, 0, kept)
        return found

    def _pages(self, held: int, unreferenced: dict[bytes, Any]) -> Count:
        kept = sum(id(page) in self._key_of for page in unreferenced.values())
        return Count(len(unreferenced) - kept, held, kept)

    def references(self, pool: int, page: int) -> int | None:
        """Return how many jobs refer to a page, by exllamav3's count; it does not count those of a
        state.
        """
        if pool != ATTENTION:
            return None
        return int(self._by_number[page].ref_count)


def page_of(page: Any) -> int:
    """Return the number of a page."""
    return int(page.page_index) + 1


def slot_of(slot: int) -> int:
    """Return the number of the place of a running state."""
    return slot + 1


def _sign(page: Any) -> Sign:
    return (
        page.phash,
        page.kv_position,
        page.ref_count,
        page.can_revert,
        page.page_index,
        page.prev_hash,
    )


def _pages(job: Any) -> list[Any]:
    return job.sequences[0].allocated_pages or []


def _is_content(name: bytes) -> bool:
    """Whether a hash is that of tokens; others are counted upwards (`is_content_hash`)."""
    return name[:8] != bytes(8)
