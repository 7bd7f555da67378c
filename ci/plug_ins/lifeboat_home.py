"""Gives each engine with the tier of lifeboatcache a folder of its own, which goes with it.

`--engine vllm:source=SRC,connector=offloading,spec=TieringOffloadingSpec,`
`secondary_tiers=[{"type":"lifeboat_cache.integrations.vllm_tier:LifeboatTier",`
`"lifeboat_config":{"dashboard":{"enabled":false}}}],prepare=lifeboat_home:prepare`. The tier keeps
its files below `LIFEBOAT_CACHE_HOME`; in one folder an engine would find what another has stored.

Source: lifeboatcache 0.1.11, `config/paths.py`, `integrations/vllm_tier.py`.
"""

from __future__ import annotations

import os
from tempfile import TemporaryDirectory
from typing import Any

HOME = "LIFEBOAT_CACHE_HOME"


def prepare(vllm_config: Any) -> None:
    """Name a new folder, which is removed with vLLM's configuration."""
    vllm_config.lifeboat_home = TemporaryDirectory(prefix="cachewitness-")
    os.environ[HOME] = vllm_config.lifeboat_home.name
