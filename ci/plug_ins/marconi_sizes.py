"""Runs the connector of vllm-marconi-offload on vLLM 0.33.

`--engine vllm:source=SRC,connector=vllm_marconi_offload.connector:SimpleCPUOffloadConnector,`
`prepare=marconi_sizes:prepare`.

It is a fork of vLLM's connector of that name, of a release in which the memory of layers said who
shares it (`KVCacheTensor.shared_by`). Of its code the one function that reads that is replaced, by
the one from which it was made: it says how many blocks the CPU's memory has.

Source: vllm-marconi-offload 0.2.2, `manager.py`; vLLM 0.33.0, `v1/simple_kv_offload/manager.py`.
"""

from __future__ import annotations

import importlib
from typing import Any


def prepare() -> None:
    """Have its scheduler count the blocks of the CPU's memory as vLLM does, and name what a step
    computes at most as this release does.
    """
    name = "SimpleCPUOffloadScheduler"
    ours = getattr(importlib.import_module("vllm.v1.simple_kv_offload.manager"), name)
    module: Any = importlib.import_module("vllm_marconi_offload.manager")
    getattr(module, name)._derive_cpu_config = staticmethod(ours._derive_cpu_config)
    make = importlib.import_module("vllm.v1.core.kv_cache_coordinator").get_kv_cache_coordinator

    def get_kv_cache_coordinator(*, max_num_batched_tokens: int, **others: Any) -> Any:
        made = make(max_in_flight_tokens=max_num_batched_tokens, **others)
        look = made.find_longest_cache_hit
        made.find_longest_cache_hit = lambda *args: look(*args)[:2]
        return made

    module.get_kv_cache_coordinator = get_kv_cache_coordinator
