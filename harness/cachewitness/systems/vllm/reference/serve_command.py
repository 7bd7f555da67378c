"""Reads a command line of `vllm serve`, or the arguments that a server logs, as fields of a request
for a plan.

Every flag that changes a page, a group or a bound is read, or refused with the reason; the other
flags of vLLM 0.33.0 (`serve_flags`) change nothing that is planned. A word that is no flag of that
release is refused.
"""

from __future__ import annotations

import difflib
import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cachewitness._util.errors import UsageError
from cachewitness.plan.options import amount
from cachewitness.plan.rank import AUTO
from cachewitness.plan.serving import OWN_LAYERS
from cachewitness.systems.vllm.reference.serve_flags import LISTS, SWITCHES, VALUES

FIT = -1
"""As `max_model_len`: as long as the memory allows."""
SHORT = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dcp": "--decode-context-parallel-size",
    "-pcp": "--prefill-context-parallel-size",
    "-sc": "--speculative-config",
    "-ac": "--attention-config",
    "--device-memory-utilization": "--gpu-memory-utilization",
    "--spec-method": "--speculative-config.method",
    "--spec-model": "--speculative-config.model",
    "--spec-tokens": "--speculative-config.num_speculative_tokens",
    "--speculative-method": "--speculative-config.method",
}
WEIGHTS = {
    "auto": AUTO,
    "half": "float16",
    "float": "float32",
    "float16": "float16",
    "float32": "float32",
    "bfloat16": "bfloat16",
}
HOPPER_CHECKPOINTS = 64
DRAFTS = "--speculative-config"
CONFIG_FILE = "config.json"
Value = str | bool


@dataclass(frozen=True)
class Served:
    """A command line, read. `model` is what it names, empty if nothing; `fields` those of a
    request.
    """

    model: str
    fields: dict[str, Any]
    utilization: float | None = None


def read(command: str) -> Served:
    """Return what a command line says. Raises UsageError for one that cannot be read, an unknown
    flag, and a flag whose meaning is not worked out here.
    """
    try:
        words = shlex.split(command.replace("\\\n", " ").replace("\\\r\n", " "))
    except ValueError as error:
        raise UsageError(f"--serve: {error}") from None
    model, flags = _split(_arguments(words))
    return served(model, flags)


def _arguments(words: list[str]) -> list[str]:
    """Return the words behind `serve`, or behind the module that serves."""
    for index, word in enumerate(words):
        if word == "serve" or word.startswith("vllm.entrypoints."):
            return words[index + 1 :]
    raise UsageError("--serve: no `vllm serve` in it; paste the whole command line")


def _split(words: list[str]) -> tuple[str, dict[str, Value]]:
    models: list[str] = []
    flags: dict[str, Value] = {}
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if not word.startswith("-"):
            models.append(word)
            continue
        if word.startswith("-O"):
            continue
        name, given, value = word.partition("=")
        flag = _flag(name)
        base = flag.partition(".")[0].rstrip("+")
        if base in LISTS:
            while index < len(words) and not words[index].startswith("-"):
                index += 1
            flags[base] = True
        elif base in VALUES:
            if not given and index >= len(words):
                raise UsageError(f"--serve: {name} wants a value")
            flags[flag] = value if given else words[index]
            index += not given
        else:
            flags[flag] = True
    if len(models) > 1:
        raise UsageError(f"--serve: two models: {models[0]!r} and {models[1]!r}")
    named = flags.get("--model")
    return (models[0] if models else str(named or "")), flags


