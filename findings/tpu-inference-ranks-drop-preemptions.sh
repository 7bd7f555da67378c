#!/usr/bin/env bash
# tpu-inference's scheduler for data-parallel ranks tells its runner of no preemption, and operators of no look-up of who comes back.
#
# Package     tpu-inference 0.32.0 (`core/sched/dp_scheduler.py`) on vllm 0.32.0, the Python parts of both; no JAX, no TPU
# Surprise    DPScheduler combines the outputs of one vLLM scheduler for each rank, field by field, and `preempted_req_ids` is none of
#             the fields. Of the statistics of look-ups it adds up those of new requests, and not those of requests that were preempted
#             (`preempted_requests`, `preempted_queries`, `preempted_hits`). With one rank both are told, by vLLM itself. Read in its
#             source alone: its runner gives up the place of a recurrent state when it is told of a preemption
#             (`runner/persistent_batch_manager.py`); so with ranks a preempted request keeps it until it comes back. The same goes for
#             `free_encoder_mm_hashes`, by which the runner drops the encoder outputs of images.
# Who         Whoever serves a hybrid model over data-parallel ranks with many requests, or watches how preemption costs hits.
# Documented  No.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/vllm.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
vllm_without_libraries "$work" vllm==0.32.0
"$work/venv/bin/python" -m pip download -qq --disable-pip-version-check --no-deps --dest "$work/wheel" tpu-inference==0.32.0
"$work/venv/bin/python" -m zipfile -e "$work"/wheel/*.whl "$work/tpu"
cd "$work"
export HOME=$work VLLM_LOGGING_LEVEL=ERROR VLLM_NO_USAGE_STATS=1 PYTHONPATH=$work/src
"$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
import importlib
import logging
import sys
import types
from pathlib import Path
from types import SimpleNamespace

import torch
from vllm.config import CacheConfig, DeviceConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

BLOCK, BLOCKS, RANKS = 16, 7, 2
logging.disable(logging.CRITICAL)


def configuration():
    """Return the configuration of an engine whose model is a stand-in, as vLLM's schedulers read it."""
    config = VllmConfig(
        scheduler_config=SchedulerConfig(max_model_len=256, is_encoder_decoder=False, max_num_batched_tokens=128, max_num_seqs=8),
        cache_config=CacheConfig(),
        device_config=DeviceConfig(device="cpu"),
    )
    config.scheduler_config.async_scheduling = False
    config.cache_config.num_gpu_blocks = BLOCKS
    config.cache_config.block_size = BLOCK
    config.model_config = SimpleNamespace(
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
    return config


def blocks(number):
    attention = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
    return KVCacheConfig(num_blocks=number, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(layer_names=["layer"], kv_cache_spec=attention)])


def run(scheduler, names, parts):
    """Serve prompts of 40 tokens until nobody is left; return who is told to have lost its blocks, and what is told of look-ups.

    `parts(output)` are the outputs of the schedulers behind this one.
    """
    kv_cache_utils.init_none_hash(sha256)
    hasher = kv_cache_utils.get_request_block_hasher(BLOCK, sha256)
    for name in names:
        prompt = [*range(100 * ord(name), 100 * ord(name) + 40)]
        scheduler.add_request(Request(name, prompt, SamplingParams(max_tokens=20), None, block_hasher=hasher))
    told, lost, looked_up, looked_up_again = set(), set(), 0, 0
    while scheduler.has_requests():
        output = scheduler.schedule()
        told.update(output.preempted_req_ids or ())
        lost.update(*(part.preempted_req_ids or () for part in parts(output)))
        ran = [*output.num_scheduled_tokens]
        sampled = ModelRunnerOutput(req_ids=ran, req_id_to_index={r: i for i, r in enumerate(ran)}, sampled_token_ids=[[7]] * len(ran))
        for answer in scheduler.update_from_output(output, sampled).values():
            if answer.scheduler_stats is not None:
                looked_up += answer.scheduler_stats.prefix_cache_stats.requests
                looked_up_again += answer.scheduler_stats.prefix_cache_stats.preempted_requests
    return sorted(lost), sorted(told), looked_up, looked_up_again


package = types.ModuleType("tpu_inference")  # without its __init__, which brings up JAX
package.__path__ = [str(Path("tpu") / "tpu_inference")]
utils = types.ModuleType("tpu_inference.utils")  # of it the decorator alone that measures time
utils.time_function = lambda function: function
sys.modules.update({"tpu_inference": package, "tpu_inference.utils": utils})
dp = importlib.import_module("tpu_inference.core.sched.dp_scheduler")

common = {"block_size": BLOCK, "hash_block_size": BLOCK, "log_stats": True}
config = configuration()
alone = Scheduler(vllm_config=config, kv_cache_config=blocks(BLOCKS), structured_output_manager=StructuredOutputManager(config), **common)
rows = {"vLLM's scheduler": run(alone, "ab", lambda output: [output])}

config = configuration()
config.sharding_config = SimpleNamespace(total_dp_size=RANKS)
dp.update_vllm_config_for_dp_scheduler(config)
front = dp.DPScheduler(config, blocks(RANKS * BLOCKS), StructuredOutputManager(config), **common)
rows["DPScheduler, two ranks"] = run(front, "abcd", lambda output: front.cached_schedulers_output[-1])
front.shutdown()

print("vllm 0.32.0, tpu-inference 0.32.0")
print("expected: the runner is told who loses its blocks, and operators of all look-ups, as they are of one scheduler\n")
print(f"{'':24}{'lose their blocks':20}{'the runner is told':20}{'look-ups told':15}of who came back")
for name, (lost, told, looked_up, again) in rows.items():
    print(f"{name:24}{' '.join(lost):20}{' '.join(told) or 'nobody':20}{looked_up:<15}{again}")
if rows != {"vLLM's scheduler": (["b"], ["b"], 2, 1), "DPScheduler, two ranks": (["c", "d"], [], 4, 0)}:
    sys.exit(f"changed: {rows}")
print("\nwho loses its blocks is in the outputs of the ranks, and not in the one that the runner gets")
PYTHON
