"""A connector that derives from vLLM's base class alone: what it keeps, and where, is its own
affair.

The device's caches hold numbers instead of keys and values: each time a step writes a block, the
block gets a number that no content had before, in every layer of its group. Whatever copies a block
takes its number along, so a number that appears in a block says what was put there. What a block
holds lies in a further page of the history's pool, from which it comes back. What is no number, or
in one layer another than in the next, is the content of a page that nobody ever wrote.

A load is over before the runs of its step, or, where its request waits for it ("later"), when the
step has run.

Source: vLLM 0.33.0, `distributed/kv_transfer/kv_connector/v1/base.py`;
`v1/worker/kv_connector_model_runner_mixin.py`.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import cycle
from types import SimpleNamespace
from typing import Any, NamedTuple

from cachewitness._util.errors import UsageError
from cachewitness.engines.cache_state import Claim, KeyId
from cachewitness.systems.vllm.connectors.copies import Job
from cachewitness.systems.vllm.connectors.kinds import CopiesOf, VllmSide
from cachewitness.systems.vllm.connectors.tier import Books, KeyNames
from cachewitness.systems.vllm.source import Source

BASE = "KVConnectorBase_V1"
WHOLE, PARTS = 3584, 512
"""How many whole blocks are kept, and behind them how many that were not whole when a step had
written them; of each kind the oldest makes room."""
KEPT = WHOLE + PARTS
NOWHERE = 0
"""The page that is never written."""


class Group(NamedTuple):
    """The layers of a group, and the tokens of its block; those of states are recurrent."""

    layers: Sequence[str]
    size: int
    states: bool

    @classmethod
    def of(cls, group: Any) -> Group:
        """Return a group as vLLM's configuration describes it."""
        spec = group.kv_cache_spec
        return cls(group.layer_names, spec.block_size, hasattr(spec, "mamba_type"))

    def written(self, start: int, stop: int, columns: int) -> Iterator[tuple[int, int]]:
        """Yield the columns of a row of so many that a step over [start, stop) writes, each with
        the end of the prefix that is there then: of states the last one alone.
        """
        first = (stop - 1) // self.size if self.states else start // self.size
        for column in range(first, min(-(-stop // self.size), columns)):
            yield column, stop if self.states else (column + 1) * self.size


class Caches:
    """The caches of all layers. The first layers of all groups have the same memory, and so on, as
    vLLM has it: a block belongs to one group at a time.

    A layer's cache, int64, has the shape (blocks, 1, tokens of a block, elements of a token); with
    one size of blocks a token has one. That of a recurrent layer is a list of one tensor, of shape
    (blocks, elements).
    """

    def __init__(self, groups: Sequence[Group], blocks: int) -> None:
        torch = importlib.import_module("torch")
        self._range = torch.arange
        self._width = math.lcm(*(group.size for group in groups))
        self._depths = [len(group.layers) for group in groups]
        self._rows = [
            torch.zeros(blocks, self._width, dtype=torch.int64) for _ in range(max(self._depths))
        ]
        self._before = [rows.clone() for rows in self._rows]
        self.layers = {
            name: [rows] if group.states else rows.view(blocks, 1, group.size, -1)
            for group in groups
            for name, rows in zip(group.layers, self._rows, strict=False)
        }

    def write(self, group: int, block: int, number: int) -> None:
        """Give a group's block a number: of each element, so that a part of a block is no block."""
        content = self._content(number)
        for rows, before in zip(
            self._rows[: self._depths[group]], self._before[: self._depths[group]], strict=True
        ):
            rows[block] = before[block] = content

    def clear(self, block: int) -> None:
        """Forget what a block holds: it is given to somebody anew."""
        for rows, before in zip(self._rows, self._before, strict=True):
            rows[block] = before[block] = 0

    def copy(self, src: int, dst: int) -> None:
        """Copy a block, as the worker does in front of a step."""
        for rows, before in zip(self._rows, self._before, strict=True):
            rows[dst] = before[dst] = rows[src]

    def came(self) -> list[int]:
        """Return the blocks that somebody else has written since this was last asked."""
        found = set[int]()
        for rows, before in zip(self._rows, self._before, strict=True):
            found.update((rows != before).any(1).nonzero().flatten().tolist())
            before.copy_(rows)
        return sorted(found)

    def numbers(self) -> list[int]:
        """Return by block what it holds if that is a whole block."""
        numbers: list[int] = (self._rows[0][:, 0] // self._width).tolist()
        return numbers

    def number(self, block: int) -> int:
        """Return the number that a block's first layer holds; 0 for none."""
        number, offset = divmod(int(self._rows[0][block, 0]), self._width)
        return 0 if offset or not self.holds(block, number, 0) else number

    def holds(self, block: int, number: int, group: int) -> bool:
        """Return whether a block holds a number in every layer of a group."""
        content = self._content(number)
        return all(
            bool((rows[block] == content).all()) for rows in self._rows[: self._depths[group]]
        )

    def _content(self, number: int) -> Any:
        return self._range(number * self._width, (number + 1) * self._width)


class Content(NamedTuple):
    """What a page keeps: the number, whose prefix it ends (None: of a block that is not whole), its
    group, and the store that puts it there.
    """

    number: int
    claim: Claim | None
    group: int
    job: Job


class AnyConnector(VllmSide):
    """The connector, both sides."""

    unordered = False
    fenced = True
    """Its copies hold no blocks: what a request that is cancelled in mid-step leaves is copied."""
    null: Sequence[int] = ()

    def __init__(self, source: Source, connector: Any, worker: Any, names: KeyNames) -> None:
        config = connector._kv_cache_config
        self._groups = [Group.of(group) for group in config.kv_cache_groups]
        self._refuse(source, connector, config.kv_cache_groups)
        self._name = type(connector).__name__
        self._caches = Caches(self._groups, config.num_blocks)
        self._contents: dict[int, Content] = {}
        self._page_of: dict[int, int] = {}
        """By number: the page that keeps what was put there."""
        self._pages = (cycle(range(NOWHERE + 1, WHOLE)), cycle(range(WHOLE, KEPT)))
        self._count = 0
        self._copied: list[tuple[int, int]] = []
        self._written: list[tuple[int, int, Claim | None]] = []
        self._forgotten = dict[int, int]()
        """By number: its group, of what was known before a reset since the last step."""
        self._asked = dict[str, set[int]]()
        """By request that waits for a load since this step: its blocks."""
        self._late = dict[str, set[int]]()
        """The same, since an earlier step."""
        self.forward = self
        layers = self._caches.layers
        self.context = SimpleNamespace(
            attn_metadata=dict.fromkeys(layers),
            no_compile_layers={n: SimpleNamespace(kv_cache=c) for n, c in layers.items()},
        )
        worker.register_kv_caches(layers)
        connector.get_num_new_matched_tokens = self._noting_who(
            connector.get_num_new_matched_tokens
        )
        connector.update_state_after_alloc = self._noting_where(connector.update_state_after_alloc)
        connector.reset_cache = self._forgetting(connector.reset_cache)
        connector.build_connector_meta = self._noting(connector.build_connector_meta)

    @staticmethod
    def _refuse(source: Source, connector: Any, groups: Sequence[Any]) -> None:
        """Raise UsageError for groups that vLLM does not give such a connector, or of states."""
        name = type(connector).__name__
        several = source.part("distributed.kv_transfer.kv_connector.v1", "SupportsHMA")
        if len(groups) > 1 and not isinstance(connector, several):
            raise UsageError(
                f"--engine: vLLM refuses {name} where layers have several cache groups (it is not"
                " SupportsHMA)"
            )
        specs = [group.kv_cache_spec for group in groups]
        if any(getattr(spec, "mamba_cache_mode", "align") != "align" for spec in specs):
            raise UsageError(
                f"--engine: {name} derives from vLLM's base class alone, of which recurrent states"
                " are driven where mamba_cache_mode is 'align'"
            )
        if any(
            getattr(spec, few, 0)
            for spec in specs
            for few in ("num_speculative_blocks", "num_prefill_checkpoint_blocks")
        ):
            raise UsageError(
                f"--engine: {name} derives from vLLM's base class alone, of which recurrent states"
                " are not driven with drafts or with checkpoints within chunks"
            )

    def _noting_who(self, asked: Callable[..., Any]) -> Callable[..., Any]:
        def get_num_new_matched_tokens(request: Any, *args: Any, **kwargs: Any) -> Any:
            tokens, later = answer = asked(request, *args, **kwargs)
            self._asked.pop(request.request_id, None)
            if tokens and later:
                self._asked[request.request_id] = set()
            return answer

        return get_num_new_matched_tokens

    def _noting_where(self, update: Callable[..., None]) -> Callable[..., None]:
        def update_state_after_alloc(request: Any, blocks: Any, tokens: int) -> None:
            update(request, blocks, tokens)
            if tokens and request.request_id in self._asked:
                rows = blocks.get_block_ids()
                self._asked[request.request_id] = {block for row in rows for block in row}

        return update_state_after_alloc

    def _forgetting(self, reset: Callable[[], bool | None]) -> Callable[[], bool | None]:
        def reset_cache() -> bool | None:
            if done := reset():
                # Who waits for a load keeps its blocks: what they hold is still that.
                self._forgotten.update(
                    {content.number: content.group for content in self._contents.values()}
                )
                self._contents.clear()
                self._page_of.clear()
            return done

        return reset_cache

    def _noting(self, build: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def build_connector_meta(output: Any) -> Any:
            self._copied = [
                (copy.src_block_id, copy.dst_block_id)
                for copy in output.kv_cache_block_copies or ()
            ]
            self._written = [*self._writes(output)]
            return build(output)

        return build_connector_meta

    def attach(self, pool: Any, copies: CopiesOf) -> None:
        """Take the device's block pool, observed, and what stands in for the device's copies."""
        self._pool = pool
        self._copies = copies
        # What comes back into the block where it was before is the same bytes, and would not show.
        pool.given_anew(self._caches.clear)

    def hold_back(self, *, held: bool) -> None:
        """Do nothing: it stores what requests have computed."""

    def tell(self, meta: Any) -> None:
        """Do nothing: its copies are seen by what lies in the caches."""

    def _writes(self, output: Any) -> Iterator[tuple[int, int, Claim | None]]:
        """Yield the blocks that a step is to write, with the group of each, and the prefix that it
        ends if the step writes its last token.
        """
        starts = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        starts.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for r, tokens in output.num_scheduled_tokens.items():
            start = starts[r]
            stop = start + tokens
            known = stop - len(output.scheduled_spec_decode_tokens.get(r, ()))
            for index, (group, row) in enumerate(
                zip(self._groups, self._pool.tables(r), strict=False)
            ):
                for column, end in group.written(start, stop, len(row)):
                    whole = end <= known and end % group.size == 0
                    yield index, row[column], Claim(end, r) if whole else None

    def loaded(self) -> None:
        """Begin, and end, the loads that the worker has made, and give the blocks that the step
        writes their numbers.
        """
        if came := self._came():
            self._copies.wait([self._copies.begin(*came, stores=False)])
        for src, dst in self._copied:
            self._caches.copy(src, dst)
        for block, number in enumerate(self._caches.numbers() if self._forgotten else ()):
            if number in self._forgotten and self._pool.who_has([block]):
                self._keep(self._forgotten[number], block, number, None, whole=True)
        self._forgotten.clear()
        for index, block, claim in self._written:
            self._count += 1
            self._caches.write(index, block, self._count)
            self._keep(index, block, self._count, claim, whole=claim is not None)

    def _keep(
        self, group: int, block: int, number: int, claim: Claim | None, *, whole: bool
    ) -> None:
        """Have a page keep what a block holds when the step has run."""
        page = next(self._pages[not whole])
        if page in self._contents:
            self._page_of.pop(self._contents[page].number, None)
        self._page_of[number] = page
        job = self._copies.begin([block], [page], stores=True, steps=1)
        self._copies.fill_for([page], [group])
        self._contents[page] = Content(number, claim, group, job)

    def ended(self, transfers: Any) -> None:
        """Begin, and end, the loads that the worker has made beside the step."""
        if came := self._came():
            self._copies.over_behind(self._copies.begin(*came, stores=False))
        for r in transfers.finished_recving or ():
            self._late.pop(r, None)
            self._asked.pop(r, None)
        self._late.update({r: blocks for r, blocks in self._asked.items() if blocks})
        self._asked.clear()

    def _came(self) -> tuple[list[int], list[int]] | None:
        """Return pages, and the blocks into which what they keep has come; None for none.

        Raises UsageError for a load that takes more than the step in which it was asked for: who
        hits what is reported with that.
        """
        blocks = self._caches.came()
        if any(not late.isdisjoint(blocks) for late in self._late.values()):
            raise UsageError(
                f"--engine: a load of {self._name} takes more than the step in which it is asked"
                " for, which is not driven"
            )
        return ([self._page(block) for block in blocks], blocks) if blocks else None

    def _page(self, block: int) -> int:
        number = self._caches.number(block)
        page = self._page_of.get(number, NOWHERE)
        if page == NOWHERE or not self._caches.holds(block, number, self._contents[page].group):
            return NOWHERE
        return page

    def layers(self) -> Iterable[tuple[str, Any]]:
        """Return the layers with their caches, in order."""
        return self._caches.layers.items()

    def books(self) -> Books:
        """Return what is kept: whole blocks, each keyed as the end of the prefix that it ends."""
        keys: dict[KeyId, Claim] = {
            (content.group, page, content.number): content.claim
            for page, content in self._contents.items()
            if content.job.over and content.claim is not None
        }
        return Books(keys, {}, KEPT)
