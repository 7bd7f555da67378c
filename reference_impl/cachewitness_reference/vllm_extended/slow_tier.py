"""The second tier where copies take time, and may fail.

A copy is a *transfer*: it begins with a step, goes on beside others, and ends, well or not. Until
then it holds both of its ends, whoever else lets go of them: the block, so that nobody else gets a
page that is still written or read, and the place, so that it is not overwritten. Nothing is
believed before it is there. A block that is loaded is keyed when its load has ended well, a place
when its store has; what failed is never keyed, and a place that could not be loaded from is not
asked again.

Who waits for a load may be gone before it ends (`abandon`). Then nothing is keyed, and the page is
free when the load is over.

Like the tier itself this is no rule of vLLM's; it asks of a transfer what vLLM asks of a connector
(0.33.0, `scheduler.py`, `finished_recving`, `_handle_invalid_blocks` with the load failure policy
`recompute`).
"""

from __future__ import annotations

from dataclasses import dataclass

from cachewitness_reference.vllm.key_index import BlockHashWithGroupId, KVCacheBlock
from cachewitness_reference.vllm.request import Request
from cachewitness_reference.vllm_extended.tier import PlainTier, TierBlock


@dataclass(eq=False)
class Transfer:
    """A copy of one page under its key; a load if `stores` is false.

    `waiting` is who waits for a load, None once nobody does. It ends with the step that brings
    `steps_left` to 0.
    """

    number: int
    place: TierBlock
    block: KVCacheBlock
    key: BlockHashWithGroupId
    num_tokens: int
    stores: bool
    steps_left: int
    waiting: Request | None = None
    failed: bool = False
    ended: bool = False


class SlowTier(PlainTier):
    """A tier whose copies take `delay` steps: of a load, the first is the step that it begins
    with.
    """

    def __init__(self, num_pages: int, delay: int) -> None:
        super().__init__(num_pages)
        self.delay = delay
        self._storing: dict[BlockHashWithGroupId, TierBlock] = {}
        self._count = 0

    def store(self, request_id: str, block: KVCacheBlock) -> TierBlock | None:
        """As in `PlainTier`, but also None if the key is being stored. A place is found by its
        key when the store has ended.
        """
        assert block.block_hash is not None
        return None if block.block_hash in self._storing else super().store(request_id, block)

    def begin_loads(self, request: Request) -> list[Transfer]:
        """Begin what the request has to wait for."""
        return [self._begin(place, block, request) for place, block in self.take_loads()]

    def begin_store(self, place: TierBlock, block: KVCacheBlock) -> Transfer:
        """Begin to fill a place."""
        return self._begin(place, block, None)

    def end(self, transfer: Transfer) -> None:
        """Let go of the place of a transfer that is over, and key it if it was filled."""
        place = transfer.place
        key = transfer.key
        transfer.ended = True
        place.num_copies -= 1
        if transfer.stores and self._storing.get(key) is place:
            del self._storing[key]
            if not transfer.failed:
                self._set_key(place, key, transfer.num_tokens)
                self._cached[key] = place
        if not transfer.stores and transfer.failed and self._cached.get(key) is place:
            del self._cached[key]
            self._set_key(place, None, None)
        if place.num_copies == 0 and place.block_hash is None:
            self._free.append(place)

    def reset(self) -> None:
        """Forget every key, those on their way too; places that are read or written now are free
        when that is over.
        """
        super().reset()
        self._storing.clear()
        self._free = [place for place in self._free if place.num_copies == 0]

    def _keep(self, place: TierBlock, block: KVCacheBlock) -> None:
        assert block.block_hash is not None
        self._set_key(place, None, None)
        self._storing[block.block_hash] = place
        place.num_copies += 1

    def _begin(self, place: TierBlock, block: KVCacheBlock, waiting: Request | None) -> Transfer:
        named = block if waiting is None else place
        assert named.block_hash is not None and named.block_hash_num_tokens is not None
        self._count += 1
        steps = self.delay + (waiting is None)
        stores = waiting is None
        return Transfer(
            self._count,
            place,
            block,
            named.block_hash,
            named.block_hash_num_tokens,
            stores,
            steps,
            waiting,
        )


def abandon(transfers: list[Transfer]) -> None:
    """Say that nobody waits for these any more."""
    for transfer in transfers:
        transfer.waiting = None
