"""The real SGLang, lmdeploy, exllamav3, LMCache and transformers that tests run on, and what skips
a test without them (that of vLLM is in `suites.support.real_vllm`).
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest


def _or_its_source(package: str) -> tuple[str, pytest.MarkDecorator]:
    """Return the folder that is named of an unpacked wheel, and what skips a test without any."""
    variable = f"CACHEWITNESS_{package.upper()}_SOURCE"
    folder = os.environ.get(variable, "")
    missing = not (folder or find_spec(package)) or find_spec("torch") is None
    return folder, pytest.mark.skipif(
        missing,
        reason=(
            f"needs {package}, or {variable} to name the folder of an unpacked wheel;"
            f" ci/stage_{package}.sh has it"
        ),
    )


SGLANG_SOURCE, needs_sglang = _or_its_source("sglang")
LMDEPLOY_SOURCE, needs_lmdeploy = _or_its_source("lmdeploy")
EXLLAMAV3_SOURCE, needs_exllamav3 = _or_its_source("exllamav3")
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
