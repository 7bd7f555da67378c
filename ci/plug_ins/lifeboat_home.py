"""Gives each engine with the tier of lifeboatcache a folder of its own, which goes with it.

`--engine vllm:source=SRC,connector=offloading,spec=TieringOffloadingSpec,`
`secondary_tiers=[{"type":"lifeboat_cache.integrations.vllm_tier:LifeboatTier",`
`"lifeboat_config":{"dashboard":{"enabled":false}}}],prepare=lifeboat_home:prepare`. The tier keeps
its files below `LIFEBOAT_CACHE_HOME`; in one folder an engine would find what another has stored.

Source: lifeboatcache 0.1.11, `config/paths.py`, `integrations/vllm_tier.py`.
"""

from __future__ import annotations

import os
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any
from weakref import finalize

HOME = "LIFEBOAT_CACHE_HOME"


def prepare(vllm_config: Any) -> None:
    """Name a new folder, which is removed with vLLM's configuration."""
    os.environ[HOME] = folder = mkdtemp(prefix="cachewitness-")
    finalize(vllm_config, rmtree, folder, ignore_errors=True)
