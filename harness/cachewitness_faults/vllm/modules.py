"""Where in vLLM the classes are into which faults are planted."""

from __future__ import annotations

SINGLE = "v1.core.single_type_kv_cache_manager"
COORDINATOR = "v1.core.kv_cache_coordinator"
MANAGER = "v1.core.kv_cache_manager"
POOL = "v1.core.block_pool"
UTILS = "v1.core.kv_cache_utils"
SCHEDULER = "v1.core.sched.scheduler"
ENCODER = "v1.core.encoder_cache_manager"
SPECS = "v1.kv_cache_interface"
