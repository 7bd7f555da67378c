"""How OpenVINO's pools are sized, for a run and a plan alike: options under OpenVINO's own names,
and what blocks weigh.

Options are the fields of `SchedulerConfig`, and what a user of the pipelines chooses beside it: the
device, the precisions, the constructor, a scenario of the document by name. `chosen` reads them,
`weights` says what the blocks of a layout weigh, and `capacity` derives both pools or refuses in
one line that names the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from cachewitness._util.errors import UsageError
from cachewitness._util.names import nearest
from cachewitness.core.trace_format import Layout
from cachewitness_reference.openvino_genai.config import ConfigError, SchedulerConfig, config_for
from cachewitness_reference.openvino_genai.scenarios import SCENARIOS, STARTING_POINTS
from cachewitness_reference.openvino_genai.sizing import Capacity, LayoutBytes, derive
from cachewitness_reference.openvino_genai.spec import (
    GIB,
    INT32_MAX,
    KV_BLOCK_SIZES,
    RELEASES,
    SIZE_MAX,
)

ALIASES = {"enable_caching": "enable_prefix_caching"}
"""The harness's names for options of this policy."""
CONFIG = tuple(field.name for field in fields(SchedulerConfig))
BYTES = ("kv_block_bytes", "la_block_bytes")
MODEL = ("device", "kv_precision", "state_precision")
"""What says how a model is kept; a layout that comes from one has it already."""
PROFILES = ("pipeline", "scenario")
"""What stands for several fields of SchedulerConfig."""
OTHERS = ("max_model_len", "memory_gib")
KNOWN = (*CONFIG, *BYTES, *MODEL, *PROFILES, *OTHERS, *ALIASES)
SIZES = ("num_kv_blocks", "cache_size")
PIPELINES = ("ContinuousBatchingPipeline", "LLMPipeline", "VLMPipeline")
PRECISIONS = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
PACKED = {"u8": 8, "u4": 4}
"""Bits of a number of keys and values that a CPU packs; `u8` is what it takes by itself."""
SCALE_BYTES = 8
"""Scale and zero point, of a channel of a block's keys and of a token's values, in a head."""
UNLIMITED = "unlimited"
"""What stands for the largest number of tokens in a step."""
CHOICES: dict[str, tuple[str, ...]] = {
    "device": tuple(name.lower() for name in KV_BLOCK_SIZES),
    "kv_precision": (*PRECISIONS, *PACKED),
    "state_precision": tuple(PRECISIONS),
    "pipeline": PIPELINES,
}


