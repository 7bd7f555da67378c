"""`plan sglang`: by hand, and beside SGLang's own split of memory where it is installed."""

from __future__ import annotations

import ast
import importlib.util
import random
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.cli import EXIT_USAGE, invoke
from cachewitness.systems.sglang.plan import STRATEGIES, Request, plan

GIB = 1 << 30
NEXT = "qwen3-next-80b-a3b"
SLOT = 36 * (3 * 8192 * 2 + 32 * 128 * 128 * 4)
"""36 layers of a convolution in bfloat16 and a state in float32, which Qwen3-Next names no type
for.
"""
TOKEN = 12 * 2 * 2 * 256 * 2


def test_states_get_their_share_and_attention_the_rest() -> None:
    answer = plan(Request(NEXT, 40 * GIB, request_tokens=8192))
    assert answer.value("state_slot_bytes") == SLOT
    budget = 40 * GIB * 9 // 19
    slots = (budget - SLOT) // SLOT
    assert answer.value("max_mamba_cache_size") == slots == 262
    tokens = (40 * GIB - (slots + 1) * SLOT) // TOKEN
    assert answer.value("max_total_tokens") == tokens
    assert answer.value("max_running_requests") == slots // 5
    assert answer.answer == "8,192 tokens: 52 requests run at once"


def test_a_model_without_states_has_tokens_alone() -> None:
    """Llama 3.1 8B: 128 KiB a token, half of it on two ranks; a quarter with keys in 8 bits."""
    for ranks, dtype, size in ((1, "auto", 131072), (2, "auto", 65536), (2, "fp8_e4m3", 32768)):
        asked = Request(
            "llama-3.1-8b", GIB, kv_cache_dtype=dtype, tensor_parallel_size=ranks, page_size=64
        )
        answer = plan(asked)
        assert answer.value("token_bytes") == size
        assert answer.value("max_total_tokens") == GIB // size // 64 * 64


def test_memory_may_be_told_by_the_device(capsys: pytest.CaptureFixture[str]) -> None:
    base = ["plan", "sglang", "--layout", NEXT]
    assert invoke([*base, "--device-memory", "80GiB", "--used-memory", "32GiB", "--json"]) == 0
    assert f'"memory_bytes": {40 * GIB}' in capsys.readouterr().out
    assert invoke(base) == EXIT_USAGE
    assert "give what is left for the pools" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (Request("gemma-3-27b", GIB), "windows, indexers and full attention is not worked out"),
        (Request(NEXT, SLOT), "it holds no state; SGLang does not start"),
        (Request(NEXT, 40 * GIB, tensor_parallel_size=3), "cannot be divided by 3"),
    ],
)
def test_what_is_not_worked_out_is_refused(request_: Request, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        plan(request_)


FOUND = importlib.util.find_spec("sglang")


def own_functions() -> dict[str, Any]:
    """Return SGLang's own methods that split the memory, without the modules that they come with,
    which want a device.
    """
    assert FOUND is not None and FOUND.submodule_search_locations
    folder = Path(FOUND.submodule_search_locations[0]) / "srt" / "mem_cache"
    names = {"_handle_max_mamba_cache", "_calculate_mamba_ratio", "resolve_max_num_reqs"}
    names |= {"get_mamba_tracking_slots"}
    parts: list[ast.stmt] = []
    for file in ("kv_cache_configurator.py", "allocation_sizing.py"):
        tree = ast.parse((folder / file).read_text(encoding="utf-8"))
        found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        parts += [node for node in found if node.name in names]
        constants = [node for node in tree.body if isinstance(node, ast.Assign)]
        parts += [node for node in constants if "MAMBA_CACHE" in ast.unparse(node)]
    space: dict[str, Any] = {"logger": SimpleNamespace(warning=lambda *_: None, info=print)}
    exec(compile(ast.Module(parts, []), "sglang", "exec"), space)
    return space


@pytest.mark.skipif(FOUND is None, reason="needs SGLang; ci/stage_sglang.sh has it")
def test_sglang_s_own_code_splits_alike() -> None:
    space = own_functions()
    chance = random.Random(0)
    for _ in range(300):
        memory = chance.randrange(4 * GIB, 200 * GIB)
        strategy = chance.choice([*STRATEGIES])
        ratio = chance.choice([0.1, 0.5, 0.9, 2.0])
        schedule = SimpleNamespace(
            mamba_full_memory_ratio=ratio,
            max_mamba_cache_size=None,
            max_running_requests=None,
            disable_overlap_schedule=False,
        )

        def override(_: str, schedule: Any = schedule, **values: Any) -> Any:
            vars(schedule).update(values)
            return nullcontext()

        space |= {
            "get_schedule": lambda schedule=schedule: schedule,
            "get_memory": lambda: SimpleNamespace(disable_radix_cache=False),
            "get_context": lambda override=override: SimpleNamespace(override=override),
            "get_spec": lambda: SimpleNamespace(speculative_num_draft_tokens=None),
            "get_exec": lambda strategy=strategy: SimpleNamespace(
                mamba=SimpleNamespace(
                    enable_linear_replayssm_spec=False,
                    enable_mamba_extra_buffer=strategy != "no_buffer",
                    enable_mamba_extra_buffer_lazy=strategy == "extra_buffer_lazy",
                )
            ),
            "envs": SimpleNamespace(
                SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK=SimpleNamespace(get=lambda: False)
            ),
            "_pd_prefill_skips_mamba_spec_state": lambda: False,
        }
        params = SimpleNamespace(mamba_cache_per_req=SLOT, layers=[*range(36)])
        configurator = SimpleNamespace(
            mambaish_config=SimpleNamespace(mamba2_cache_params=params),
            pp_size=1,
            fused_entry_bytes=lambda _: None,
            spec_algorithm=SimpleNamespace(is_none=lambda: True),
            hybrid_gdn_config=None,
            hybrid_kda_config=None,
            extra_mamba_cache_bytes_per_req=0,
            attn_dp_size=1,
            model_config=SimpleNamespace(context_len=262144),
            _calculate_mamba_ratio=lambda own=space: own["_calculate_mamba_ratio"](None),
        )
        left = int(space["_handle_max_mamba_cache"](configurator, memory / GIB) * GIB)
        answer = plan(
            Request(
                NEXT,
                memory,
                mamba_full_memory_ratio=ratio,
                mamba_radix_cache_strategy=strategy,
            )
        )
        tokens = left // TOKEN
        assert answer.value("max_mamba_cache_size") == schedule.max_mamba_cache_size
        assert answer.value("max_total_tokens") == tokens
        running = space["resolve_max_num_reqs"](configurator, tokens)
        assert answer.value("max_running_requests") == running
