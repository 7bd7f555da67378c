"""Drawn configurations and flags of `vllm serve`, and what vLLM's own code makes of them.

Nothing here calls the code under test. The shapes and types of states come from the classes of
vLLM's models, heads and their sizes from its reader of configurations, pages from its
specifications and backends, the block from its platform, and blocks, checks and lengths from its
planner.
"""

from __future__ import annotations

import importlib
import os
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

from cachewitness.core.trace_format import TraceHeader
from cachewitness.systems.vllm.build import settle
from cachewitness.systems.vllm.declared import read_options
from cachewitness.systems.vllm.engine_config import engine_config
from cachewitness.systems.vllm.source import Source
from cachewitness.workloads import layouts

MODELS = "vllm.model_executor.models"
LAYOUT = "LBNHC"
"""The layout that FlashAttention, FlashInfer and Triton prefer: a layer's pages lie together."""
LATENT_BLOCK = 64
FLASHINFER = ("flashinfer", "flashinfer.decode", "flashinfer.prefill", "flashinfer.utils")
FULL, WINDOW, STATE = "full_attention", "sliding_attention", "linear_attention"


@dataclass(frozen=True)
class Drawn:
    """A configuration with the flags that a server of it is started with.

    `kinds` are what the layers are, by the test's own reading, and `places` the numbers of the
    model's layers that they are in; `made` names the class of vLLM's model for one with states.
    `drafter` is the configuration of a drafter with layers of its own.
    """

    config: dict[str, Any]
    kinds: tuple[str, ...]
    made: str = ""
    mamba2: bool = False
    ranks: int = 1
    context_ranks: int = 1
    kv_cache_dtype: str = "auto"
    mamba_cache_dtype: str = "auto"
    mamba_ssm_cache_dtype: str = "auto"
    caching: bool = True
    block_size: int | None = None
    drafts: int = 0
    draft_layers: int = 0
    longest: int = 8192
    batched: int = 2048
    memory: int = 1 << 32
    exports: int = 1
    places: tuple[int, ...] = ()
    stages: int = 1
    prefill_ranks: int = 1
    drafter: dict[str, Any] | None = None


@dataclass(frozen=True)
class Sized:
    """What vLLM makes of it: an error instead of a pool if it does not start."""

    block: int
    groups: tuple[int, ...]
    blocks: int = 0
    size_tokens: int = 0
    concurrency: float = 0.0
    refused: str = ""


def draw(seed: int) -> Drawn:
    """Return one of many configurations and flags, the same for the same seed."""
    chance = random.Random(seed)
    of = chance.choice(FAMILIES)(chance)
    hybrid = STATE in of.kinds
    context = chance.choice([1, 1, 1, 2]) if WINDOW not in of.kinds else 1
    ranks = chance.choice([1, 1, 2, 4])
    if context > 1 and not _latent(of) and chance.random() < 0.8:
        ranks = 2 * of.config.get("num_key_value_heads", 4)
    prefill = chance.choice([1, 1, 1, 2])
    drafter = _drafter(chance, of) if not of.draft_layers and chance.random() < 0.3 else None
    return replace(
        of,
        ranks=ranks,
        kv_cache_dtype=_kv_dtype(chance, of),
        mamba_cache_dtype=chance.choice(["auto"] * 3 + ["float32", "bfloat16"]),
        mamba_ssm_cache_dtype=chance.choice(["auto"] * 3 + ["float32", "bfloat16"]),
        caching=chance.random() < 0.7,
        block_size=chance.choice(
            [None, None, 16, 32, 64, 128] if of.made or not _latent(of) else [None]
        ),
        drafts=chance.choice([0, 0, 1, 2, 3]) if hybrid or of.draft_layers or drafter else 0,
        longest=chance.choice([1024, 4096, 8192, 32768, 100_000, 131_072]),
        batched=chance.choice([512, 2048, 8192]),
        memory=chance.randrange(1 << 26, 1 << 35),
        exports=64 if "linear_num_value_heads" in of.config and chance.random() < 0.3 else 1,
        context_ranks=context,
        prefill_ranks=prefill,
        stages=chance.choice([1, 1, 1, 2, 3, 4]),
        drafter=drafter,
    )