def chosen(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return options by OpenVINO's names; a scenario and a pipeline are replaced by the fields that
    they set.

    Raises UsageError for a name that there is not, and for a value that is none of its choices.
    """
    named: dict[str, Any] = {}
    for name, value in given.items():
        if name not in KNOWN:
            raise UsageError(
                f"policy openvino_genai: option {name!r} is unknown; known are"
                f" {', '.join(sorted(KNOWN))}"
            )
        named[ALIASES.get(name, name)] = (
            SIZE_MAX if value == UNLIMITED and name == "max_num_batched_tokens" else value
        )
    for name, values in CHOICES.items():
        if name in named and named[name] not in values:
            raise UsageError(
                f"policy openvino_genai: option {name!r} is one of {', '.join(values)}, not"
                f" {named[name]!r}"
            )
    own = {name: value for name, value in named.items() if name not in PROFILES}
    profile = _pipeline(named.get("pipeline")) | _scenario(named.get("scenario"))
    if any(named.get(name) is not None for name in PROFILES):
        own = {**dict.fromkeys(SIZES, 0), **profile, **own}
    if own.get("cache_interval_multiplier") is not None and "enable_prefix_caching" not in own:
        own["enable_prefix_caching"] = True
    return own


def sized(options: Mapping[str, Any]) -> bool:
    """Whether options size the pools as SchedulerConfig does: a size is named, be it 0, which is
    dynamic.
    """
    return any(name in options for name in SIZES)


def _pipeline(name: str | None) -> dict[str, Any]:
    """Return what a constructor sets if it is given no configuration."""
    if name is None:
        return {}
    start = SchedulerConfig() if name == PIPELINES[0] else config_for(name)  # type: ignore[arg-type]
    return _set_fields(start) | {"enable_prefix_caching": start.enable_prefix_caching}


def _scenario(name: Any) -> dict[str, Any]:
    """Return what a scenario of the document sets: `4`, `scenario_4_budget` or `4_budget`, or a
    starting point by name.
    """
    if name is None:
        return {}
    known = {
        scenario.removeprefix("scenario_"): value for scenario, value in SCENARIOS.items()
    } | STARTING_POINTS
    plain = str(name).removeprefix("scenario_")
    if plain not in known:
        raise UsageError(
            "policy openvino_genai: option 'scenario': none is called"
            f" {name!r}{nearest(plain, known)}"
        )
    return _set_fields(known[plain].config)


def _set_fields(config: SchedulerConfig) -> dict[str, Any]:
    default = asdict(SchedulerConfig())
    return {name: value for name, value in asdict(config).items() if value != default[name]}


def config_of(options: Mapping[str, Any]) -> SchedulerConfig:
    """Return the configuration that options ask for, everything else at OpenVINO's own default.
    Raises UsageError.
    """
    try:
        config = SchedulerConfig(
            **{name: value for name, value in options.items() if name in CONFIG}
        )
        config.validate()
    except ConfigError as error:
        raise UsageError(f"policy openvino_genai: {error}") from None
    return config


def weights(layout: Layout, options: Mapping[str, Any], kv_block_size: int) -> LayoutBytes | None:
    """Return what the two kinds of block weigh, by the layout or by the options; None if neither
    says.

    Raises UsageError if both do, or the options say it of one kind alone.
    """
    attention = [group for group in layout.groups if group.kind != "recurrent"]
    recurrent = [group for group in layout.groups if group.kind == "recurrent"]
    known = all(group.token_bytes for group in attention) and all(
        group.state_bytes for group in recurrent
    )
    named = [name for name in BYTES if options.get(name) is not None]
    # Two sources of one number may disagree, and nothing says which of them is right.
    if known and named:
        raise UsageError(
            f"policy openvino_genai: {named[0]}: layout {layout.name!r} gives the bytes of blocks;"
            " leave it out"
        )
    kv = kv_block_size * sum(group.layers * group.token_bytes for group in attention)
    la = sum(group.layers * group.state_bytes for group in recurrent)
    if "la_block_bytes" in named and not recurrent:
        raise UsageError(
            f"policy openvino_genai: la_block_bytes: layout {layout.name!r} has no recurrent"
            " groups; leave it out"
        )
    if named:
        if missing := [name for name in BYTES[: 1 + bool(recurrent)] if name not in named]:
            raise UsageError(f"policy openvino_genai: {named[0]}: needs {missing[0]} beside it")
        kv = options["kv_block_bytes"]
        la = options.get("la_block_bytes") or 0
    elif not known:
        return None
    try:
        return LayoutBytes(kv, la, kv_block_size)
    except ConfigError as error:
        raise UsageError(f"policy openvino_genai: {error}") from None


def capacity_of(
    config: SchedulerConfig, layout: Layout, options: Mapping[str, Any], release: str
) -> Capacity:
    """Return the capacity of both pools on a layout in blocks of OpenVINO's size. Raises
    UsageError for what does not fit.
    """
    tokens = one_block_size(layout, "attention")
    memory_gib = options.get("memory_gib")
    weighed = weights(layout, options, tokens)
    if weighed is not None:
        return capacity(config, weighed, release, memory_gib)
    hybrid = any(group.kind == "recurrent" for group in layout.groups)
    return without_weights(config, tokens, hybrid, release, memory_gib)


def capacity(
    config: SchedulerConfig, sizes: LayoutBytes, release: str, memory_gib: int | None = None
) -> Capacity:
    """Return the capacity of both pools. Raises UsageError in OpenVINO's words, which field is
    meant behind them.
    """
    try:
        return derive(config, sizes, release, None if memory_gib is None else memory_gib * GIB)
    except ConfigError as error:
        raise UsageError(
            f"policy openvino_genai: {error}{_hint(str(error), config, sizes)}"
        ) from None


def without_weights(
    config: SchedulerConfig,
    kv_block_size: int,
    hybrid: bool,
    release: str,
    memory_gib: int | None = None,
) -> Capacity:
    """Return the capacity where nobody says what blocks weigh; its bytes mean nothing. Raises
    UsageError where they decide.
    """
    give = "name kv_block_bytes and la_block_bytes, or take a layout with a model (`ls layouts`)"
    if config.cache_size and not config.num_kv_blocks:
        raise UsageError(
            f"policy openvino_genai: cache_size is split by the bytes of blocks; {give}"
        )
    if memory_gib is not None:
        raise UsageError(
            f"policy openvino_genai: memory_gib is compared with the bytes of blocks; {give}"
        )
    adaptive = hybrid and config.enable_prefix_caching and RELEASES[release].adaptive_multiplier
    if adaptive and config.cache_interval_multiplier is None:
        raise UsageError(
            f"policy openvino_genai: cache_interval_multiplier: unset, release {release} derives it"
            f" from the bytes of blocks; set it, take release 2026.2, whose default is 8, or {give}"
        )
    return capacity(config, LayoutBytes(1, int(hybrid), kv_block_size), release)


def check_model_len(value: object) -> int:
    """Return the longest sequence in tokens. Raises UsageError for what is none."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 < value <= INT32_MAX:
        raise UsageError(
            f"policy openvino_genai: option 'max_model_len' ({value!r}) must be a whole number from"
            " 2 to 2^31 - 1"
        )
    return value


def one_block_size(layout: Layout, kind: str) -> int:
    """Return the block size of the attention or the recurrent groups. Raises UsageError if they
    have several, or none.
    """
    sizes = sorted(
        {
            group.block_size
            for group in layout.groups
            if (group.kind == "recurrent") == (kind == "recurrent")
        }
    )
    if len(sizes) != 1:
        named = ", ".join(map(str, sizes)) or "none"
        raise UsageError(
            f"layout {layout.name!r}: OpenVINO has one block table for all {kind} groups, of one"
            f" block size; here they have {named}"
        )
    return sizes[0]


def _hint(refusal: str, config: SchedulerConfig, sizes: LayoutBytes) -> str:
    """Return which options are meant where OpenVINO's own words name no field."""
    if refusal.startswith("Requested linear attention"):
        states = config.num_linear_attention_blocks or config.max_num_seqs
        return (
            f" {states} states of {sizes.la_block_bytes} bytes against cache_size"
            f" {config.cache_size} GiB: lower max_num_seqs or num_linear_attention_blocks, or set"
            " enable_prefix_caching"
        )
    if refusal.startswith("Requested cache size"):
        return f" cache_size {config.cache_size} GiB against memory_gib"
    if refusal.startswith("Requested cache blocks"):
        return f" num_kv_blocks {config.num_kv_blocks} against memory_gib"
    return ""
