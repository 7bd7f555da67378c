#!/usr/bin/env bash
# Run the suites on the installed lmdeploy's own scheduler; then the tests that need it, faults patched into it among them. No GPU.
# Arguments go to `cachewitness run`. Exits with the first status that is not 0, after everything has run.
#
#   CACHEWITNESS_LMDEPLOY_CACHE  where the virtual environment is kept between runs (~1.2 GB)
#   CACHEWITNESS_TORCH_INDEX     index of CPU builds of torch; empty for none but the configured ones
#   PYTHON                       the Python that makes the environment; 3.11, which lmdeploy's wheel is built for
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${CACHEWITNESS_LMDEPLOY_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/cachewitness/lmdeploy}
venv=$(ci/pinned_venv.sh "$cache" ci/lmdeploy_requirements.txt)
"$venv/bin/python" -m pip install --quiet -e '.[dev]' -c ci/constraints.txt

status=0
"$venv/bin/python" -m cachewitness.cli run --engine lmdeploy "$@" || status=$?
"$venv/bin/python" -m pytest suites/systems/lmdeploy/test_lmdeploy.py || status=$((status ? status : $?))
exit "$status"