def _drafter(chance: random.Random, of: Drawn) -> dict[str, Any]:
    """Return a drafter of a few layers, with heads like the target's or with others."""
    table = _base(chance, chance.choice(["llama", "qwen3"]), chance.choice([1, 1, 2, 12]))
    if chance.random() < 0.5:
        for field in ("num_key_value_heads", "head_dim"):
            if field in of.config:
                table[field] = of.config[field]
    return table


def _latent(of: Drawn) -> bool:
    return "kv_lora_rank" in of.config


def _kv_dtype(chance: random.Random, of: Drawn) -> str:
    if _latent(of):
        return chance.choice(["auto", "fp8", "auto"])
    names = ["auto", "auto", "fp8", "fp8_e4m3", "fp8_e5m2", "bfloat16"]
    return chance.choice([*names, "fp8_per_token_head", "int8_per_token_head", "nvfp4"])


def _base(chance: random.Random, kind: str, layers: int) -> dict[str, Any]:
    heads = chance.choice([4, 8])
    return {
        "model_type": kind,
        "dtype": "bfloat16",
        "num_hidden_layers": layers,
        "hidden_size": chance.choice([1024, 2048, 4096]),
        "num_attention_heads": heads * chance.choice([1, 2, 4]),
        "num_key_value_heads": heads,
        "head_dim": chance.choice([64, 128, 256]),
        "max_position_embeddings": 131_072,
    }


def _mixed(chance: random.Random, layers: int, other: str) -> list[str]:
    """Return kinds with at least one of full attention and one other."""
    apart = chance.choice([2, 3, 4, 6])
    kinds = [FULL if layer % apart == apart - 1 else other for layer in range(layers)]
    kinds[0] = other
    kinds[-1] = FULL
    return kinds


def _dense(chance: random.Random) -> Drawn:
    layers = chance.randrange(2, 49)
    kind = chance.choice(["llama", "qwen3", "glm4", "hunyuan_v1_dense"])
    return Drawn(_base(chance, kind, layers), (FULL,) * layers)


def _windows(chance: random.Random) -> Drawn:
    layers = chance.randrange(4, 49)
    kinds = _mixed(chance, layers, WINDOW)
    kind = chance.choice(["gemma3_text", "gpt_oss", "olmo3", "exaone4", "cohere2"])
    table = _base(chance, kind, layers) | {
        "layer_types": kinds,
        "sliding_window": chance.choice([128, 512, 1024, 4096]),
    }
    return Drawn(table, tuple(kinds))


def _gemma4(chance: random.Random) -> Drawn:
    layers = chance.randrange(6, 43)
    kinds = _mixed(chance, layers, WINDOW)
    base = _base(chance, "gemma4_text", layers)
    table = base | {
        "layer_types": kinds,
        "sliding_window": 1024,
        "global_head_dim": base["head_dim"] * chance.choice([1, 2]),
        "attention_k_eq_v": True,
        "num_global_key_value_heads": base["num_key_value_heads"] // chance.choice([1, 2, 4]),
        "num_kv_shared_layers": chance.choice([0, 0, 2]),
    }
    kept = layers - table["num_kv_shared_layers"]
    if len(set(kinds[:kept])) < 2:
        table["num_kv_shared_layers"] = 0
        kept = layers
    return Drawn(table, tuple(kinds[:kept]))


def _deepseek(chance: random.Random) -> Drawn:
    layers = chance.randrange(2, 62)
    mtp = chance.choice([0, 1])
    table = _base(chance, "deepseek_v3", layers) | {
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "num_nextn_predict_layers": mtp,
    }
    del table["head_dim"]
    return Drawn(table, (FULL,) * layers, draft_layers=mtp)


