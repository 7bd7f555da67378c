"""Options of a trace that vLLM's own scheduler has and this repository's references have not: for
requests of special kinds.

Sources of the names: vLLM 0.29.0 to 0.33.0, `v1/kv_cache_interface.py` (`RSWASpec.rswa_window`);
`config/scheduler.py` (`policy`, `max_num_encoder_input_tokens`), `config/lora.py` (`max_loras`);
`v1/structured_output`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from cachewitness._util.errors import UsageError
from cachewitness.core.trace_format import TraceHeader


@dataclass(frozen=True)
class RequestOptions:
    """What a scheduler is told of special requests.

    `scheduling_policy`: `fcfs` or `priority`. `max_loras`: requests of so many adapters run at a
    time; 0: of any number. `encoder_budget`: so many tokens of images are encoded in a step, or the
    longest image; 0: as many as the model is long. `prefill_checkpoints`: the worker saves a state
    within the last chunk of a prompt, a multiple of so many tokens behind the chunk's start; 0: at
    the ends of chunks alone. `shared_prefix_checkpoints`: with EAGLE and hits inside a block vLLM
    also ends a chunk where a prefix parts that others had
    (`enable_mamba_shared_prefix_checkpoint`). `rswa_window`: full attention reads the prompt, and
    so many tokens of the answer (reference sliding window attention); 0: all of it.
    `structured_output`: some requests have a grammar, `sessions`: some are sessions,
    `prompt_logprobs`: some ask for log-probabilities of their prompt, `adapter_paths`: adapters of
    one name have other paths; only the generator of traces reads these, and of the last whoever
    tells routers, who are not told of paths.
    """

    scheduling_policy: str = "fcfs"
    max_loras: int = 0
    encoder_budget: int = 0
    prefill_checkpoints: int = 0
    shared_prefix_checkpoints: bool = False
    rswa_window: int = 0
    structured_output: bool = False
    sessions: bool = False
    prompt_logprobs: bool = False
    adapter_paths: bool = False

    @property
    def capabilities(self) -> list[str]:
        """What a request may have, by the name of its field in a trace."""
        return [
            "grammar",
            "session",
            *(["priority"] if self.scheduling_policy == "priority" else []),
        ]


NAMES = tuple(field.name for field in fields(RequestOptions))
_FITS: Mapping[str, Any] = {
    "scheduling_policy": lambda value: value in ("fcfs", "priority"),
    "max_loras": lambda value: type(value) is int and value >= 0,
    "encoder_budget": lambda value: type(value) is int and value >= 0,
    "prefill_checkpoints": lambda value: type(value) is int and value >= 0,
    "rswa_window": lambda value: type(value) is int and value >= 0,
    "shared_prefix_checkpoints": lambda value: isinstance(value, bool),
    "structured_output": lambda value: isinstance(value, bool),
    "sessions": lambda value: isinstance(value, bool),
    "prompt_logprobs": lambda value: isinstance(value, bool),
    "adapter_paths": lambda value: isinstance(value, bool),
}


def request_options(header: TraceHeader) -> RequestOptions:
    """Return these options of a trace. Raises UsageError for a value that does not fit, and for
    any below scheduler level.
    """
    given = {name: value for name, value in header.options.items() if name in NAMES}
    for name, value in given.items():
        if not _FITS[name](value):
            raise UsageError(f"trace {header.name!r}: option {name!r} cannot be {value!r}")
        if value and header.level != "scheduler":
            raise UsageError(
                f"option {name!r} ({value!r}) is the scheduler's; run it at scheduler level"
            )
    return RequestOptions(**given)


def other_options(header: TraceHeader) -> dict[str, Any]:
    """Return the options of a trace that are its policy's."""
    return {name: value for name, value in header.options.items() if name not in NAMES}