def _flag(name: str) -> str:
    """Return a flag by its one name. Raises UsageError for none of this release's."""
    head, dot, rest = name.partition(".")
    plain = SHORT.get(head, head.replace("_", "-") if head.startswith("--") else head)
    plain = SHORT.get(plain, plain)
    base = plain.partition(".")[0]
    positive = base.replace("--no-", "--", 1)
    if base in VALUES | LISTS | SWITCHES or positive in SWITCHES:
        return plain + dot + rest
    known = VALUES | LISTS | SWITCHES
    near = difflib.get_close_matches(plain, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise UsageError(f"--serve: {name}: no flag of vllm serve in 0.33.0{hint}")


def served(model: str, flags: Mapping[str, Value]) -> Served:
    """Return what flags by their one names say. Raises UsageError as `read` does."""
    for flag, why in REFUSED.items():
        if flag in flags:
            raise UsageError(f"{flag}: {why}")
    if (mode := flags.get("--mamba-cache-mode", KEPT)) != KEPT:
        raise UsageError(f"--mamba-cache-mode: {str(mode)[:60]!r} is not worked out; {KEPT} is")
    fields: dict[str, Any] = {}
    for flag, value in flags.items():
        if flag in FIELDS:
            name, convert = FIELDS[flag]
            fields[name] = _converted(flag, value, convert)
        elif flag in SWITCHED:
            name, meaning = SWITCHED[flag]
            fields[name] = meaning
    fields |= drafts(_speculative(flags))
    if flags.get("--gdn-prefill-backend") == "flashinfer":
        fields["checkpoint_alignment"] = HOPPER_CHECKPOINTS
    if "--kv-transfer-config" in flags and "hybrid_kv_cache_manager" not in fields:
        raise UsageError(
            "--kv-transfer-config: a connector may switch the hybrid manager off, and whether this"
            " one does is not worked out here; add --enable-hybrid-kv-cache-manager, or --disable-"
        )
    utilization = flags.get("--gpu-memory-utilization")
    return Served(
        model,
        fields,
        None if utilization is None else _converted("--gpu-memory-utilization", utilization, float),
    )


def _converted(flag: str, value: Value, convert: Callable[[str], Any]) -> Any:
    try:
        return convert(str(value))
    except (ValueError, KeyError):
        raise UsageError(f"{flag}: {str(value)[:60]!r} is no value that vLLM takes") from None


def _count(text: str) -> int:
    count = amount(text)
    if count < 1:
        raise ValueError
    return count


def _longest(text: str) -> int:
    return FIT if text in ("auto", str(FIT)) else _count(text)


FIELDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "--kv-cache-dtype": ("kv_cache_dtype", str),
    "--mamba-cache-dtype": ("mamba_cache_dtype", str),
    "--mamba-ssm-cache-dtype": ("mamba_ssm_cache_dtype", str),
    "--dtype": ("dtype", WEIGHTS.__getitem__),
    "--block-size": ("block_size", _count),
    "--max-model-len": ("max_model_len", _longest),
    "--max-num-seqs": ("max_num_seqs", _count),
    "--max-num-batched-tokens": ("max_num_batched_tokens", _count),
    "--tensor-parallel-size": ("tensor_parallel_size", _count),
    "--pipeline-parallel-size": ("pipeline_parallel_size", _count),
    "--decode-context-parallel-size": ("decode_context_parallel_size", _count),
    "--prefill-context-parallel-size": ("prefill_context_parallel_size", _count),
    "--kv-cache-memory-bytes": ("memory", _count),
    "--num-gpu-blocks-override": ("num_gpu_blocks_override", _count),
    "--prefix-cache-retention-interval": ("retention_interval", str),
}
"""The field of a request that a flag says, and how its text is read."""
SWITCHED: dict[str, tuple[str, bool]] = {
    "--enable-prefix-caching": ("enable_prefix_caching", True),
    "--disable-prefix-caching": ("enable_prefix_caching", False),
    "--no-enable-prefix-caching": ("enable_prefix_caching", False),
    "--disable-hybrid-kv-cache-manager": ("hybrid_kv_cache_manager", False),
    "--enable-hybrid-kv-cache-manager": ("hybrid_kv_cache_manager", True),
    "--no-disable-hybrid-kv-cache-manager": ("hybrid_kv_cache_manager", True),
    "--async-scheduling": ("async_scheduling", True),
    "--no-async-scheduling": ("async_scheduling", False),
    "--enforce-eager": ("enforce_eager", True),
}
REFUSED = {
    "--config": "the file of flags is not read; paste the flags themselves",
    "--hf-overrides": "fields given on the command line are not read; change the config.json",
    "--use-replayssm": "the ring of inputs beside a state is not worked out here",
    "--kv-cache-dtype-skip-layers": "layers of two types in one pool are not worked out here",
    "--disable-sliding-window": "what a model keeps without its windows is not worked out here",
    "--swa-bounded-replay": "windows that are not cached are not worked out here",
    "--diffusion-config": "models of diffusion are not worked out here",
    "--convert": "models that pool are not worked out here",
    "--mamba-block-size": "blocks of states of another length than vLLM's are not worked out here",
    "--prefix-match-unit": "hits that end inside a block are not worked out here",
}
KEPT = "align"
"""The way of keeping states (`--mamba-cache-mode`) that is worked out."""


def _speculative(flags: Mapping[str, Value]) -> dict[str, Any]:
    """Return the table of `--speculative-config`, given whole or by its parts."""
    table: dict[str, Any] = {}
    whole = flags.get("--speculative-config")
    if whole is not None:
        table = table_of(str(whole))
    for flag, value in flags.items():
        head, _, key = flag.partition(".")
        if head == "--speculative-config" and key:
            table[key] = value
    return table


def table_of(text: str) -> dict[str, Any]:
    """Return the table that `--speculative-config` is. Raises UsageError for what is none."""
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--speculative-config: not JSON: {error}") from None
    if not isinstance(table, dict):
        raise UsageError("--speculative-config: no table")
    return table


def drafts(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that `--speculative-config` says: method, number of tokens, and what a
    drafter of its own is kept in. Raises UsageError for a table without a method and a number.
    """
    if not table:
        return {}
    method = table.get("method")
    if method is None and table.get("model") in ("ngram", "[ngram]"):
        method = "ngram"
    elif method is None and isinstance(table.get("model"), str):
        method = OWN_LAYERS[0]
    if not isinstance(method, str):
        raise UsageError("--speculative-config: method: missing, or no text")
    tokens = str(table.get("num_speculative_tokens", table.get("num_spec_tokens", "")))
    if not tokens.isascii() or not tokens.isdigit() or not 0 < int(tokens) < 1 << 16:
        raise UsageError(
            "--speculative-config: num_speculative_tokens: missing, or no number of tokens"
        )
    if method.endswith("_mtp"):
        method = "mtp"
    fields: dict[str, Any] = {"speculative_method": method, "num_speculative_tokens": int(tokens)}
    if table.get("kv_cache_dtype") is not None:
        fields["draft_kv_cache_dtype"] = str(table["kv_cache_dtype"])
    if table.get("draft_tensor_parallel_size") is not None and method in OWN_LAYERS:
        ranks = _converted(DRAFTS, str(table["draft_tensor_parallel_size"]), _count)
        fields["draft_tensor_parallel_size"] = ranks
    beside = Path(str(table.get("model", ""))) / CONFIG_FILE
    if method in OWN_LAYERS and beside.is_file():
        fields["draft_config"] = str(beside)
    return fields
