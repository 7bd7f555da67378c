"""What the real LMCache stores of a state, beside `stored_state_bytes`."""

from __future__ import annotations

import random
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from cachewitness_reference.lmcache.sizing import SizingError, stored_state_bytes


@pytest.mark.lmcache
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(
    any(find_spec(name) is None for name in ("lmcache", "torch", "vllm")),
    reason="needs lmcache, torch and vllm; ci/stage_lmcache.sh has them",
)
def test_a_state_is_cut_into_the_same_rows() -> None:
    """Of drawn states and pages: as many bytes, or no way to cut them in both."""
    import torch
    from lmcache.integration.vllm import kv_cache_group_edits as edits

    chance = random.Random(0)
    for _ in range(300):
        block = 16 * chance.randrange(1, 90)
        page = block * chance.choice([256, 512, 1024, 2048, 2056])
        row = 2 * (page - chance.choice([0, 2, 34, 510, 4096])) // 2
        if row < 2:
            continue
        strides = (page // 2, row // 2, row // 2, 1)
        pages = torch.empty(page, dtype=torch.bfloat16)
        state = pages.as_strided((2, 1, 1, row // 2), strides)
        spec = SimpleNamespace(block_size=block, page_size_bytes=page)
        try:
            view = edits._MambaUnifiedViewEdit().apply(spec, state, {"kv_layout": "NHD"})
        except ValueError:
            with pytest.raises(SizingError):
                stored_state_bytes(row, block, page)
            continue
        assert view[0].numel() * 2 == stored_state_bytes(row, block, page)
