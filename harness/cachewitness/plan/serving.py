"""What the flags of `vllm serve` make of a model: the layers of one rank, as
`cachewitness_reference.vllm.planning` takes them.

Sources (vLLM 0.33.0): `platforms/interface.py`, `_align_hybrid_block_size`;
`model_executor/models/config.py`, MambaModelConfig; `model_executor/layers/mamba/abstract.py` and
`mamba_mixer2.py`, `get_kv_cache_spec`; `config/vllm.py`, `max_in_flight_tokens`. What older
releases do otherwise was read in 0.26 to 0.32.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from msgspec import structs

from cachewitness._util.errors import UsageError
from cachewitness.plan.hybrid import Hybrid, hybrid_of, is_hybrid, types_of
from cachewitness.plan.rank import (
    AUTO,
    Types,
    kept_dtype,
    latent_bytes,
    rank_heads,
    state_bytes,
    state_dtypes,
    token_bytes,
)
from cachewitness.workloads.model import (
    DTYPE_BYTES,
    Cache,
    Full,
    Indexer,
    Latent,
    Model,
    Recurrent,
    Sliding,
    release_key,
)
from cachewitness_reference.vllm.planning import Layer, stage_of
from cachewitness_reference.vllm.sizing import block_alignment, unified_block_size

DEFAULT_BLOCK = 16
"""Tokens in a block of a model without recurrent layers, and the least block of one that has them.
"""
LATENT_BLOCK = 64
"""The same where attention keeps latent vectors alone: what the kernels take that vLLM chooses on
Hopper (FlashMLA, v1/attention/backends/mla/flashmla.py). Other kernels take 16 (Triton), 32
(FlashInfer) or 128 (CUTLASS)."""
RUNNING = 1
RUNNING_CACHED = 2
"""States of a running request: the one that it advances, and with prefix caching one beside it."""
MAMBA2_CHECKPOINT_SINCE = (0, 32)
"""From then on a Mamba-2 layer exports the state at a boundary inside a prefill, into a block."""
GATED_DELTA_CHECKPOINT_SINCE = (0, 33)
NULL_BLOCK_SINCE = (0, 29)
"""From then on the check at the start leaves out the block that nobody gets."""
MTP = "mtp"
NO_LAYERS = ("ngram", "ngram_gpu", "suffix")
"""Methods of speculative decoding that bring no layers of their own."""
DRAFTER = "--draft-config"
OWN_LAYERS = ("eagle", "eagle3", "draft_model", "dflash")
"""Methods whose drafter is a checkpoint of its own, whose layers share the target's pool."""


@dataclass(frozen=True)
class Serving:
    """What was asked of `vllm serve`; None is not said.

    `method` is that of `--speculative-config`, empty for no drafts; the tokens that it proposes are
    in `types`. `drafter` is a drafter with a checkpoint of its own, and `drafter_kv` its type of
    keys and values, if that is another. `hybrid_manager` is False with
    `--disable-hybrid-kv-cache-manager`; `stages` are those of a pipeline.
    `context_ranks` share the tokens of full attention; `prefill_context_ranks` keep the same.
    """

    types: Types = field(default_factory=Types)
    ranks: int = 1
    context_ranks: int = 1
    block_size: int | None = None
    kernel_block: int = DEFAULT_BLOCK
    checkpoint_alignment: int = 1
    prefix_caching: bool | None = None
    method: str = ""
    hybrid_manager: bool = True
    release: str = "0.33"
    stages: int = 1
    prefill_context_ranks: int = 1
    drafter: Model | None = None
    drafter_kv: str = ""

    @property
    def since(self) -> tuple[int, ...]:
        """The release, as numbers that compare."""
        return release_key(self.release)

    def caches(self, model: Model) -> bool:
        """Whether prefixes are cached: as asked, else for every model that has attention."""
        if self.prefix_caching is not None:
            return self.prefix_caching
        return not all(isinstance(cache, Recurrent) for cache in model.caches)


@dataclass(frozen=True)
class Rank:
    """One rank's layers. `block` are the tokens of attention's block, `hybrid` the numbers that it
    follows from, if there are recurrent layers beside attention.
    """

    layers: tuple[Layer, ...]
    block: int
    hybrid: Hybrid | None
    alignment: int