def _gated_delta(chance: random.Random) -> Drawn:
    layers = chance.randrange(4, 65)
    kinds = _mixed(chance, layers, STATE)
    kind = chance.choice(["qwen3_5_text", "qwen3_next", "olmo_hybrid"])
    table = _base(chance, kind, layers) | {
        "layer_types": kinds,
        "linear_num_key_heads": chance.choice([8, 16]),
        "linear_num_value_heads": chance.choice([16, 32, 48, 64]),
        "linear_key_head_dim": 128,
        "linear_value_head_dim": chance.choice([64, 128]),
        "linear_conv_kernel_dim": 4,
    }
    drafters = 0
    if kind == "olmo_hybrid":
        table["head_dim"] = None
        table |= {"hidden_size": table["num_attention_heads"] * 128}
        del table["head_dim"]
    elif kind == "qwen3_5_text":
        table |= {"mamba_ssm_dtype": chance.choice(["float32", "bfloat16"])}
        drafters = chance.choice([1, 1, 2])
        table["mtp_num_hidden_layers"] = drafters
    else:
        drafters = 1
    return Drawn(table, tuple(kinds), "gdn", draft_layers=drafters)


def _kimi(chance: random.Random) -> Drawn:
    layers = chance.randrange(4, 41)
    kinds = _mixed(chance, layers, STATE)
    table = _base(chance, "kimi_linear", layers) | {
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "linear_attn_config": {
            "full_attn_layers": [at + 1 for at, kind in enumerate(kinds) if kind == FULL],
            "kda_layers": [at + 1 for at, kind in enumerate(kinds) if kind == STATE],
            "head_dim": 128,
            "num_heads": chance.choice([16, 32]),
            "short_conv_kernel_size": 4,
        },
    }
    return Drawn(table, tuple(kinds), "kda")


def _mamba2_fields(chance: random.Random, inner: int) -> dict[str, int]:
    size = chance.choice([64, 128])
    return {
        "mamba_n_heads": inner // size,
        "mamba_d_head": size,
        "mamba_n_groups": chance.choice([1, 2, 8]),
        "mamba_d_state": chance.choice([64, 128, 256]),
        "mamba_d_conv": 4,
    }


def _granite(chance: random.Random) -> Drawn:
    layers = chance.randrange(4, 49)
    kinds = _mixed(chance, layers, STATE)
    base = _base(chance, "granitemoehybrid", layers)
    table = base | {
        "layer_types": ["attention" if kind == FULL else "mamba" for kind in kinds],
        "mamba_expand": 2,
        **_mamba2_fields(chance, 2 * base["hidden_size"]),
    }
    return Drawn(table, tuple(kinds), "granitemoehybrid:GraniteMoeHybridForCausalLM", mamba2=True)


def _falcon(chance: random.Random) -> Drawn:
    layers = chance.randrange(2, 49)
    inner = chance.choice([1024, 2048, 3072])
    table = _base(chance, "falcon_h1", layers) | {
        "mamba_d_ssm": inner,
        "mamba_expand": 2,
        **_mamba2_fields(chance, inner),
    }
    kinds = (FULL, STATE) * layers
    places = tuple(layer for layer in range(layers) for _ in range(2))
    return Drawn(table, kinds, "falcon_h1:FalconH1ForCausalLM", mamba2=True, places=places)


def _nemotron(chance: random.Random) -> Drawn:
    layers = chance.randrange(6, 61)
    letters = [chance.choice("MMM*-E") for _ in range(layers - 2)] + ["M", "*"]
    table = _base(chance, "nemotron_h", layers) | {
        "hybrid_override_pattern": "".join(letters),
        "mamba_num_heads": chance.choice([64, 96, 128]),
        "mamba_head_dim": chance.choice([64, 80]),
        "ssm_state_size": 128,
        "n_groups": 8,
        "conv_kernel": 4,
    }
    if chance.random() < 0.4:
        table["mamba_ssm_cache_dtype"] = chance.choice(["float32", "bfloat16"])
    kinds = tuple({"M": STATE, "*": FULL}[letter] for letter in letters if letter in "M*")
    places = tuple(place for place, letter in enumerate(letters) if letter in "M*")
    return Drawn(table, kinds, "nemotron_h:NemotronHForCausalLM", mamba2=True, places=places)


