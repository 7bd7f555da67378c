"""Drives exllamav3's generator: a step of a trace is one call of `Generator.iterate`, with all the
forwards that it makes.

Everything that decides is exllamav3's own: `Generator` (who starts, who prefills how much, who
decodes, who is put back into the queue), `Job`, `Sequence`, `PageTable`, `Cache` with its slots,
`RecurrentCache`, `PairedState` and `GDNState`. What they have the device do, the stand-ins tell, in
the order in which it comes: each forward is a step of the history, and copies in front of it are
made before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cachewitness.core.events import Acquire, Event, Header, Move, Release, Run, StepBegin, StepEnd
from cachewitness.core.trace_format import Step, Submit
from cachewitness.engines.adapter import (
    LOCAL,
    SECOND,
    Adapter,
    Asked,
    Host,
    Refused,
    Scheduled,
)
from cachewitness.engines.block_table_diff import BlockTableDiff
from cachewitness.engines.cache_state import ABSENT, Claim, Count, KeyId, Tables
from cachewitness.engines.driver import Client
from cachewitness.systems.exllamav3 import options
from cachewitness.systems.exllamav3.build import build
from cachewitness.systems.exllamav3.observed import ATTENTION, CPU, RECURRENT, Shown, slot_of
from cachewitness.systems.exllamav3.source import Exllamav3
from cachewitness.systems.exllamav3.stand_ins import Row, Sampler

ROTATED = "pin:rotated"
"""Who holds pages that change places until they have their keys."""
FILLED = "pin:filled"
"""Who holds pages that were copied and are filled at once, until they have their keys."""
FREE = "pin:free"
"""Who holds slots that no job has."""


class Exllamav3Generator(Adapter):
    """exllamav3's generator, and what it has its device do."""

    samples = True

    def __init__(self, source: Exllamav3, asked: options.Asked) -> None:
        built = build(source, asked, self)
        self.generator = built.generator
        self._job = source.part("generator.job", "Job")
        self._tensor = source.part("generator.job", "torch").tensor
        self.asked = asked
        self.shown = Shown(self.generator, asked)
        self.max_model_len = self.holds = asked.longest
        self._prompts: dict[str, int] = {}
        self._looked_up: set[str] = set()
        """Who was told where to begin since it was given its pages."""
        self._ending = ""
        self._given: list[Any] = []
        """Pages that have the keys that they would have if nobody referred to them."""
        self._free: list[int] = []
        self._unwritten: dict[int, Any] = {}
        self._rotated: list[Move] = []
        self._moves: list[Move] = []
        """What is copied before anything else is done."""
        self._filled: list[tuple[int, int]] = []
        self._sources: dict[KeyId, Claim] = {}
        """Keys of what is copied then: they end behind that."""
        self._restored: list[int] = []
        """From where the state is copied of the job that is given its pages."""
        self._loaded: dict[int, int] = {}
        """By page that was copied from the CPU page cache for who has not begun: from where."""
        self._copied: dict[int, int] = {}
        """By page whose beginning was copied and that nobody has computed over yet: from where."""

    # --- what it shows ----------------------------------------------------------------------------

    def tables(self, r: str) -> Tables:
        """Return the pages that a request holds."""
        return self.shown.tables(r)

    def keys(self) -> dict[KeyId, Claim]:
        """Return every key that can be hit now. A page that is to be copied has those that it had;
        what it is to have comes behind that.
        """
        shown = self.shown.keys(self._given)
        if not self._sources:
            return shown
        places = {key[:2] for key in self._sources}
        return {key: claim for key, claim in shown.items() if key[:2] not in places} | self._sources

    def counts(self) -> dict[int, Count]:
        """Return the books of every pool."""
        return self.shown.counts()

    def references(self, pool: int, page: int) -> int | None:
        """Return how many jobs refer to a page; None for states, which are not counted."""
        return self.shown.references(pool, page)

    def _settle(self, leaving: Any = None) -> None:
        """Look at the cache; with the job `leaving` keys begin that it leaves.

        A page that was given to a job is its own before it loses its keys: what is in it stays, and
        has its keys again if the job never writes there.
        """
        unwritten = {id(page): page for page in self.shown.unwritten()}
        come = [page for name, page in unwritten.items() if name not in self._unwritten]
        self._unwritten = unwritten
        if come:
            self._given = come
            self.diff.settle(list(self.shown.jobs), further=self._slots)
        self._given = self.shown.given_by(leaving) if leaving else []
        self.diff.settle(list(self.shown.jobs), further=self._slots)
        self._given = []
        filled = self._filled
        self._filled = []
        for group, page in filled:
            self.diff.release(group, [page], FILLED)

    def _pool(self, group: int) -> int:
        return self.groups[group].pool

    def _slots(self) -> list[Event]:
        """Return which slots jobs have given back or taken: the free ones are nobody's to keep
        checkpoints in.
        """
        before = self._free
        self._free = self.shown.free_slots()
        gone = [slot for slot in before if slot not in self._free]
        come = [slot for slot in self._free if slot not in before]
        events: list[Event] = []
        for of, slots in ((Release, gone), (Acquire, come)):
            if slots:
                events.append(
                    of(
                        step=self.diff.step,
                        pool=RECURRENT,
                        group=RECURRENT,
                        pages=slots,
                        holder=FREE,
                    )
                )
        return events

    # --- the device -------------------------------------------------------------------------------

    def _begin(self, runs: list[Run]) -> None:
        """Have a step of the history begin and end, with the copies in front of it."""
        moves = self._moves
        targets = set(map(_target, moves))
        self._filled = [
            key[:2]
            for key in self._sources
            if key[0] != ATTENTION and (self._pool(key[0]), key[1]) in targets
        ]
        for group, page in self._filled:
            self.diff.hold(group, [page], FILLED)
        self._moves = []
        self._sources = {}
        step = self.diff.step
        self.engine.events.append(StepBegin(step=step, runs=runs, copies=moves))
        self.engine.events.append(StepEnd(step=step))

    def _copy(self, move: Move) -> None:
        """Have a page copied with the next step, together with all that wait: what is copied from
        a page that is to be filled comes from where that comes from. What is copied has its keys
        until it is.
        """
        origin = next((one for one in self._moves if _target(one) == _source(move)), move)
        moved = Move(origin.src, move.dst, origin.src_pool, move.dst_pool)
        self._moves = [one for one in self._moves if _target(one) != _target(move)]
        if _source(moved) == _target(moved):
            return
        self._moves.append(moved)
        self._sources |= {
            key: claim
            for key, claim in self.keys().items()
            if (self._pool(key[0]), key[1]) == _source(moved)
        }

    def flush(self) -> None:
        """Make the copies that wait."""
        if self._moves:
            self.diff.step += 1
            self._settle()
            self._begin([])

    def copy_page(self, source: int, target: int) -> None:
        """Take note that the beginning of a page is copied: it is judged as if all of it were."""
        self._copy(Move(source + 1, target + 1, ATTENTION, ATTENTION))
        self._copied[target + 1] = source + 1

    def rotate(self, moves: list[tuple[int, int]]) -> None:
        """Take note that pages change places. Their keys move behind that."""
        self.flush()
        self.diff.step += 1
        self._moves = [Move(source + 1, to + 1, ATTENTION, ATTENTION) for source, to in moves]
        self._rotated = list(self._moves)
        self._begin([])

    def stash(self, slot: int) -> int:
        """Take note that a state is copied aside, and return where."""
        place = self.shown.free_place()
        self._copy(Move(slot_of(slot), place, RECURRENT, RECURRENT))
        return place

    def unstash(self, place: int, slot: int) -> None:
        """Take note that a state is copied back."""
        self._copy(Move(place, slot_of(slot), RECURRENT, RECURRENT))
        self._restored.append(place)

    def store(self, page: int, slot: int) -> None:
        """Take note that a page is copied into the CPU page cache."""
        self._copy(Move(page + 1, slot + 1, ATTENTION, CPU))

    def load(self, slot: int, page: int) -> None:
        """Take note that it is copied back."""
        self._copy(Move(slot + 1, page + 1, CPU, ATTENTION))
        self._loaded[page + 1] = slot + 1

    def forward(self, rows: list[Row]) -> None:
        """Take note of a forward."""
        self.diff.step += 1
        self._settle()
        runs = [self._run(row) for row in rows]
        for run in runs:
            if run.r not in self._looked_up:
                self._hit(run.r, run.start)
        self._copied.clear()
        self._begin(runs)

    def _run(self, row: Row) -> Run:
        """Return what a row of a forward computes, over the block table that the device has."""
        stop = row.start + len(row.tokens)
        columns = -(-stop // self.asked.page_size)
        tables = [[page + 1 for page in row.table[:columns]]]
        if row.slot >= 0:
            tables.append([slot_of(row.slot)])
        tables += [[]] * bool(self.asked.cpu_pages)
        r, job = self._job_of(row.index)
        run = Run(r, row.start, stop, tables)
        known = job.sequences[0].sequence_ids.torch()[0, row.start : stop].tolist()
        if row.tokens != known:
            run.fed = row.tokens
        return run

    def _job_of(self, index: Any) -> tuple[str, Any]:
        return next(
            (r, job)
            for r, job in self.shown.jobs.items()
            if job.sequences[0].block_index_tensor is index
        )

    def _hit(self, r: str, length: int) -> None:
        """Report where a request begins to compute: behind whole pages, a copied beginning of one,
        and a state.
        """
        self._looked_up.add(r)
        whole, rest = divmod(length, self.asked.page_size)
        held = self.tables(r)[0]
        pages = [held[:whole]]
        if rest:
            pages[ATTENTION].append(self._copied.get(held[whole], held[whole]))
        if self.asked.recurrent:
            pages.append(self._restored)
            self._restored = []
        tier = LOCAL
        if self.asked.cpu_pages:
            pages.append([self._loaded.pop(page, ABSENT) for page in held[:whole]])
            tier = SECOND if any(page != ABSENT for page in pages[-1]) else LOCAL
        self.diff.hit(r, length, pages, tier=tier)

    # --- life of a request ------------------------------------------------------------------------

    def compared(self, header: Header) -> BlockTableDiff:
        """Take note of the groups that are declared."""
        self.groups = header.groups
        return super().compared(header)

    def attach(self, engine: Host) -> None:
        """Take note of the driver."""
        super().attach(engine)
        defrag = self.generator.pagetable.defrag
        self.generator.pagetable.defrag = lambda: self._defragmented(defrag)

    def _defragmented(self, defrag: Any) -> None:
        """Follow pages that change places, which nobody refers to: what has come to be in them is
        not lost while their keys change.
        """
        defrag()
        pages = [move.dst for move in self._rotated]
        self._rotated = []
        self.diff.hold(ATTENTION, pages, ROTATED)
        self.diff.settle(reason="replace")
        self.diff.release(ATTENTION, pages, ROTATED)

    def add(self, submit: Submit, tokens: list[int], shared: int) -> None:
        """Queue a job, which generates as long as there is room; what leaves no room to generate
        is refused.
        """
        if not 0 < len(tokens) < self.max_model_len:
            raise Refused(
                f"a prompt of {len(tokens)} tokens; it must have at least 1 and fewer than"
                f" {self.max_model_len}"
            )
        r = submit.r
        job = self._job(
            self._tensor([tokens]),
            max_new_tokens=self.max_model_len - len(tokens),
            max_rq_tokens=self.asked.max_rq_tokens,
            sampler=Sampler(lambda: self._sample(r)),
        )
        job.allocate_pages = self._followed(r, job, job.allocate_pages, self._placed)
        job.deallocate_pages = self._followed(r, job, job.deallocate_pages, self._left)
        self._prompts[r] = len(tokens)
        self.shown.jobs[r] = job
        self.generator.enqueue(job)

    def _followed(self, r: str, job: Any, method: Any, around: Any) -> Any:
        return lambda: around(r, job, method)

    def _placed(self, r: str, job: Any, allocate: Any) -> None:
        """Follow a job that is given its pages."""
        self._looked_up.discard(r)
        allocate()
        if self.asked.recurrent:
            self.flush()
            self._settle()
            self._hit(r, job.sequences[0].kv_position)

    def _left(self, r: str, job: Any, give_back: Any) -> None:
        """Follow a job that gives its pages back: it has ended, or goes back into the queue."""
        self.flush()
        over = job.is_finished and self._ending != r
        if over:
            self.engine.over(r, self.diff.step, finished=True)
        elif self._ending != r and job.sequences[0].allocated_pages:
            self.engine.preempted(r)
        self._settle(leaving=job)
        give_back()
        self._settle()
        if over:
            self._forget(r)
            self.diff.forget(r)

    def _forget(self, r: str) -> None:
        del self.shown.jobs[r], self._prompts[r]
        self._looked_up.discard(r)

    def accept(self, r: str, tokens: Sequence[int]) -> None:
        """Never called: what was sampled is taken note of when it is."""
        raise AssertionError(r)

    def end(self, r: str, *, finished: bool) -> None:
        """Cancel a job, as exllamav3's server does when a client goes away or has enough."""
        self._ending = r
        self.generator.cancel(self.shown.jobs[r])
        self._ending = ""
        self._settle()
        self._forget(r)

    def running(self) -> list[str]:
        """Return the requests that hold pages."""
        return [r for r, job in self.shown.jobs.items() if job.sequences[0].allocated_pages]

    def preempt(self, r: str) -> None:
        """Never called: nobody can ask exllamav3 to preempt a request."""
        raise AssertionError(r)

    # --- steps ------------------------------------------------------------------------------------

    def schedule(self, asked: Asked | None, step: Step) -> Scheduled:
        """Never called: an iteration of exllamav3's makes steps by itself."""
        raise AssertionError(step)

    def complete(self, scheduled: Scheduled) -> None:
        """Never called: neither is this."""
        raise AssertionError(scheduled)

    def iterate(self) -> None:
        """Have exllamav3 do what it does in one go, and raise what it contained of one job's
        failure.
        """
        before = self.diff.step
        for result in self.generator.iterate():
            if "error" in result:
                raise result["error"]
        self.flush()
        if self.diff.step == before:
            self.diff.step += 1
            self._settle()
            self._begin([])
        self._settle()

    def _sample(self, r: str) -> Any:
        client = Client(r, self.shown.jobs[r].sequences[0].sequence_ids.torch()[0].tolist())
        client.num_prompt_tokens = self._prompts[r]
        tokens = self.engine.sampler.sample(client, [])
        self.engine.generated(r, tokens, self.diff.step)
        return self._tensor([tokens])


def _source(move: Move) -> tuple[int, int]:
    return move.src_pool, move.src


def _target(move: Move) -> tuple[int, int]:
    return move.dst_pool, move.dst