def rank_of(model: Model, serving: Serving, named: str) -> Rank:
    """Return what one rank keeps of a model; `named` is the option that named it.

    Raises UsageError for layers and flags whose arithmetic is not worked out here.
    """
    _check_context_ranks(model, serving)
    block = _block(model, serving)
    alignment = block
    hybrid = None
    if is_hybrid(model):
        types = types_of(model, serving.types)
        hybrid = hybrid_of(model, serving.ranks, named, types)
        alignment = _alignment(model, serving, hybrid)
        unified = unified_block_size(hybrid.token_bytes, hybrid.state_bytes, alignment)
        block = max(unified, serving.block_size or 0)
    page = block * hybrid.token_bytes if hybrid else 0
    layers: list[Layer] = []
    for cache, stages in zip(model.caches, _stages(model, serving, named), strict=True):
        layer = _layer(cache, model, serving, block, page, named)
        layers += [replace(layer, stage=stage) for stage in stages]
    layers += [
        replace(layer, stage=serving.stages - 1)
        for layer in _drafters(model, serving, block, named)
    ]
    if len({layer.stage for layer in layers}) < serving.stages:
        raise UsageError(
            f"--pipeline-parallel-size: a stage of {serving.stages} has no layer that keeps"
            " anything, which vLLM does not plan"
        )
    if not serving.hybrid_manager:
        layers = _promoted(layers, named)
    return Rank(tuple(layers), block, hybrid, alignment)


def _check_context_ranks(model: Model, serving: Serving) -> None:
    """Refuse what vLLM refuses of context parallelism: ranks that do not divide, and heads that
    tensor parallelism does not repeat as often.
    """
    ranks = serving.ranks
    prefill = serving.prefill_context_ranks
    decode = serving.context_ranks
    if prefill > 1 and decode not in (1, prefill, ranks * prefill):
        raise UsageError(
            f"--decode-context-parallel-size: {decode} is none of 1, {prefill} and"
            f" {ranks * prefill}, which vLLM takes beside --prefill-context-parallel-size {prefill}"
        )
    if prefill == 1 and ranks % decode:
        raise UsageError(
            f"--decode-context-parallel-size: {decode} does not divide --tensor-parallel-size"
            f" {ranks}, and vLLM refuses it"
        )
    heads = max((cache.kv_heads for cache in model.caches if isinstance(cache, Full)), default=0)
    if decode > 1 and heads and decode > ranks // heads:
        raise UsageError(
            f"--decode-context-parallel-size: at most {ranks // heads or 1} with {heads} KV heads"
            f" on {ranks} ranks: vLLM shares the tokens of heads that several ranks have"
        )


def _stages(model: Model, serving: Serving, named: str) -> list[list[int]]:
    """Return, for every row of the model's caches, the stages of its layers. Raises UsageError for
    a model whose layers' order nobody says.
    """
    if serving.stages == 1:
        return [[0] * cache.layers for cache in model.caches]
    order = model.order or [[0]] * model.caches[0].layers
    if not model.order and len(model.caches) > 1:
        raise UsageError(
            f"--pipeline-parallel-size: {named} does not say in which order its layers come; a"
            " configuration does (--config FILE)"
        )
    found: list[list[int]] = [[] for _ in model.caches]
    for rows, stage in zip(order, stage_of(len(order), serving.stages), strict=True):
        for row in rows:
            found[row].append(stage)
    return found


def _block(model: Model, serving: Serving) -> int:
    if serving.block_size is not None and serving.block_size % serving.kernel_block:
        raise UsageError(
            f"--block-size: {serving.block_size} is no multiple of the kernel's"
            f" {serving.kernel_block}, and vLLM refuses it"
        )
    latent = any(isinstance(cache, Latent) for cache in model.caches)
    default = LATENT_BLOCK if latent and not is_hybrid(model) else DEFAULT_BLOCK
    return default if serving.block_size is None else serving.block_size


def _alignment(model: Model, serving: Serving, hybrid: Hybrid) -> int:
    """Return the step in which the block of a hybrid is raised: the kernel's block, or that asked
    for if it is larger.
    """
    exports = serving.checkpoint_alignment if serving.caches(model) else 1
    kernel = max(serving.kernel_block, serving.block_size or 0)
    return block_alignment(kernel, latent=hybrid.latent, checkpoint_alignment=exports)