def _zamba(chance: random.Random) -> Drawn:
    layers = chance.randrange(4, 55)
    hybrid = [chance.random() < 0.25 for _ in range(layers - 1)] + [True]
    base = _base(chance, "zamba2", layers)
    del base["head_dim"], base["num_key_value_heads"]
    table = base | {
        "layers_block_type": ["hybrid" if each else "mamba" for each in hybrid],
        "mamba_expand": 2,
        "mamba_ngroups": chance.choice([1, 2]),
        "n_mamba_heads": 16,
        "mamba_d_state": 64,
        "mamba_d_conv": 4,
    }
    kinds = tuple(kind for each in hybrid for kind in ((FULL, STATE) if each else (STATE,)))
    places = tuple(place for place, each in enumerate(hybrid) for _ in range(1 + each))
    return Drawn(table, kinds, "zamba2:Zamba2ForCausalLM", mamba2=True, places=places)


def _jamba(chance: random.Random) -> Drawn:
    layers = chance.randrange(8, 49)
    base = _base(chance, "jamba", layers)
    del base["head_dim"]
    table = base | {
        "attn_layer_period": 8,
        "attn_layer_offset": chance.randrange(8),
        "mamba_expand": 2,
        "mamba_d_conv": 4,
        "mamba_d_state": 16,
    }
    kinds = tuple(
        FULL if layer % 8 == table["attn_layer_offset"] else STATE for layer in range(layers)
    )
    return Drawn(table, kinds, "jamba:JambaForCausalLM")


def _lfm(chance: random.Random) -> Drawn:
    layers = chance.randrange(4, 41)
    kinds = _mixed(chance, layers, STATE)
    base = _base(chance, "lfm2", layers)
    del base["head_dim"]
    table = base | {
        "layer_types": ["full_attention" if kind == FULL else "conv" for kind in kinds],
        "conv_dim": base["hidden_size"],
        "conv_L_cache": 3,
    }
    return Drawn(table, tuple(kinds), "lfm2:Lfm2ForCausalLM")


FAMILIES: tuple[Callable[[random.Random], Drawn], ...] = (
    _dense,
    _windows,
    _gemma4,
    _deepseek,
    _gated_delta,
    _gated_delta,
    _kimi,
    _granite,
    _falcon,
    _nemotron,
    _zamba,
    _jamba,
    _lfm,
)


