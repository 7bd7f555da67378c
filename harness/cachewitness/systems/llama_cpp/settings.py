"""What a trace asks of llama.cpp's server: the options of its header, under the names that
llama.cpp gives them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from cachewitness._util.errors import UsageError
from cachewitness.core.trace_format import TraceHeader
from cachewitness.engines.answering import takes
from cachewitness.workloads.avoided import CHUNK

NAME = "llama-cpp"
BLOCK = 32
"""Tokens by whose multiples traces draw their lengths, which are the windows of the models that
have some."""
CONTEXT = 16384
"""Tokens that the models were made for."""
UNSPLIT = 2048
"""Tokens of a batch if a trace does not limit them, as llama.cpp's own default."""


class ServerSettings(NamedTuple):
    """How a server is started: what a trace sets, by name, and the sizes; `n_ctx` tokens are for
    all slots together.
    """

    n_ctx: int
    n_batch: int
    numbers: Mapping[str, int]
    switches: Mapping[str, bool]


NUMBERS = {
    "n_ubatch": 512,
    "n_parallel": 4,
    "ctx_checkpoints": 32,
    "checkpoint_min_step": 8192,
    "cache_ram": 8192,
}
"""Numbers that a trace may set, with llama.cpp's own defaults."""
SWITCHES = {"kv_unified": True, "swa_full": False, "slot_files": False}
"""Switches, likewise; `slot_files` is the harness's: whenever nothing runs, slots are saved, erased
and restored."""
FROM_ZERO = ("ctx_checkpoints", "checkpoint_min_step", "cache_ram")


def settings_of(header: TraceHeader, caching: str) -> ServerSettings:
    """Return how a server is started for a trace; unless `caching` is on it keeps nothing, and if
    it is alone it has one slot.

    Raises UsageError for an option that is not llama.cpp's, or a value that it does not take.
    """
    takes(NAME, header, (CHUNK, *NUMBERS, *SWITCHES))
    batch = _number(header, CHUNK, UNSPLIT)
    numbers = {name: _number(header, name, usual) for name, usual in NUMBERS.items()}
    switches = {name: _switch(header, name, usual) for name, usual in SWITCHES.items()}
    if caching != "on":
        numbers |= {"ctx_checkpoints": 0, "cache_ram": 0}
        switches["slot_files"] = False
    if caching == "alone":
        numbers["n_parallel"] = 1
    numbers["n_ubatch"] = min(numbers["n_ubatch"], batch)
    slots = 1 if switches["kv_unified"] else numbers["n_parallel"]
    return ServerSettings(_tokens(header) * slots, batch, numbers, switches)


def _tokens(header: TraceHeader) -> int:
    """Return how many tokens the pages of a trace hold; without `kv_unified` every slot has as
    many for itself.
    """
    tokens: int = header.pages // len(header.layout.groups) * header.layout.groups[0].block_size
    return min(max(tokens, 1), CONTEXT)


def _number(header: TraceHeader, name: str, usual: int) -> int:
    value: Any = header.options.get(name, usual)
    least = 0 if name in FROM_ZERO else 1
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(
            f"--engine {NAME}: the option {name} of a trace is a number of at least {least}, not"
            f" {value!r}"
        )
    return value


def _switch(header: TraceHeader, name: str, usual: bool) -> bool:
    value: Any = header.options.get(name, usual)
    if not isinstance(value, bool):
        raise UsageError(
            f"--engine {NAME}: the option {name} of a trace is true or false, not {value!r}"
        )
    return value
