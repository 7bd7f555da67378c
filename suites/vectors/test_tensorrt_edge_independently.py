"""TensorRT-Edge-LLM's expected answers, computed a second time; compactions also on real
tensors, where torch is installed.
"""

from __future__ import annotations

from typing import Any

import pytest

from suites.support.published_vectors import for_every, vectors

COMPACTIONS = vectors("tensorrt_edge", "compaction", "valid")


@for_every(COMPACTIONS)
def test_rows_go_where_the_mapping_sends_them(vector: Any) -> None:
    """Row r holds what the slot held that was sent there: keys and values, states and length
    alike.
    """
    mapping = vector.input.mapping
    lengths = vector.input.lengths
    sent = [mapping.index(row) for row in range(vector.input.new_batch)]
    assert vector.expected.kv_rows == vector.expected.state_rows == sent
    assert vector.expected.lengths == [lengths[page] for page in sent]


@for_every(vectors("tensorrt_edge", "compaction", "invalid"))
def test_a_refused_mapping_is_no_permutation_of_survivors(vector: Any) -> None:
    """Survivors would have to be sent one to one onto the rows of the new batch."""
    sent = sorted(row for row in vector.input.mapping if row != -1)
    batch = vector.input.new_batch
    assert sent != list(range(batch)) or not 0 <= batch <= len(vector.input.mapping)


@for_every(COMPACTIONS)
def test_tensors_move_as_expected(vector: Any) -> None:
    """The manager with tensors, every row tagged with its slot: what is read back is what the
    vector says.
    """
    torch = pytest.importorskip("torch")
    from cachewitness_reference.tensorrt_edge.config import (
        Config,
        KVConfig,
        KVLayerConfig,
        LayerType,
        MambaConfig,
    )
    from cachewitness_reference.tensorrt_edge.tensors import HybridCacheManager

    asked = vector.input
    batch = len(asked.lengths)
    length = max([1, *asked.lengths])
    manager = HybridCacheManager(
        Config(
            (LayerType.ATTENTION, LayerType.MAMBA),
            KVConfig(1, asked.max_batch, length, (KVLayerConfig(1, 64),)),
            MambaConfig(1, asked.max_batch, 1, 64, 16, 64, 4),
            asked.max_batch,
        )
    )
    manager.reset_for_new_sequences(torch.zeros(batch, dtype=torch.int32))
    kv = manager.get_combined_kv_cache(0)
    state = manager.get_recurrent_state(1)
    for page in range(batch):
        kv[page] = page + 1
        state[page] = page + 1
    if batch:
        manager.commit_sequence_length(torch.tensor(asked.lengths, dtype=torch.int32))
    manager.compact_batch(torch.tensor(asked.mapping, dtype=torch.int32), batch, asked.new_batch)
    manager.set_active_batch_size(asked.new_batch)
    expected = vector.expected
    for row, (page, tokens) in enumerate(zip(expected.kv_rows, expected.lengths, strict=True)):
        assert (kv[row, :, :, :tokens] == page + 1).all()
        assert (state[row] == expected.state_rows[row] + 1).all()
    assert manager.get_kv_cache_lengths().tolist() == expected.lengths


@for_every(vectors("tensorrt_edge", "sizing", "valid"))
def test_layers_are_counted_in_order_of_appearance(vector: Any) -> None:
    config = vector.input.config
    values = vector.expected.values
    types = config["layer_types"]
    names = {"A": "kAttention", "M": "kMamba"}
    assert values["routes"] == [
        [names[kind], types[:index].count(kind)] for index, kind in enumerate(types)
    ]
    dims = list(dict.fromkeys(dim for _, dim in config["kv_layers"]))
    grouped = {
        dim: [index for index, (_, own) in enumerate(config["kv_layers"]) if own == dim]
        for dim in dims
    }
    heads = [heads for heads, _ in config["kv_layers"]]
    assert values["head_dim_groups"] == [
        {"head_dim": dim, "layers": layers, "max_kv_heads": max(heads[index] for index in layers)}
        for dim, layers in grouped.items()
    ]


@for_every(vectors("tensorrt_edge", "lookup"))
def test_a_capture_is_reused_at_exactly_its_own_length(vector: Any) -> None:
    """At the end of the system prompt, a token before it if that must be computed again, or not
    at all.
    """
    config = vector.input.config
    tokens = vector.input.tokens
    at = min(config["system_prompt"] - config.get("replay_last_token", False), tokens - 1)
    assert vector.expected.resume == (at if at in vector.input.cached[0] else 0)
