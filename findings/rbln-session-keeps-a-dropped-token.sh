#!/usr/bin/env bash
# In vllm-rbln a session's dropped token still names the part of a block that it completed: another request is served what lies there now.
#
# Package     vllm-rbln 0.12.0 (`v1/core/rbln_kv_cache_manager.py`, `v1/core/rbln_scheduler.py`) on vllm 0.30.0, for which it is; the Python
#             parts of both. What it calls the platform is not loaded: of that the scheduler reads the options alone
# Surprise    A session (streaming input) drops the last token of its answer when it gets more input, since nothing was computed of it.
#             `RBLNKVCacheManager` hashes parts of blocks as soon as their tokens are known, keeps the hashes by request, and only ever adds
#             to them. Where the dropped token had completed a part, that part and all behind it stay named after the dropped token. Who asks
#             for just those tokens has the part copied, and goes on from keys and values of another token.
# Who         Whoever shares an engine with sessions: wrong answers, without a message. Parts are as long as the largest chunk by default,
#             so one answer of as many ends with one.
# Documented  No. vllm-project/vllm#49377 is the same of whole blocks in vLLM itself, mended in 0.32 by cutting its own hashes; the hashes of
#             parts are the plug-in's, which that does not reach. None known of these.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/vllm.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
vllm_without_libraries "$work" vllm==0.30.0
"$work/venv/bin/python" -m pip install -qq --disable-pip-version-check --no-deps einops==0.8.2
"$work/venv/bin/python" -m pip download -qq --disable-pip-version-check --no-deps --dest "$work/wheel" vllm-rbln==0.12.0
"$work/venv/bin/python" -m zipfile -e "$work"/wheel/*.whl "$work/rbln"
cd "$work"
export HOME=$work VLLM_LOGGING_LEVEL=CRITICAL VLLM_NO_USAGE_STATS=1 VLLM_PLUGINS= PYTHONPATH=$work/src:$work/rbln
"$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
import sys
from types import SimpleNamespace

import torch
from vllm.config import CacheConfig, DeviceConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager
from vllm_rbln.config import RBLNConfig
from vllm_rbln.v1.core.rbln_scheduler import RBLNScheduler

BLOCK, CHUNK, LENGTH = 16, 8, 256
STAND_IN = dict(
    max_model_len=LENGTH, runner_type="generate", multimodal_config=None, is_encoder_decoder=False, is_diffusion=False, uses_mrope=False,
    uses_xdrope=False, supports_multimodal_inputs=False, is_multimodal_model=False, skip_tokenizer_init=True, return_sampling_mask=False,
    enable_return_routed_experts=False, architectures=[],
)


def scheduler_of(kind):
    limits = SchedulerConfig(
        max_model_len=LENGTH, is_encoder_decoder=False, max_num_batched_tokens=CHUNK, max_num_seqs=4, enable_chunked_prefill=True, async_scheduling=False
    )
    config = VllmConfig(scheduler_config=limits, cache_config=CacheConfig(), device_config=DeviceConfig(device="cpu"))
    config.scheduler_config.async_scheduling = False
    config.cache_config.block_size, config.cache_config.num_gpu_blocks, config.cache_config.enable_prefix_caching = BLOCK, 32, True
    config.model_config = SimpleNamespace(**STAND_IN)
    config.additional_config = RBLNConfig()
    attention = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
    groups = [KVCacheGroupSpec(layer_names=["attention"], kv_cache_spec=attention)]
    return kind(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(num_blocks=32, kv_cache_tensors=[], kv_cache_groups=groups),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
        hash_block_size=BLOCK,
        log_stats=True,
    )


def asked(name, tokens, *, session):
    """Return a request for one token more."""
    return Request(name, [*tokens], SamplingParams(max_tokens=1), None, block_hasher=get_request_block_hasher(BLOCK, sha256), resumable=session)


class Worker:
    """Which tokens the blocks hold: a step writes its requests' tokens where their tables say, behind the copies that it is told."""

    def __init__(self):
        self.held = {}

    def run(self, scheduler, output):
        for op in output.kv_cache_copy_ops:
            self.held.setdefault(op.dst_block_id, {}).update({place: self.held[op.src_block_id][place] for place in range(op.num_tokens)})
        starts = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        starts |= dict(zip(output.scheduled_cached_reqs.req_ids, output.scheduled_cached_reqs.num_computed_tokens))
        sampled = {}
        for name, count in output.num_scheduled_tokens.items():
            tokens, (blocks,) = scheduler.requests[name].all_token_ids, scheduler.kv_cache_manager.get_block_ids(name)
            for at in range(starts[name], starts[name] + count):
                self.held.setdefault(blocks[at // BLOCK], {})[at % BLOCK] = tokens[at]
            sampled[name] = [ANSWER] if starts[name] + count == len(tokens) else []
        return ModelRunnerOutput(req_ids=[*sampled], req_id_to_index={name: place for place, name in enumerate(sampled)}, sampled_token_ids=[*sampled.values()])

    def step(self, scheduler):
        output = scheduler.schedule()
        scheduler.update_from_output(output, self.run(scheduler, output))
        return output


ANSWER = 777
BEGINNING, INPUT = [*range(7)], [*range(100, 109)]
init_none_hash(sha256)
scheduler, worker = scheduler_of(RBLNScheduler), Worker()
scheduler.add_request(asked("session", BEGINNING, session=True))
worker.step(scheduler)  # answers with a token that makes 8 of 7, which nobody computes: a session drops it when it goes on
scheduler.add_request(asked("session", INPUT, session=True))
for _ in range(3):
    worker.step(scheduler)

asks = [*BEGINNING, ANSWER, *range(200, 205)]
scheduler.add_request(asked("other", asks, session=False))
output = scheduler.schedule()
worker.run(scheduler, output)
hit = output.scheduled_new_reqs[0].num_computed_tokens
block = output.scheduled_new_reqs[0].block_ids[0][0]
reads = [worker.held[block][place] for place in range(len(asks))]
print("vllm 0.30.0 vllm-rbln 0.12.0")
print("expected: what a request reads from the cache are keys and values of its own tokens\n")
print(f"{'its tokens':12}{asks}")
print(f"{'it reads':12}{reads}, the first {hit} of them copied from the session's block")
if (hit, reads[7]) != (CHUNK, INPUT[0]):
    sys.exit(f"changed: {hit} tokens are hit, and the one at 7 is {reads[7]}")
print(f"\nat 7 lies the first token of the session's next input, {INPUT[0]}, under the name of the answer that it dropped, {ANSWER}")
PYTHON
