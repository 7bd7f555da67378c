"""A batch of one request, as SGLang's functions that allocate for a batch read it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from cachewitness.engines.pinned_package import PinnedPackage
from cachewitness.systems.sglang.build import Built


def batch_of(source: PinnedPackage, built: Built, req: Any, length: int, *, decoding: bool) -> Any:
    """Return a batch of one request, as the functions that allocate read it."""
    import torch

    lengths = torch.tensor([length], dtype=torch.int64)
    mode = SimpleNamespace(is_decode=lambda: decoding, is_extend=lambda: not decoding)
    batch = SimpleNamespace(
        reqs=[req],
        device="cpu",
        tree_cache=built.tree,
        req_to_token_pool=built.requests,
        token_to_kv_pool_allocator=built.allocator,
        forward_mode=mode,
        enable_overlap=False,
        forward_iter=0,
        hisparse_coordinator=None,
        model_config=SimpleNamespace(is_encoder_decoder=False),
        is_dllm=lambda: False,
        seq_lens=lengths,
        seq_lens_cpu=lengths,
        prefix_lens=[req.prefix_len],
        extend_lens=[length - req.prefix_len],
        extend_num_tokens=length - req.prefix_len,
        req_pool_indices=torch.tensor([req.kv.req_pool_idx or 0], dtype=torch.int64),
        req_pool_indices_cpu=torch.tensor([req.kv.req_pool_idx or 0], dtype=torch.int64),
    )
    kind = source.part("managers.schedule_batch", "ScheduleBatch")
    for name in ("maybe_evict_swa", "_swa_eviction_trigger", "_evict_swa"):
        setattr(batch, name, getattr(kind, name).__get__(batch))
    return batch
