"""States that vLLM's worker saves on its way through the last chunk of a prompt, beside the one at
the chunk's end.

Backends of recurrent layers export them (Kimi's delta attention since 0.30, Gated DeltaNet and
Mamba 2 since 0.32), so that a prompt needs no chunk more to leave a state where its prefix may be
hit. The scheduler does not cut there, the cache manager reserves a block in the column before the
last one, and the worker works out both again from the lengths: three parts that have to agree. The
worker's part is vLLM's own function; the copy into the block is the ledger's.

Source: vLLM 0.31.0 to 0.33.0, `v1/kv_cache_interface.py`, `MambaSpec`;
`model_executor/layers/mamba/checkpoint.py`, `MambaPrefillCheckpointBuilder`;
`v1/attention/backends/gdn_attn.py`, which leaves out rows that verify drafts. In 0.30 the worker's
part is a piece of `models/kimi_k3/nvidia/kda_metadata.py`, which needs the device, so nothing is
driven there.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterable, Iterator
from copy import copy
from typing import Any

from cachewitness._util.errors import UsageError
from cachewitness.engines.cache_state import Tables
from cachewitness.engines.key_events import medium_of
from cachewitness.engines.version_check import takes
from cachewitness.systems.vllm.source import Source

MODULE = "model_executor.layers.mamba.checkpoint"
FIELDS = ("num_prefill_checkpoint_blocks", "prefill_checkpoint_alignment")


def with_checkpoints(source: Source, kv_cache_config: Any, alignment: int) -> Any:
    """Return a KVCacheConfig whose recurrent layers save states within a chunk, `alignment` tokens
    or more behind its start.

    Raises UsageError for a release whose layers do not, or whose worker says where on the device
    alone, and for a configuration without such layers.
    """
    state = source.interface.MambaSpec
    if missing := [
        name for name in FIELDS if name not in {field.name for field in dataclasses.fields(state)}
    ]:
        raise UsageError(
            f"option 'prefill_checkpoints': vLLM {source.version} has none (its MambaSpec has no"
            f" {missing[0]!r})"
        )
    try:
        importlib.import_module(f"vllm.{MODULE}")
    except ModuleNotFoundError as error:
        if error.name != f"vllm.{MODULE}":
            raise
        raise UsageError(
            f"option 'prefill_checkpoints': vLLM {source.version} has no vllm.{MODULE}, so where"
            " its layers save a state cannot be asked without their device; run 0.31 or later, or"
            " leave the option out"
        ) from None
    groups = kv_cache_config.kv_cache_groups
    if not any(isinstance(group.kv_cache_spec, state) for group in groups):
        raise UsageError(
            "option 'prefill_checkpoints': the layout has no recurrent group; leave the option out"
        )
    fields = dict(zip(FIELDS, (1, alignment), strict=True))
    marked = [
        (
            dataclasses.replace(
                group, kv_cache_spec=dataclasses.replace(group.kv_cache_spec, **fields)
            )
            if isinstance(group.kv_cache_spec, state)
            else group
        )
        for group in groups
    ]
    return dataclasses.replace(kv_cache_config, kv_cache_groups=marked)


class PrefillCheckpoints:
    """Where states are saved within chunks. `config` is the VllmConfig, `sizes` are (hash block,
    hit alignment) in tokens.
    """

    def __init__(self, config: Any, kv_cache_config: Any, sizes: tuple[int, int]) -> None:
        self._module: Any = importlib.import_module(f"vllm.{MODULE}")
        specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
        self._specs = {
            index: spec for index, spec in enumerate(specs) if getattr(spec, FIELDS[0], 0)
        }
        drafter = config.speculative_config
        self._drops = (
            drafter is not None
            and drafter.use_eagle_block_drop()
            and not config.num_hash_lookahead_tokens
        )
        self._sizes = sizes
        self._match_unit = config.cache_config.prefix_match_unit

    def of(self, chunk: tuple[int, int], rows: Tables, null: int) -> Iterator[tuple[int, int, int]]:
        """Yield (group, page, length) of what is saved on the way through tokens [start, stop) of a
        request.

        `rows` are its rows of the block tables.
        """
        start, stop = chunk
        compute = self._module.compute_mamba_prefill_checkpoints
        for group, spec in self._specs.items():
            asked: dict[str, Any] = {
                "mamba_block_size": spec.block_size,
                "checkpoint_alignment": spec.prefill_checkpoint_alignment,
                "drop_eagle_block": self._drops,
            }
            if takes(compute, "cache_hit_alignment_tokens"):  # since 0.32
                asked |= {
                    "hash_block_size": self._sizes[0],
                    "cache_hit_alignment_tokens": self._sizes[1],
                }
            else:
                asked["hash_block_size"] = self._match_unit or spec.block_size
            (offset,), (column,) = compute([stop], [stop - start], **asked)
            if offset and column < len(rows[group]) and rows[group][column] != null:
                yield group, rows[group][column], start + offset


def net(events: Iterable[Any]) -> list[Any]:
    """Return what a batch of vLLM's key events leaves: without the blocks that it first tells as
    stored and then as removed.

    A block that a checkpoint goes to is keyed as a whole block first, and then anew, by what the
    state in it has seen. Routers get both in one message. A connector's memory has its own events.
    """
    stored: dict[tuple[str, Any, Any], Any] = {}
    left = list[Any]()
    for published in events:
        event = copy(published)
        kind = type(published).__name__
        left.append(event)
        if kind not in ("BlockStored", "BlockRemoved"):
            stored.clear()
            continue
        of = {name: (medium_of(event), event.group_idx, name) for name in event.block_hashes}
        if kind == "BlockStored":
            stored |= dict.fromkeys(of.values(), event)
        else:
            back = [name for name in event.block_hashes if of[name] in stored]
            event.block_hashes = [name for name in event.block_hashes if name not in back]
            for name in back:
                _leave_out(stored.pop(of[name]), name)
    return [event for event in left if getattr(event, "block_hashes", True)]


def _leave_out(event: Any, name: Any) -> None:
    place = event.block_hashes.index(name)
    event.block_hashes = [*event.block_hashes[:place], *event.block_hashes[place + 1 :]]
    if event.extra_keys:
        event.extra_keys = [*event.extra_keys[:place], *event.extra_keys[place + 1 :]]
