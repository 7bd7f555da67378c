"""Run vLLM's own tests of the retention interval, on vLLM as it is.

    python -m benchmarks.vllm_own_tests --source DIR --tests DIR

`--source` holds `vllm` (a wheel unpacked without its libraries), `--tests` is the folder `tests` of
the same version's source distribution. The selection is that of vllm-project/vllm#45845, which
brought the interval to recurrent groups. The tests run as in `vllm_tests.py`: without a GPU, the
network and `tests/conftest.py`. Exits as pytest does: 0 if all passed, 1 if one failed, 5 if none
was selected.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.vllm_tests import CORE, prepare

FILES = (
    "test_prefix_caching.py",
    "test_single_type_kv_cache_manager.py",
    "test_mamba_align_chunk_split.py",
    "test_deferred_block_free.py",
    "prefix_cache/test_partial_prefix_cache_hits.py",
    "prefix_cache/test_mamba_eagle_resume_checkpoint.py",
)
"""Those of the cache core that the selection is in; `test_hybrid_prefix_cache_hit_rate.py` starts a
server with a model."""
SELECTED = "retention or reachable or mamba or prefix_cach"


def main() -> int:
    """Run them and return pytest's exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--source", type=Path, required=True, metavar="DIR", help="the folder that holds `vllm`"
    )
    parser.add_argument(
        "--tests",
        type=Path,
        required=True,
        metavar="DIR",
        help="the folder `tests` of the same version",
    )
    given = parser.parse_args()
    source = given.source.resolve()
    tests = given.tests.resolve()
    (named,) = source.glob("vllm*.dist-info")
    version = named.name.removesuffix(".dist-info").rpartition("-")[2]
    files = [f"{CORE}/{name}" for name in FILES if (tests / "v1/core" / name).is_file()]
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder), tests, version)
        flags = ["-q", "-p", "no:cacheprovider", "-W", "ignore", "--rootdir=.", "-k", SELECTED]
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": f"{folder}:{source}"}
        return subprocess.run(
            [sys.executable, "-m", "pytest", *flags, *files],
            cwd=folder,
            env=environment,
            check=False,
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
