#!/usr/bin/env bash
# vLLM's default hash of a block depends on which Python objects say what is in it, not only on what they say.
#
# Package     vllm 0.33.0 (its Python part; `prefix_caching_hash_algo`, by default "sha256")
# Surprise    The default hashes `pickle.dumps` of a block's parent, tokens and extra keys. Pickle writes an object that it has met before
#             as a reference, so two images with the same identifier in one block hash otherwise if both identifiers are one `str`
#             object than if they are two equal ones. Token ids that are numpy integers (`list(array)`) pickle otherwise than ints.
#             Equal prompts, no hit. `sha256_cbor` has no such memory of objects, and refuses numpy integers.
# Who         Users of in-process engines whose requests are not decoded from messages, and whoever compares or shares keys between an
#             in-process engine and a server (a tier of files, an index): the same prompt, keys that never meet.
# Documented  That "sha256" uses Pickle, and that "sha256_cbor" is reproducible and for other languages; not that equal inputs of one
#             process can differ.
# Upstream    No report known.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/vllm.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
vllm_without_libraries "$work" vllm==0.33.0
cd "$work"
HOME=$work VLLM_LOGGING_LEVEL=ERROR VLLM_NO_USAGE_STATS=1 PYTHONPATH=$work/src "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
from importlib.metadata import version

import numpy
import torch
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

BLOCK = 16
TOKENS = list(range(1000, 1000 + 4 * BLOCK + 1))


def hit(algorithm, first, second):
    """How many tokens of `second` are served after `first` was computed; each is (token ids, identifiers of two small images)."""
    hash_function = get_hash_fn_by_name(algorithm)
    init_none_hash(hash_function)
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
    config = KVCacheConfig(num_blocks=32, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
    manager = KVCacheManager(config, max_model_len=1024, scheduler_block_size=BLOCK, hash_block_size=BLOCK, enable_caching=True)

    def request(name, tokens, images):
        features = [MultiModalFeatureSpec(data=None, modality="image", identifier=identifier, mm_position=PlaceholderRange(offset=offset, length=5))
                    for identifier, offset in zip(images, (2, 8))]
        return Request(request_id=name, prompt_token_ids=tokens, sampling_params=SamplingParams(max_tokens=1), pooling_params=None,
                       mm_features=features, block_hasher=get_request_block_hasher(BLOCK, hash_function))

    one = request("one", *first)
    assert manager.get_computed_blocks(one)[1] == 0
    assert manager.allocate_slots(one, len(TOKENS)) is not None
    one.num_computed_tokens = len(TOKENS)
    manager.free(one)
    return manager.get_computed_blocks(request("two", *second))[1]


name = "logo-7f3a"
equal = "-".join(["logo", "7f3a"])
assert name == equal and name is not equal
rows = [
    ("the same image twice, one str / one str", (TOKENS, [name, name]), (TOKENS, [equal, equal])),
    ("the same image twice, one str / two equal str", (TOKENS, [name, name]), (TOKENS, [name, equal])),
    ("tokens of int / tokens of int", (TOKENS, []), (list(TOKENS), [])),
    ("tokens of int / list(numpy array)", (TOKENS, []), (list(numpy.array(TOKENS)), [])),
]
print("vllm", version("vllm"))
print(f"expected: the second of two equal prompts of {len(TOKENS)} tokens hits {4 * BLOCK}\n")
print(f"{'first / second prompt':48}{'sha256':>8}  {'sha256_cbor'}")
seen = {}
for label, first, second in rows:
    seen[label] = []
    for algorithm in ("sha256", "sha256_cbor"):
        try:
            seen[label].append(hit(algorithm, first, second))
        except Exception as error:
            seen[label].append(type(error).__name__ + ": " + str(error).replace("cannot encode type ", ""))
    print(f"{label:48}{seen[label][0]:>8}  {seen[label][1]}")
found = [result[0] for result in seen.values()], seen[rows[1][0]][1], str(seen[rows[3][0]][1])[:15]
if found != ([64, 0, 64, 0], 64, "CBOREncodeError"):
    raise SystemExit(f"changed: {seen}")
print("\nseen: with the default, equal prompts miss each other when their identifiers are other objects or their ints other types")
PYTHON