class Server:
    """vLLM's own configuration of an engine, set anew for every drawn one."""

    def __init__(self, source: Source) -> None:
        header = TraceHeader("t", layouts.load("llama-3.1-8b"), 64, level="scheduler", options={})
        self.source = source
        self.whole = engine_config(source, header, read_options(header, source))

    def size(self, drawn: Drawn) -> Sized:
        """Return what vLLM makes of it. Raises AssertionError where it cannot be divided, and
        ValueError where vLLM takes no such ranks.
        """
        with patch.dict(os.environ, VLLM_USE_V2_MODEL_RUNNER="1"):
            return self._sized(drawn)

    def _sized(self, drawn: Drawn) -> Sized:
        whole = self._configured(drawn)
        _verify_ranks(whole)
        workers = self._specs(drawn, whole)
        planning = importlib.import_module("vllm.v1.core.kv_cache_planning")
        groups = planning.get_global_kv_cache_groups(whole, [dict(specs) for specs in workers])
        sizes = tuple(sorted(len(group.layer_names) for group in groups))
        block = whole.cache_config.block_size
        memories = [drawn.memory] * len(workers)
        try:
            configs = planning.get_kv_cache_configs(whole, workers, memories, groups)
        except (ValueError, ZeroDivisionError) as error:
            return Sized(block, sizes, refused=str(error))
        scheduled = self.source.utils.generate_scheduler_kv_cache_config(configs)
        tokens, concurrency = self.source.utils.get_kv_cache_capacity(whole, scheduled)
        return Sized(block, sizes, scheduled.num_blocks, tokens, concurrency)

    def _configured(self, drawn: Drawn) -> Any:
        import torch

        whole = self.whole
        heads = SimpleNamespace(**_with_defaults(drawn))
        arch = importlib.import_module("vllm.transformers_utils.model_arch_config_convertor")
        reader = arch.ModelArchConfigConvertorBase(heads, heads)
        vars(whole.model_config).update(
            hf_config=heads,
            hf_text_config=heads,
            dtype=torch.bfloat16,
            max_model_len=drawn.longest,
            original_max_model_len=drawn.longest,
            use_mla=_latent(drawn),
            supports_kv_cache_grouping=False,
            architecture="drawn",
            architectures=["drawn"],
            model_arch_config=SimpleNamespace(total_num_attention_heads=heads.num_attention_heads),
            registry=SimpleNamespace(is_pp_supported_model=lambda *_: True),
            get_total_num_kv_heads=reader.get_total_num_kv_heads,
            get_num_kv_heads=lambda parallel: (
                1
                if _latent(drawn)
                else max(1, reader.get_total_num_kv_heads() // parallel.tensor_parallel_size)
            ),
            get_head_size=lambda: (
                heads.attention_head_dim
                if hasattr(heads, "attention_head_dim")
                else reader.get_head_size()
            ),
        )
        resolve = importlib.import_module("vllm.utils.torch_utils").resolve_kv_cache_dtype_string
        settle(
            self.source,
            whole.cache_config,
            {
                "cache_dtype": resolve(drawn.kv_cache_dtype, whole.model_config),
                "mamba_cache_dtype": drawn.mamba_cache_dtype,
                "mamba_ssm_cache_dtype": drawn.mamba_ssm_cache_dtype,
                "mamba_cache_mode": "align" if drawn.caching else "none",
                "enable_prefix_caching": drawn.caching,
                "block_size": drawn.block_size
                or (LATENT_BLOCK if _latent(drawn) and not drawn.made else 16),
                "mamba_block_size": drawn.longest,
                "mamba_page_size_padded": None,
                "num_gpu_blocks_override": None,
                "kv_cache_layout": LAYOUT,
            },
        )
        settle(
            self.source,
            whole.parallel_config,
            {
                "tensor_parallel_size": drawn.ranks,
                "decode_context_parallel_size": drawn.context_ranks,
                "prefill_context_parallel_size": drawn.prefill_ranks,
                "pipeline_parallel_size": drawn.stages,
            },
        )
        settle(
            self.source,
            whole.scheduler_config,
            {
                "max_num_batched_tokens": drawn.batched,
                "async_scheduling": True,
                "disable_hybrid_kv_cache_manager": False,
            },
        )
        speculative = None
        if drawn.drafts:
            speculative = SimpleNamespace(
                num_speculative_tokens=drawn.drafts,
                method="mtp",
                use_eagle=lambda: True,
                use_eagle_block_drop=lambda: False,
                use_multi_module_mtp=lambda: False,
            )
        whole.speculative_config = speculative
        self._settle_states(drawn, whole)
        return whole

    def _settle_states(self, drawn: Drawn, whole: Any) -> None:
        """Have vLLM's own class for the model choose the type of its states."""
        models = importlib.import_module(f"{MODELS}.config")
        chosen = {
            "qwen3_5_text": models.Qwen3_5ForConditionalGenerationConfig,
            "nemotron_h": models.NemotronHForCausalLMConfig,
        }.get(drawn.config["model_type"])
        if chosen is not None:
            chosen.verify_and_update_config(whole)

    def _specs(self, drawn: Drawn, whole: Any) -> list[dict[str, Any]]:
        """Return the specifications of each stage's layers, as its worker has them."""
        state = None
        if drawn.made:
            state = _asked(drawn, whole)
            _raise_block(whole, state, drawn, _backend(drawn))
        bounds = importlib.import_module("vllm.distributed.utils").get_pp_indices
        layers = drawn.config["num_hidden_layers"]
        ends = [bounds(layers, rank, drawn.stages)[1] for rank in range(drawn.stages)]
        workers: list[dict[str, Any]] = [{} for _ in ends]
        places = drawn.places or range(len(drawn.kinds))
        for number, (kind, place) in enumerate(zip(drawn.kinds, places, strict=True)):
            specs = workers[next(rank for rank, end in enumerate(ends) if place < end)]
            if kind == STATE:
                specs[f"layers.{number}"] = _state_spec(drawn, whole, state)
            else:
                specs[f"layers.{number}"] = self._attention(drawn, whole, kind)
        specs = workers[-1]
        if drawn.drafts and drawn.draft_layers:
            for number in range(drawn.draft_layers):
                specs[f"draft.{number}"] = replace(
                    self._attention(drawn, whole, FULL), is_draft=True
                )
        if drawn.drafts and drawn.drafter is not None:
            for number in range(drawn.drafter["num_hidden_layers"]):
                specs[f"draft.{number}"] = replace(self._draft(drawn, whole), is_draft=True)
        return workers

    def _draft(self, drawn: Drawn, whole: Any) -> Any:
        """Return what a layer of the drafter keeps: its own heads, in the target's types."""
        assert drawn.drafter is not None
        cache = whole.cache_config
        torch_utils = importlib.import_module("vllm.utils.torch_utils")
        interface = self.source.interface
        spec = interface.FullAttentionSpec(
            block_size=cache.block_size,
            num_kv_heads=max(1, drawn.drafter["num_key_value_heads"] // drawn.ranks),
            head_size=drawn.drafter["head_dim"],
            dtype=torch_utils.kv_cache_dtype_str_to_dtype(cache.cache_dtype, whole.model_config),
            kv_quant_mode=interface.get_kv_quant_mode(cache.cache_dtype),
        )
        return _backend(drawn).customize_spec(spec)

    def _attention(self, drawn: Drawn, whole: Any, kind: str) -> Any:
        interface = self.source.interface
        cache = whole.cache_config
        torch_utils = importlib.import_module("vllm.utils.torch_utils")
        dtype = torch_utils.kv_cache_dtype_str_to_dtype(cache.cache_dtype, whole.model_config)
        mode = interface.get_kv_quant_mode(cache.cache_dtype)
        common = {"block_size": cache.block_size, "dtype": dtype, "kv_quant_mode": mode}
        if _latent(drawn):
            width = whole.model_config.get_head_size()
            return interface.MLAAttentionSpec(num_kv_heads=1, head_size=width, **common)
        heads = whole.model_config.get_num_kv_heads(whole.parallel_config)
        size = whole.model_config.get_head_size()
        table = drawn.config
        if kind == FULL and "global_head_dim" in table:
            heads = max(1, table["num_global_key_value_heads"] // drawn.ranks)
            size = table["global_head_dim"]
        shape = {"num_kv_heads": heads, "head_size": size, **common}
        if kind == FULL:
            return _backend(drawn).customize_spec(interface.FullAttentionSpec(**shape))
        # model_executor/models/commandr.py gives the layers of Command R7B one token more.
        window = table["sliding_window"] + (table["model_type"] == "cohere2")
        spec = interface.SlidingWindowSpec(sliding_window=window, **shape)
        return _backend(drawn).customize_spec(spec)


def _verify_ranks(whole: Any) -> None:
    """Have vLLM check the ranks that it is given."""
    whole.parallel_config._validate_parallel_config()
    model = importlib.import_module("vllm.config.model").ModelConfig
    model.verify_with_parallel_config(whole.model_config, whole.parallel_config)


def _with_defaults(drawn: Drawn) -> dict[str, Any]:
    """Return the fields that a class of transformers derives from others, beside those drawn."""
    table = dict(drawn.config)
    kind = table["model_type"]
    if kind == "zamba2":
        table["attention_head_dim"] = 2 * table["hidden_size"] // table["num_attention_heads"]
        table["num_key_value_heads"] = table["num_attention_heads"]
        table["mamba_headdim"] = 2 * table["hidden_size"] // table["n_mamba_heads"]
    return table


def _backend(drawn: Drawn) -> Any:
    """Return the backend that packs the drawn type of keys and values."""
    if drawn.kv_cache_dtype.startswith("nvfp4"):
        with patch.dict(sys.modules, {name: MagicMock() for name in FLASHINFER}):
            # Its packing is plain arithmetic; only its kernels need the library.
            return importlib.import_module(
                "vllm.v1.attention.backends.flashinfer"
            ).FlashInferBackend
    return importlib.import_module("vllm.v1.attention.backends.triton_attn").TritonAttentionBackend


def _asked(drawn: Drawn, whole: Any) -> Any:
    """Return the class of vLLM's model, or for one whose module needs more than is installed its
    two methods, by vLLM's own calculators.
    """
    if ":" in drawn.made:
        module, name = drawn.made.split(":")
        return getattr(importlib.import_module(f"{MODELS}.{module}"), name)
    utils = importlib.import_module("vllm.model_executor.layers.mamba.mamba_utils")
    shapes = utils.MambaStateShapeCalculator
    types = utils.MambaStateDtypeCalculator
    table = drawn.config
    cache = whole.cache_config
    if drawn.made == "kda":
        inner = table["linear_attn_config"]
        shape = shapes.kda_state_shape(
            drawn.ranks,
            inner["num_heads"],
            inner["head_dim"],
            conv_kernel_size=inner["short_conv_kernel_size"],
            num_spec=whole.num_speculative_tokens,
        )
        of = types.kda_state_dtype
    else:
        shape = shapes.gated_delta_net_state_shape(
            drawn.ranks,
            table["linear_num_key_heads"],
            table["linear_num_value_heads"],
            table["linear_key_head_dim"],
            table["linear_value_head_dim"],
            table["linear_conv_kernel_dim"],
            whole.num_speculative_tokens,
        )
        of = types.gated_delta_net_state_dtype
    dtype = of(whole.model_config.dtype, cache.mamba_cache_dtype, cache.mamba_ssm_cache_dtype)
    return SimpleNamespace(
        get_mamba_state_shape_from_config=lambda _: shape,
        get_mamba_state_dtype_from_config=lambda _: dtype,
    )


def _raise_block(whole: Any, asked: Any, drawn: Drawn, backend: Any) -> None:
    """Have vLLM's platform raise the block until a page of attention holds a state."""
    registry = importlib.import_module("vllm.model_executor.models").ModelRegistry
    layers = importlib.import_module("vllm.model_executor.layers.mamba.abstract")
    platform = importlib.import_module("vllm.platforms.interface").Platform
    kernels = SimpleNamespace(
        get_supported_kernel_block_sizes=lambda: [16],
        customize_spec=backend.customize_spec,
    )
    grid = layers.get_mamba_prefill_checkpoint_alignment
    backends = platform._find_non_ssm_backends
    registry.resolve_model_cls = lambda *_, **__: (asked, "")
    layers.get_mamba_prefill_checkpoint_alignment = lambda _: drawn.exports
    platform._find_non_ssm_backends = classmethod(lambda cls, config: [kernels])
    try:
        platform._align_hybrid_block_size(whole, kernels)
    finally:
        del registry.resolve_model_cls
        layers.get_mamba_prefill_checkpoint_alignment = grid
        platform._find_non_ssm_backends = backends


def _state_spec(drawn: Drawn, whole: Any, asked: Any) -> Any:
    """Return the specification that vLLM's own layer makes of a state."""
    layers = importlib.import_module("vllm.model_executor.layers.mamba.abstract")
    base = layers.MambaBase
    if drawn.mamba2:
        base = importlib.import_module("vllm.model_executor.layers.mamba.mamba_mixer2").MambaMixer2
    shape = tuple(asked.get_mamba_state_shape_from_config(whole))
    dtype = tuple(asked.get_mamba_state_dtype_from_config(whole))
    kind = importlib.import_module(
        "vllm.v1.attention.backends.registry"
    ).MambaAttentionBackendEnum.MAMBA2
    layer = type(
        "Layer",
        (base,),
        {
            "__init__": lambda self: None,
            "get_state_shape": lambda self: shape,
            "get_state_dtype": lambda self: dtype,
            "mamba_type": property(lambda self: kind),
        },
    )()
    spec = layer.get_kv_cache_spec(whole)
    if drawn.exports > 1 and drawn.caching:
        # What a layer of gated DeltaNet adds where FlashInfer exports states
        # (layers/mamba/gdn/qwen_gdn_linear_attn.py); its module needs a device.
        spec = replace(spec, num_prefill_checkpoint_blocks=1, prefill_checkpoint_alignment=64)
    elif drawn.exports > 1:
        spec = replace(spec, num_prefill_checkpoint_blocks=1)
    return spec
