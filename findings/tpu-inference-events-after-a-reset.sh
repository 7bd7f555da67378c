#!/usr/bin/env bash
# tpu-inference's cache manager tells routers that a block was stored, and then, with the same step, that everything was cleared.
#
# Package     tpu-inference 0.32.0 (`core/hybrid_coordinator.py`) on vllm 0.33.0, the Python parts of both; no JAX, no TPU
# Surprise    For models with recurrent states it keeps two block pools, and `take_events` puts the second pool's events behind the first
#             one's. A reset of the prefix cache puts an `AllBlocksCleared` into both queues, and vLLM publishes what has gathered when
#             the next step is over: cleared, stored, cleared. vLLM alone publishes cleared, stored. Whoever applies events in their
#             order forgets blocks of attention that are there and are hit; they come back with the next time that they are stored,
#             which for a block that stays is never.
# Who         Routers and indexes behind an engine whose prefix cache is reset (new weights, a benchmark's `reset_prefix_cache`).
# Documented  No.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/vllm.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
vllm_without_libraries "$work" vllm==0.33.0
"$work/venv/bin/python" -m pip download -qq --disable-pip-version-check --no-deps --dest "$work/wheel" tpu-inference==0.32.0
"$work/venv/bin/python" -m zipfile -e "$work"/wheel/*.whl "$work/tpu"
cd "$work"
export HOME=$work VLLM_LOGGING_LEVEL=ERROR VLLM_NO_USAGE_STATS=1 PYTHONPATH=$work/src
"$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
import importlib
import sys
import types
from importlib.metadata import version
from pathlib import Path

import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_manager, kv_cache_utils
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MambaSpec
from vllm.v1.request import Request

BLOCK = 16


def config():
    attention = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
    states = MambaSpec(block_size=BLOCK, shapes=((4, 4),), dtypes=(torch.float32,), mamba_cache_mode="align")
    groups = [KVCacheGroupSpec(layer_names=["attention"], kv_cache_spec=attention), KVCacheGroupSpec(layer_names=["states"], kv_cache_spec=states)]
    return KVCacheConfig(num_blocks=32, kv_cache_tensors=[], kv_cache_groups=groups)


def events_of_a_reset_and_a_prompt():
    """Reset the cache, compute a prompt of two blocks, and take the events, as vLLM's scheduler does when the step is over."""
    manager = kv_cache_manager.KVCacheManager(
        kv_cache_config=config(),
        max_model_len=256,
        scheduler_block_size=BLOCK,
        hash_block_size=BLOCK,
        max_in_flight_tokens=256,
        enable_caching=True,
        enable_kv_cache_events=True,
    )
    kv_cache_utils.init_none_hash(sha256)
    request = Request("r", [*range(2 * BLOCK + 1)], SamplingParams(max_tokens=4), None, block_hasher=kv_cache_utils.get_request_block_hasher(BLOCK, sha256))
    assert manager.reset_prefix_cache()
    manager.new_step_starts()
    found, hit, *_ = manager.get_computed_blocks(request)
    assert manager.allocate_slots(request, 2 * BLOCK + 1, num_new_computed_tokens=hit, new_computed_blocks=found) is not None
    return manager.take_events()


def known(events):
    """Return what blocks of attention a router knows that applies the events in their order."""
    blocks = set()
    for event in events:
        if type(event).__name__ == "AllBlocksCleared":
            blocks.clear()
        elif event.group_idx == 0:
            blocks.update(event.block_hashes)
    return len(blocks)


alone = events_of_a_reset_and_a_prompt()
package = types.ModuleType("tpu_inference")  # without its __init__, which brings up JAX
package.__path__ = [str(Path("tpu") / "tpu_inference")]
sys.modules["tpu_inference"] = package
hybrid = importlib.import_module("tpu_inference.core.hybrid_coordinator")
hybrid.set_mamba_num_blocks(16)
hybrid.install_hybrid_coordinator_hooks()
with_two_pools = events_of_a_reset_and_a_prompt()

rows = [("vllm alone", alone), ("with tpu-inference", with_two_pools)]
print("vllm", version("vllm") if list(Path("src").glob("vllm-*.dist-info")) else "0.33.0", "tpu-inference 0.32.0")
print("expected: a router that applies the events knows the 2 blocks of attention that were stored after the reset\n")
print(f"{'':20}{'knows':8}events in their order")
for name, events in rows:
    print(f"{name:20}{known(events):<8}{' '.join(type(event).__name__ for event in events)}")
if (known(alone), known(with_two_pools)) != (2, 0):
    sys.exit("this has changed: " + repr([(name, known(events)) for name, events in rows]))
print("\nthe second AllBlocksCleared comes behind the blocks that were stored after the reset")
PYTHON
