#!/usr/bin/env bash
# Run the suites on the installed SGLang's own radix cache; then the tests that need it, faults patched into it among them. No GPU.
# Arguments go to `cachewitness run`. Exits with the first status that is not 0, after everything has run.
#
#   CACHEWITNESS_SGLANG_CACHE  where the virtual environment is kept between runs (~1.5 GB)
#   CACHEWITNESS_TORCH_INDEX   index of CPU builds of torch; empty for none but the configured ones
#   PYTHON                     the Python that makes the environment; 3.11, which SGLang's wheel is built for
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${CACHEWITNESS_SGLANG_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/cachewitness/sglang}
venv=$(ci/pinned_venv.sh "$cache" ci/sglang_requirements.txt)
"$venv/bin/python" -m pip install --quiet -e '.[dev]' -c ci/constraints.txt

status=0
"$venv/bin/python" -m cachewitness.cli run --engine sglang "$@" || status=$?
"$venv/bin/python" -m pytest suites/systems/sglang/test_sglang.py suites/systems/sglang/test_plan.py \
    suites/systems/sglang/test_allocator.py || status=$((status ? status : $?))
exit "$status"