def _layer(
    cache: Cache, model: Model, serving: Serving, block: int, page: int, named: str
) -> Layer:
    types = types_of(model, serving.types)
    ranks = serving.ranks
    if isinstance(cache, Recurrent):
        return _state(cache, model, serving, block, page)
    if isinstance(cache, Full | Sliding):
        row = token_bytes(cache, ranks, types)
        form = (rank_heads(cache.kv_heads, ranks), cache.head_dim, kept_dtype(cache, types))
        if isinstance(cache, Full):
            return Layer("full", block, row, form)
        if serving.context_ranks > 1:
            raise UsageError(
                "--decode-context-parallel-size: vLLM has none for layers with windows"
            )
        return Layer("sliding", block, row, form, cache.window)
    if isinstance(cache, Latent) and cache.window is None and cache.tokens_per_entry == 1:
        return Layer("latent", block, latent_bytes(cache, types), ("latent", cache.width))
    if isinstance(cache, Indexer) and cache.tokens_per_entry == 1:
        width = cache.width * DTYPE_BYTES[cache.dtype]
        return Layer("latent", block, width, ("indexer", cache.width))
    raise UsageError(
        f"{named}: model.caches: compressed vectors lie in blocks that vLLM packs by a rule of"
        " their own, which is not worked out here"
    )


def _state(cache: Recurrent, model: Model, serving: Serving, block: int, page: int) -> Layer:
    types = types_of(model, serving.types)
    held = RUNNING + types.drafts
    if serving.caches(model):
        held = RUNNING_CACHED + types.drafts + _checkpoint_blocks(cache, serving)
    return Layer(
        "recurrent",
        block,
        state_bytes(cache, serving.ranks, types),
        (cache.family, tuple(cache.state_shape), *state_dtypes(cache, types)),
        states=held,
        page_padded=page,
    )


def _checkpoint_blocks(cache: Recurrent, serving: Serving) -> int:
    if cache.family == "mamba2":
        return int(serving.since >= MAMBA2_CHECKPOINT_SINCE)
    if cache.family == "gdn" and serving.checkpoint_alignment > 1:
        return int(serving.since >= GATED_DELTA_CHECKPOINT_SINCE)
    return 0


def _drafters(model: Model, serving: Serving, block: int, named: str) -> list[Layer]:
    """Return the layers of a drafter: its own, or those of the checkpoint itself, of its kind of
    attention.
    """
    if not serving.method or serving.method in NO_LAYERS:
        return []
    if serving.method in OWN_LAYERS:
        return _own_layers(model, serving, block)
    if serving.method != MTP:
        raise UsageError(
            f"--speculative-config: what a drafter of method {serving.method!r} keeps is not worked"
            f" out here; known: {', '.join((MTP, *OWN_LAYERS, *NO_LAYERS))}"
        )
    if not model.draft_layers:
        raise UsageError(
            f"--speculative-config: {named} names no layers of a drafter"
            " (mtp_num_hidden_layers, num_nextn_predict_layers)"
        )
    attention = [cache for cache in model.caches if isinstance(cache, Full | Latent)]
    if len(attention) != 1:
        raise UsageError(
            f"--speculative-config: {named}: which of several kinds of attention the drafter has is"
            " not worked out here"
        )
    layer = _layer(attention[0], model, serving, block, 0, named)
    return [layer] * model.draft_layers


def _own_layers(model: Model, serving: Serving, block: int) -> list[Layer]:
    """Return the layers of a drafter with a checkpoint of its own: attention, in blocks of as many
    tokens as the target's, and in the target's types unless another is asked for.
    """
    drafter = serving.drafter
    if drafter is None:
        raise UsageError(
            f"--speculative-config: the layers of method {serving.method!r} are those of the"
            " drafter's own configuration; give it as --draft-config FILE"
        )
    if any(isinstance(cache, Recurrent) for cache in drafter.caches):
        raise UsageError("--draft-config: a drafter with states is not worked out here")
    types = types_of(model, serving.types)
    kept = replace(types, kv=serving.drafter_kv or types.kv, weights=_weights(model, types))
    asked = replace(serving, types=kept)
    layers: list[Layer] = []
    for cache in drafter.caches:
        layer = _layer(cache, structs.replace(drafter, kv_cache_dtype=""), asked, block, 0, DRAFTER)
        layers += [replace(layer, draft=True)] * cache.layers
    return layers


def _weights(model: Model, types: Types) -> str:
    """Return the type that a drafter's weights are loaded in: the target's."""
    if types.weights != AUTO:
        return types.weights
    kept = [cache.dtype for cache in model.caches if isinstance(cache, Full | Sliding | Latent)]
    return kept[0] if kept else AUTO


def _promoted(layers: list[Layer], named: str) -> list[Layer]:
    """Return layers as vLLM keeps them without its hybrid manager: windows in full."""
    kinds = {layer.kind for layer in layers}
    if "recurrent" in kinds and len(kinds) > 1:
        raise UsageError(
            f"--disable-hybrid-kv-cache-manager: {named} has recurrent layers, which vLLM serves"
            " with it alone"
        )
    if kinds == {"sliding"}:
        return layers
    return [replace(layer, kind="full") if layer.kind == "sliding" else layer for layer in layers]
