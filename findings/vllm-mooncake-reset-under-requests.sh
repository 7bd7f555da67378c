#!/usr/bin/env bash
# vLLM's MooncakeStoreConnector forgets a running request when the cache is reset under it; the next step raises.
#
# Package     vllm 0.33.0, the Python part (`distributed/kv_transfer/kv_connector/v1/mooncake/store/scheduler.py`,
#             `v1/core/sched/scheduler.py`); no Mooncake, no GPU: the connector's scheduler side alone, with look-ups off
# Surprise    `reset_prefix_cache(reset_running_requests=True)` answers True and preempts who runs; they are meant to come back with the
#             next step ("preemption + resumption in the same step"). That step's output names them as preempted and as scheduled. The
#             connector notes a request when it gets blocks (`update_state_after_alloc`) and forgets all that were preempted when it is told
#             of them (`build_connector_meta`, `_unfinished_requests.pop`), which is afterwards: it asserts that it knows who is scheduled.
#             In an engine the assertion ends its core. Without a connector the request goes on. Preemptions of the scheduler's own do not
#             show it: it admits nobody in the pass that preempts. openlake-vllm 0.8.1 has the same lines, and a `KeyError` in that place.
# Who         Whoever updates weights, or resets the prefix cache, under running requests (reinforcement learning) with this connector.
# Documented  No. Public report: none known.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/vllm.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
vllm_without_libraries "$work" vllm==0.33.0
cd "$work"
export HOME=$work VLLM_LOGGING_LEVEL=ERROR VLLM_NO_USAGE_STATS=1 PYTHONPATH=$work/src
"$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
import logging
import sys
import traceback
from types import SimpleNamespace

import torch
from vllm.config import CacheConfig, DeviceConfig, KVTransferConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

BLOCK, BLOCKS = 16, 20
logging.disable(logging.CRITICAL)


def scheduler_with(connector):
    """Return vLLM's scheduler for a model that is a stand-in, with a connector or None."""
    config = VllmConfig(
        scheduler_config=SchedulerConfig(max_model_len=256, is_encoder_decoder=False, max_num_batched_tokens=128, max_num_seqs=8),
        cache_config=CacheConfig(),
        device_config=DeviceConfig(device="cpu"),
    )
    config.scheduler_config.async_scheduling = False
    config.cache_config.num_gpu_blocks = BLOCKS
    config.cache_config.block_size = BLOCK
    config.model_config = SimpleNamespace(
        model="none",
        max_model_len=256,
        runner_type="generate",
        multimodal_config=None,
        is_encoder_decoder=False,
        is_diffusion=False,
        uses_mrope=False,
        uses_xdrope=False,
        supports_multimodal_inputs=False,
        is_multimodal_model=False,
        skip_tokenizer_init=True,
        return_sampling_mask=False,
        enable_return_routed_experts=False,
        architectures=[],
    )
    if connector:
        extra = {"enable_lookup": False}
        config.kv_transfer_config = KVTransferConfig(kv_connector=connector, kv_role="kv_both", kv_connector_extra_config=extra)
    attention = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
    groups = [KVCacheGroupSpec(layer_names=["layer"], kv_cache_spec=attention)]
    blocks = KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=groups)
    return Scheduler(config, blocks, StructuredOutputManager(config), BLOCK, hash_block_size=BLOCK, log_stats=False)


def serve(connector):
    """Serve a prompt of 10 tokens for two steps, reset the cache while it runs, and go on; return what each step computes."""
    kv_cache_utils.init_none_hash(sha256)
    scheduler = scheduler_with(connector)
    hasher = kv_cache_utils.get_request_block_hasher(BLOCK, sha256)
    scheduler.add_request(Request("a", [*range(10)], SamplingParams(max_tokens=6), None, block_hasher=hasher))
    done = []
    try:
        while scheduler.has_requests():
            if len(done) == 2:
                done.append(f"reset: {scheduler.reset_prefix_cache(reset_running_requests=True)}")
            output = scheduler.schedule()
            ran = [*output.num_scheduled_tokens]
            if ran:
                done.append(str(output.num_scheduled_tokens["a"]))
            sampled = ModelRunnerOutput(req_ids=ran, req_id_to_index={r: i for i, r in enumerate(ran)}, sampled_token_ids=[[7]] * len(ran))
            scheduler.update_from_output(output, sampled)
    except AssertionError as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        done.append(f"AssertionError in {frame.f_code.co_qualname}")
    return done


rows = {connector: serve(connector) for connector in (None, "MooncakeStoreConnector")}
print("vllm 0.33.0")
print("expected: a request that runs while the cache is reset goes on, with a connector as without one\n")
for connector, done in rows.items():
    print(f"{connector or 'no connector':24}computes {', '.join(done)}")
first = ["10", "1", "reset: True"]
raised = "AssertionError in MooncakeStoreScheduler.build_connector_meta"
if rows != {None: [*first, "12", "1", "1", "1"], "MooncakeStoreConnector": [*first, raised]}:
    sys.exit(f"changed: {rows}")
print("\nthe reset is done, and the step behind it raises")
PYTHON
