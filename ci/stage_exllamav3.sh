#!/usr/bin/env bash
# Run the suites on the installed exllamav3's own generator; then the tests that need it, faults patched into it among them. No GPU.
# Arguments go to `cachewitness run`. Exits with the first status that is not 0, after everything has run.
#
#   CACHEWITNESS_EXLLAMAV3_CACHE  where the virtual environment is kept between runs (~1.2 GB)
#   CACHEWITNESS_TORCH_INDEX      index of CPU builds of torch; empty for none but the configured ones
#   PYTHON                        the Python that makes the environment; `python3.11` if unset
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${CACHEWITNESS_EXLLAMAV3_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/cachewitness/exllamav3}
venv=$(ci/pinned_venv.sh "$cache" ci/exllamav3_requirements.txt)
"$venv/bin/python" -m pip install --quiet -e '.[dev]' -c ci/constraints.txt

status=0
"$venv/bin/python" -m cachewitness.cli run --engine exllamav3 "$@" || status=$?
"$venv/bin/python" -m pytest suites/systems/exllamav3/test_exllamav3.py || status=$((status ? status : $?))
exit "$status"
