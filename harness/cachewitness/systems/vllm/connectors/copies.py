"""The copies that a connector's worker asks the device for. Here they are only kept in mind: the
ledger carries them out.

A job is a set of pages that are copied together, in as many steps as the trace says, the step that
it begins with counted. vLLM's worker polls it or waits for it, as it does with the event of a CUDA
stream. What is waited for is over before the runs of the step; else a job is over when its last
step has run. The copies of one direction end in the order in which they began, as they do on one
stream.

Source: vLLM 0.33.0, `v1/worker/kv_connector_model_runner_mixin.py`;
`v1/simple_kv_offload/copy_backend.py`; `v1/kv_offload/base.py`, `OffloadingWorker`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from cachewitness.core.events import Move
from cachewitness.engines.observe_pins import POOL
from cachewitness.engines.observe_tier import TIER


class Job:
    """Pages that are copied together; `numbers` are their copies' in the history."""

    def __init__(
        self, numbers: list[int], moves: list[Move], steps_left: int, *, stores: bool, begun: bool
    ) -> None:
        self.numbers = numbers
        self.moves = moves
        self.steps_left = steps_left
        self.stores = stores
        self.expedited = False
        """Whether it has a stream of its own, beside that of its direction."""
        self.begun = begun
        """Whether the device was asked for it already; a store may be told of before."""
        self.over = False
        self.failed: set[int] = set()
        """Numbers of the copies among them that brought nothing."""

    @property
    def stream(self) -> tuple[bool, bool]:
        """On which stream of the device it runs."""
        return self.stores, self.expedited


class Copies:
    """The jobs under way, and what of them the step at hand has to be told."""

    def __init__(self, delay: int) -> None:
        self.delay = max(1, delay)
        self.under_way: list[Job] = []
        self.group_of: dict[int, int] = {}
        """For which of the device's groups a page of the connector's memory is filled, where the
        connector says so."""
        self._count = 0
        self.begin_step()

    def begin_step(self, failing: Sequence[int] = ()) -> None:
        """Forget what the last step was told. `failing`: see `advance`, of loads that are over
        before the runs.
        """
        self._failing = failing
        self._failing_behind: Sequence[int] = ()
        self.before: list[Move] = []
        """Loads that begin and are over before the runs."""
        self.begun: list[tuple[int, Move]] = []
        self.flushed: list[int] = []
        """Copies that are over before the runs."""
        self.ended: list[int] = []
        self.failed: list[int] = []
        self.lost: list[int] = []
        """Blocks of the device that a load was to fill which has failed."""

    def begin(
        self,
        src: Iterable[int],
        dst: Iterable[int],
        *,
        stores: bool,
        asked: bool = True,
        steps: int = 0,
    ) -> Job:
        """Begin to copy pages, in so many `steps` (0: as others); the job takes none before the
        device is `asked` for it.

        Raises RuntimeError if there are not as many pages to copy from as to copy to.
        """
        sources = [int(page) for page in src]
        targets = [int(page) for page in dst]
        if len(sources) != len(targets):
            raise RuntimeError(
                f"the worker is told to copy {len(sources)} pages, {sources}, into {len(targets)},"
                f" {targets}"
            )
        src_pool, dst_pool = (POOL, TIER) if stores else (TIER, POOL)
        moves = [Move(*pages, src_pool, dst_pool) for pages in zip(sources, targets, strict=True)]
        numbers = [*range(self._count + 1, self._count + len(moves) + 1)]
        self._count += len(moves)
        job = Job(numbers, moves, steps or self.delay, stores=stores, begun=asked)
        self.begun += zip(numbers, job.moves, strict=True)
        self.under_way.append(job)
        return job

    def wait(self, jobs: Iterable[Job]) -> None:
        """Let jobs be over before anybody runs in this step, and with each what began before it
        on the same stream.
        """
        for job in jobs:
            stream = (
                [other for other in self.under_way if other.begun and other.stream == job.stream]
                if not job.over
                else []
            )
            for other in stream[: stream.index(job) + 1] if stream else ():
                self._over_before_the_runs(other)

    def _over_before_the_runs(self, job: Job) -> None:
        now = not {number for number, _ in self.begun}.isdisjoint(job.numbers)
        if now and not job.stores:
            self._fail(self._failing, [job])
            came = [
                entry
                for entry in zip(job.numbers, job.moves, strict=True)
                if entry[0] not in job.failed
            ]
            self.before += [move for _, move in came]
            self.begun = [entry for entry in self.begun if entry not in came]
        else:
            self.flushed += [number for number in job.numbers if number not in job.failed]
        self._end(job)

    def over_behind(self, job: Job) -> None:
        """Let a job that begins when the step has run be over with it."""
        self._fail(self._failing_behind, [job])
        self.ended += [number for number in job.numbers if number not in job.failed]
        self._end(job)

    def advance(self, failing: Sequence[int]) -> None:
        """Let the step pass: what has no step left is over.

        `failing` are places of copies among the loads under way, in the order in which they began;
        those will have failed when their job is over. A store does not fail: vLLM's connectors have
        no way to say so.
        """
        self._failing_behind = failing
        self._fail(failing, self.under_way)
        for job in [job for job in self.under_way if job.begun]:
            job.steps_left -= 1
            if job.steps_left <= 0:
                self.ended += [number for number in job.numbers if number not in job.failed]
                self._end(job)

    def _fail(self, failing: Sequence[int], jobs: Collection[Job]) -> None:
        """Mark the copies of some jobs that are at the failing places among all loads under way."""
        places = [
            (job, number) for job in self.under_way if not job.stores for number in job.numbers
        ]
        for job, number in [places[place] for place in failing if place < len(places)]:
            if job in jobs:
                job.failed.add(number)

    def _end(self, job: Job) -> None:
        """Let a job be over, and the copies of it have failed which are marked so."""
        job.over = True
        self.under_way.remove(job)
        for number, move in zip(job.numbers, job.moves, strict=True):
            if number in job.failed:
                self.failed.append(number)
                self.lost.append(move.dst)
