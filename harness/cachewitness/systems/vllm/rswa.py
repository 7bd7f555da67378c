"""Reference sliding window attention: a request reads its whole prompt, and a window of its own
answer.

vLLM gives the blocks between the two back while the request runs, and keeps their keys as long as
nobody takes them. All input is prompt: also an earlier answer that a later request repeats, and
what a session answered before it got more input.

Source: vLLM 0.29.0 to 0.33.0, `v1/kv_cache_interface.py`, `RSWASpec`;
`v1/core/single_type_kv_cache_manager.py`, `RSWAManager`; `v1/attention/backends/flash_attn.py`, the
mask `causal AND (kv < prefix_len OR q - kv < rswa_window)`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from cachewitness._util.errors import UsageError
from cachewitness.core.trace_format import TraceHeader
from cachewitness.systems.vllm.request_options import request_options
from cachewitness.systems.vllm.source import Source

OPTION = "rswa_window"


def answer_windows(kv_cache_config: Any) -> list[int]:
    """Return by group the window over answers that its layers have, in tokens, the query
    included; 0: they have none.
    """
    return [getattr(group.kv_cache_spec, OPTION, 0) for group in kv_cache_config.kv_cache_groups]


def windowed(source: Source, specs: list[Any], header: TraceHeader) -> list[Any]:
    """Return specifications of layers, those of full attention with the window over answers that
    the trace asks for.

    Raises UsageError if there is no full attention, or such as has no window: of latent vectors,
    say.
    """
    window = request_options(header).rswa_window
    if not window:
        return specs
    plain = source.interface.FullAttentionSpec
    full = [spec for spec in specs if isinstance(spec, plain)]
    other = next((spec for spec in full if type(spec) is not plain), None)
    if other is not None or not full:
        there = (
            f"{type(other).__name__} has no such window"
            if full
            else "the layout has no full attention"
        )
        raise UsageError(f"option {OPTION!r}: {there}; leave the option out")
    made = source.part("v1.kv_cache_interface", "RSWASpec")
    return [
        made(**_fields(spec), rswa_window=window) if isinstance(spec, plain) else spec
        for spec in specs
    ]


def _fields(spec: Any) -> dict[str, Any]:
    return {
        field.name: getattr(spec, field.name) for field in dataclasses.fields(spec) if field.init
    }
