"""The real SGLang, lmdeploy, exllamav3, LMCache and transformers that tests run on, and what skips
a test without them (that of vLLM is in `suites.support.real_vllm`).
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

SGLANG_SOURCE = os.environ.get("CACHEWITNESS_SGLANG_SOURCE", "")

needs_sglang = pytest.mark.skipif(
    not (SGLANG_SOURCE or find_spec("sglang")) or find_spec("torch") is None,
    reason=(
        "needs sglang, or CACHEWITNESS_SGLANG_SOURCE to name the folder of an unpacked wheel;"
        " ci/stage_sglang.sh has it"
    ),
)
LMDEPLOY_SOURCE = os.environ.get("CACHEWITNESS_LMDEPLOY_SOURCE", "")
needs_lmdeploy = pytest.mark.skipif(
    not (LMDEPLOY_SOURCE or find_spec("lmdeploy")) or find_spec("torch") is None,
    reason=(
        "needs lmdeploy, or CACHEWITNESS_LMDEPLOY_SOURCE to name the folder of an unpacked wheel;"
        " ci/stage_lmdeploy.sh has it"
    ),
)
EXLLAMAV3_SOURCE = os.environ.get("CACHEWITNESS_EXLLAMAV3_SOURCE", "")
needs_exllamav3 = pytest.mark.skipif(
    not (EXLLAMAV3_SOURCE or find_spec("exllamav3")) or find_spec("torch") is None,
    reason=(
        "needs exllamav3, or CACHEWITNESS_EXLLAMAV3_SOURCE to name the folder of an unpacked wheel;"
        " ci/stage_exllamav3.sh has it"
    ),
)
needs_lmcache = pytest.mark.skipif(
    find_spec("lmcache") is None or find_spec("torch") is None,
    reason="needs lmcache and torch; ci/stage_lmcache.sh has both",
)
LMCACHE = [pytest.mark.lmcache, pytest.mark.filterwarnings("ignore"), needs_lmcache]
"""The marks of a test that runs a real LMCache."""
needs_transformers = pytest.mark.skipif(
    not (find_spec("torch") and find_spec("transformers")),
    reason="needs torch and transformers; ci/stage_transformers.sh",
)
