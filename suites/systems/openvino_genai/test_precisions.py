"""What a CPU of the real OpenVINO packs of keys and values, beside `plan openvino`."""

from __future__ import annotations

import json
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from cachewitness.systems.openvino_genai.reference.plan import Request, plan

BITS = {"u8": 8, "u4": 4, "bf16": 16, "f16": 16, "f32": 32}
KINDS = "0i 0i 0i 0f 0f i i 4f i 0i 0i 0i 0i 0u 0i"
"""The inputs of paged attention behind the first 13, which plain attention leaves empty: how many
dimensions an empty list has (0 for one), and the type."""


@pytest.mark.skipif(
    find_spec("openvino") is None, reason="needs openvino; ci/stage_openvino.sh has it"
)
@pytest.mark.parametrize("precision", ["", "u8", "u4", "bf16"])
@pytest.mark.parametrize(("heads", "size"), [(2, 64), (4, 128), (1, 256), (2, 80)])
def test_a_cpu_packs_the_same_bytes(precision: str, heads: int, size: int, tmp_path: Path) -> None:
    """The plugin says the shape of its blocks when a layer is compiled; without a precision it
    takes u8.
    """
    path = tmp_path / "config.json"
    config = {"model_type": "qwen3", "dtype": "bfloat16", "num_hidden_layers": 1}
    config |= {"num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": size}
    path.write_text(json.dumps(config | {"max_position_embeddings": 4096}))
    options = {"kv_precision": precision or "u8", "num_kv_blocks": 8}
    answer = plan(Request(options, str(path)))
    assert answer.value("kv_block_bytes") == compiled(precision, heads, size)


def compiled(precision: str, heads: int, size: int) -> int:
    """Return the bytes of a block of keys and values of one layer, as the CPU plugin has them."""
    import numpy as np
    import openvino as ov
    from openvino import opset13 as op

    def given(name: str, kind: Any, shape: list[int]) -> Any:
        parameter = op.parameter(ov.PartialShape(shape), kind, name=name)
        parameter.output(0).set_names({name})
        return parameter

    types = {"i": np.int32, "f": np.float32, "u": np.uint8}
    inputs = [given(name, ov.Type.f32, [-1, heads * size]) for name in ("q", "k", "v")]
    inputs += [given(name, ov.Type.dynamic, [-1] * 4) for name in ("key_cache.0", "value_cache.0")]
    lists = ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins")
    inputs += [given(name, ov.Type.i32, [-1]) for name in lists]
    inputs += [op.constant(np.float32(1)), op.constant(np.int32(0))]
    inputs += [op.constant(np.zeros([0], np.float32)), given("max_context_len", ov.Type.i32, [])]
    for kind in KINDS.split():
        dimensions = 4 if kind.startswith("4") else 1
        empty = np.zeros([0] * dimensions, types[kind[-1]])
        inputs.append(op.constant(empty if len(kind) > 1 else types[kind](0)))
    attention = ov.op._PagedAttentionExtension([each.output(0) for each in inputs])
    for letter in "kv":
        attention.get_rt_info()[f"num_{letter}_heads"] = heads
        attention.get_rt_info()[f"{letter}_head_size"] = size
    parameters = [each for each in inputs if each.get_type_name() == "Parameter"]
    model = ov.Model([op.result(attention.output(0))], parameters, "layer")
    asked = {"KV_CACHE_PRECISION": precision} if precision else {}
    made = ov.Core().compile_model(model, "CPU", asked)
    caches = [each for each in made.inputs if "cache" in each.get_any_name()]
    return sum(
        math.prod(each.get_partial_shape()[place].get_length() for place in (1, 2, 3))
        * BITS[each.get_element_type().get_type_name()]
        // 8
        for each in caches
    )
