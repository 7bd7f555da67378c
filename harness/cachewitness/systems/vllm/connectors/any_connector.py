"""A connector that derives from vLLM's base class alone: what it keeps, and where, is its own
affair.

The device's caches hold numbers instead of keys and values: each time a step writes a block, the
block gets a number that no content had before, in every layer of its group. Whatever copies a block
takes its number along, so a number that appears in a block says what was put there. What a block
holds lies in a further page of the history's pool, from which it comes back. A load is over before
the runs of its step.

Source: vLLM 0.33.0, `distributed/kv_transfer/kv_connector/v1/base.py`;
`v1/worker/kv_connector_model_runner_mixin.py`.
"""

from __future__ import annotations

import importlib
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


class Group(NamedTuple):
    """The layers of a group: their caches, of shape (blocks, 1, tokens, 1), int64, and what they
    held when they were last looked at.
    """

    size: int
    caches: dict[str, Any]
    before: dict[str, Any]

    @classmethod
    def of(cls, layers: Iterable[str], size: int, blocks: int) -> Group:
        """Return caches of which no block has been written."""
        zeros = importlib.import_module("torch").zeros
        caches = {
            name: zeros(blocks, 1, size, 1, dtype=importlib.import_module("torch").int64)
            for name in layers
        }
        return cls(size, caches, {name: cache.clone() for name, cache in caches.items()})

    def write(self, block: int, number: int) -> None:
        """Give a block a number: of each token, so that a part of a block is no block."""
        for name, cache in self.caches.items():
            first = number * self.size
            tokens = cache.new_tensor([*range(first, first + self.size)])
            cache[block, 0, :, 0] = tokens
            self.before[name][block] = cache[block]

    def came(self) -> dict[int, int]:
        """Return the number of each block that somebody else has written since; 0 where it is no
        whole block, or another one in another layer.
        """
        found: dict[int, set[int]] = {}
        for name, cache in self.caches.items():
            changed = (cache != self.before[name]).flatten(1).any(1).nonzero().flatten().tolist()
            for block in changed:
                found.setdefault(block, set()).add(self._number(cache[block].flatten().tolist()))
            self.before[name].copy_(cache)
        return {
            block: numbers.pop() if len(numbers) == 1 else 0 for block, numbers in found.items()
        }

    def _number(self, row: list[int]) -> int:
        number, offset = divmod(row[0], self.size)
        return number if offset == 0 and row == [*range(row[0], row[0] + self.size)] else 0


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

    fenced = unordered = False
    null: Sequence[int] = ()

    def __init__(self, source: Source, connector: Any, worker: Any, names: KeyNames) -> None:
        config = connector._kv_cache_config
        self._refuse(source, connector, config.kv_cache_groups)
        self._groups = [
            Group.of(group.layer_names, group.kv_cache_spec.block_size, config.num_blocks)
            for group in config.kv_cache_groups
        ]
        self._contents: dict[int, Content] = {}
        self._page_of: dict[int, int] = {}
        """By number: the page that keeps what was put there."""
        self._pages = (cycle(range(WHOLE)), cycle(range(WHOLE, KEPT)))
        self._count = 0
        self._written: list[tuple[int, int, Claim | None]] = []
        self.forward = self
        layers = {name: cache for group in self._groups for name, cache in group.caches.items()}
        self._layers = layers
        self.context = SimpleNamespace(
            attn_metadata=dict.fromkeys(layers),
            no_compile_layers={n: SimpleNamespace(kv_cache=c) for n, c in layers.items()},
        )
        worker.register_kv_caches(layers)
        connector.get_num_new_matched_tokens = self._at_once(connector.get_num_new_matched_tokens)
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
        if any(hasattr(group.kv_cache_spec, "mamba_type") for group in groups):
            raise UsageError(
                f"--engine: {name} derives from vLLM's base class alone, of which recurrent states"
                " are not driven"
            )

    @staticmethod
    def _at_once(asked: Callable[..., Any]) -> Callable[..., Any]:
        def get_num_new_matched_tokens(*args: Any, **kwargs: Any) -> Any:
            tokens, later = answer = asked(*args, **kwargs)
            if tokens and later:
                raise UsageError(
                    "--engine: a connector that derives from vLLM's base class alone is driven"
                    " where it loads before the step; this one loads beside it"
                )
            return answer

        return get_num_new_matched_tokens

    def _forgetting(self, reset: Callable[[], bool | None]) -> Callable[[], bool | None]:
        def reset_cache() -> bool | None:
            if done := reset():
                self._contents.clear()
                self._page_of.clear()
            return done

        return reset_cache

    def _noting(self, build: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def build_connector_meta(output: Any) -> Any:
            self._written = [*self._writes(output)]
            return build(output)

        return build_connector_meta

    def attach(self, pool: Any, copies: CopiesOf) -> None:
        """Take the device's block pool, observed, and what stands in for the device's copies."""
        self._pool = pool
        self._copies = copies

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
                for place in range(start // group.size, min(-(-stop // group.size), len(row))):
                    end = (place + 1) * group.size
                    yield index, row[place], Claim(end, r) if end <= known else None

    def loaded(self) -> None:
        """Begin, and end, the loads that the worker has made, and give the blocks that the step
        writes their numbers.
        """
        for group in self._groups:
            came = [
                (self._page_of[number], block)
                for block, number in group.came().items()
                if number in self._page_of
            ]
            if came:
                pages, blocks = zip(*came, strict=True)
                self._copies.wait([self._copies.begin(pages, blocks, stores=False)])
        for index, block, claim in self._written:
            self._count += 1
            page = next(self._pages[claim is None])
            if page in self._contents:
                self._page_of.pop(self._contents[page].number, None)
            self._page_of[self._count] = page
            self._groups[index].write(block, self._count)
            job = self._copies.begin([block], [page], stores=True, steps=1)
            self._copies.fill_for([page], [index])
            self._contents[page] = Content(self._count, claim, index, job)

    def layers(self) -> Iterable[tuple[str, Any]]:
        """Return the layers with their caches, in order."""
        return self._layers.items()

    def books(self) -> Books:
        """Return what is kept: whole blocks, each keyed as the end of the prefix that it ends."""
        keys: dict[KeyId, Claim] = {
            (content.group, page, content.number): content.claim
            for page, content in self._contents.items()
            if content.job.over and content.claim is not None
        }
        return Books(keys, {}, KEPT)
