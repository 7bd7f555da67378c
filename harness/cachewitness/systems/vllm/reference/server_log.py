"""Reads what a server of vLLM logged when it started: its arguments, and the numbers of its cache.

Only the lines that are known are read; whatever lies between them is skipped. Lines of several
releases are taken (0.9 to 0.33): older ones have the size and the concurrency on two lines.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cachewitness._util import reading
from cachewitness._util.errors import UsageError
from cachewitness.systems.vllm.reference.serve_command import Value, drafts, served

SIZE_MAX = 64 << 20
"""No log of a start has more bytes."""


@dataclass
class Logged:
    """What a log says; None and empty are not said.

    `memory` and the other amounts are in GiB as printed, with two decimals. `fields` are those of
    a request that the server's arguments say.
    """

    release: str = ""
    model: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    memory: str | None = None
    size_tokens: int | None = None
    longest: int | None = None
    concurrency: str | None = None
    block: int | None = None
    padding: str | None = None
    padding_layers: list[int] = field(default_factory=list)
    needed: str | None = None
    estimated: int | None = None
    refused_seqs: int | None = None
    blocks: int | None = None


_NUMBER = r"([0-9][0-9,]*)"
_GIB = r"\(?([0-9]+(?:\.[0-9]+)?) GiB"
_VERSION = re.compile(r"LLM engine \(v([0-9]+\.[0-9]+)|\bversion ([0-9]+\.[0-9]+)\.[0-9]")
_ARGUMENTS = re.compile(r"non-default args: (\{.*\})")
_MEMORY = re.compile(r"Available KV cache memory: " + _GIB)
_SIZE = re.compile(r"KV cache size: " + _NUMBER + " tokens")
_CONCURRENCY = re.compile(
    r"Maximum concurrency for " + _NUMBER + r" tokens per request: ([0-9]+\.[0-9]+)x"
)
_BLOCK = re.compile(r"Setting attention block size to ([0-9]+) tokens")
_PADDING = re.compile(r"Padding mamba page size by ([0-9]+\.[0-9]+)%")
_LAYERS = re.compile(r"Add ([0-9]+) padding layers")
_NEEDED = re.compile(
    r"max seq len \(([0-9]+)\), " + _GIB + r" KV cache is needed.*?KV cache memory " + _GIB
)
_ESTIMATED = re.compile(r"estimated maximum model length is ([0-9]+)")
_SEQS = re.compile(r"max_num_seqs \(([0-9]+)\) exceeds available Mamba cache blocks \(([0-9]+)\)")
_FIT = re.compile(r"Auto-fit max_model_len: reduced from [0-9]+ to ([0-9]+)")
_CONFIG = {
    "model": re.compile(r"with config: model='([^']*)'"),
    "kv_cache_dtype": re.compile(r"\bkv_cache_dtype=([a-z0-9_]+)"),
    "tensor_parallel_size": re.compile(r"\btensor_parallel_size=([0-9]+)"),
    "pipeline_parallel_size": re.compile(r"\bpipeline_parallel_size=([0-9]+)"),
    "max_model_len": re.compile(r"\bmax_seq_len=([0-9]+)"),
    "enable_prefix_caching": re.compile(r"\benable_prefix_caching=(True|False)"),
    "dtype": re.compile(r"\bdtype=torch\.([a-z0-9]+)"),
    "drafts": re.compile(r"SpeculativeConfig\(method='([^']*)'.*?num_spec_tokens=([0-9]+)"),
}


def read(path: Path) -> Logged:
    """Return what a log says. Raises UsageError for a file that cannot be read, and for one in
    which no number of a cache is.
    """
    logged = Logged()
    for line in reading.whole(path, SIZE_MAX).decode("utf-8", "replace").splitlines():
        _take(logged, line, path)
    if logged.fields.get("pipeline_parallel_size", 1) > 1:
        raise UsageError(
            f"{path}: --pipeline-parallel-size: the log is of several stages, and which of the"
            " amounts of memory in it is which stage's is not read here; plan the flags with"
            " --memory"
        )
    numbers = (
        logged.size_tokens,
        logged.concurrency,
        logged.needed,
        logged.estimated,
        logged.block,
    )
    if all(number is None for number in numbers) and logged.refused_seqs is None:
        raise UsageError(
            f"{path}: no line of a start that says what its cache holds (KV cache size, Maximum"
            " concurrency, attention block size, KV cache is needed)"
        )
    return logged


def _take(logged: Logged, line: str, path: Path) -> None:
    if found := _VERSION.search(line):
        logged.release = found.group(1) or found.group(2)
    if "with config: " in line:
        _take_config(logged, line)
    if found := _ARGUMENTS.search(line):
        _take_arguments(logged, found.group(1), path)
    if found := _MEMORY.search(line):
        # Every rank prints its own; the pool is that of the rank with the least.
        logged.memory = min(found.group(1), logged.memory or found.group(1), key=float)
    if found := _SIZE.search(line):
        logged.size_tokens = _whole(found.group(1))
    if found := _CONCURRENCY.search(line):
        logged.longest = _whole(found.group(1))
        logged.concurrency = found.group(2)
    if found := _BLOCK.search(line):
        logged.block = int(found.group(1))
    if found := _PADDING.search(line):
        logged.padding = found.group(1)
    if found := _LAYERS.search(line):
        logged.padding_layers.append(int(found.group(1)))
    _take_refusals(logged, line)


def _take_refusals(logged: Logged, line: str) -> None:
    if found := _NEEDED.search(line):
        logged.longest = int(found.group(1))
        logged.needed = found.group(2)
        logged.memory = logged.memory or found.group(3)
    if found := _ESTIMATED.search(line):
        logged.estimated = int(found.group(1))
    if found := _SEQS.search(line):
        logged.refused_seqs = int(found.group(1))
        logged.blocks = int(found.group(2))
    if found := _FIT.search(line):
        logged.longest = int(found.group(1))


def _take_config(logged: Logged, line: str) -> None:
    """Take the configuration that the engine prints, with every value resolved."""
    matches = {name: found for name, pattern in _CONFIG.items() if (found := pattern.search(line))}
    if "model" in matches:
        logged.model = matches["model"].group(1)
    fields: dict[str, Any] = {}
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "max_model_len"):
        if name in matches:
            fields[name] = int(matches[name].group(1))
    for name in ("kv_cache_dtype", "dtype"):
        if name in matches:
            fields[name] = matches[name].group(1)
    if "enable_prefix_caching" in matches:
        fields["enable_prefix_caching"] = matches["enable_prefix_caching"].group(1) == "True"
    if "drafts" in matches:
        method, tokens = matches["drafts"].groups()
        fields |= drafts({"method": method, "num_speculative_tokens": tokens})
    logged.fields |= fields


def _take_arguments(logged: Logged, text: str, path: Path) -> None:
    """Take the arguments that the server prints, as flags."""
    try:
        table = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise UsageError(f"{path}: the line of non-default args cannot be read") from None
    flags: dict[str, Value] = {}
    for name, value in table.items() if isinstance(table, dict) else ():
        flag = "--" + str(name).replace("_", "-")
        if flag == "--speculative-config" and isinstance(value, dict):
            flags |= {f"{flag}.{key}": str(each) for key, each in value.items()}
        elif value is True:
            flags[flag] = True
        elif value is False:
            flags["--no-" + flag[2:]] = True
        elif value is not None:
            flags[flag] = str(value)
    line = served(str(table.get("model", "")), flags)
    logged.model = logged.model or line.model
    logged.fields |= line.fields


def _whole(text: str) -> int:
    return int(text.replace(",", ""))
