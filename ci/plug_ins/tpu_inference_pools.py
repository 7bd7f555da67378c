"""Gives vLLM the block pools of tpu-inference, without its platform, which needs JAX and a TPU.

`--engine vllm:source=SRC,prepare=tpu_inference_pools:install` calls `install` before vLLM's cache
manager is built, as tpu-inference's executor calls its hooks when it starts. The variable
CACHEWITNESS_TPU_INFERENCE names a folder that holds `tpu_inference`; only its scheduling code is
imported, so the package's own `__init__`, which brings up JAX, does not run.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from pathlib import Path
from typing import Any

STATES_PER_PAGE = 2
"""Pages of attention for each page of states: the pool of states is the smaller one."""
STATES_LEAST = 12
"""Pages of states at least, so that the smallest traces run."""


def install(kv_cache_config: Any) -> None:
    """Have vLLM make its cache manager as tpu-inference does; the size of the pool of states, which
    its runner works out from the device's memory, is a share of that of attention.
    """
    package()
    hybrid = importlib.import_module("tpu_inference.core.hybrid_coordinator")
    hybrid.set_mamba_num_blocks(states_of(kv_cache_config))
    hybrid.install_hybrid_coordinator_hooks()


def states_of(kv_cache_config: Any) -> int:
    """Return how many pages of states there are beside those of attention."""
    pages: int = kv_cache_config.num_blocks
    return max(pages // STATES_PER_PAGE, STATES_LEAST)


def package() -> None:
    """Have modules of `tpu_inference` found, without its own `__init__`."""
    name = "tpu_inference"
    if name not in sys.modules:
        found = types.ModuleType(name)
        found.__path__ = [str(Path(os.environ["CACHEWITNESS_TPU_INFERENCE"]) / name)]
        sys.modules[name] = found
