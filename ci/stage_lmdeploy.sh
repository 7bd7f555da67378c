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
torch_index=${CACHEWITNESS_TORCH_INDEX-https://download.pytorch.org/whl/cpu}
torch=torch==2.13.0

# The environment is named after what is in it; `.ready` says that it was finished.
venv=$cache/venv-$({ echo "$torch"; cat ci/lmdeploy_requirements.txt; } | sha256sum | cut -c1-12)
if [[ ! -e $venv/.ready ]]; then
    rm -rf "$venv"
    "${PYTHON:-python3.11}" -m venv "$venv"
    index=()
    [[ -n $torch_index ]] && index=(--extra-index-url "$torch_index")
    "$venv/bin/python" -m pip install --quiet "${index[@]}" "$torch"
    "$venv/bin/python" -m pip install --quiet --no-deps -r ci/lmdeploy_requirements.txt
    touch "$venv/.ready"
fi
"$venv/bin/python" -m pip install --quiet -e '.[dev]' -c ci/constraints.txt

status=0
"$venv/bin/python" -m cachewitness.cli run --engine lmdeploy "$@" || status=$?
"$venv/bin/python" -m pytest suites/systems/lmdeploy/test_lmdeploy.py || status=$((status ? status : $?))
exit "$status"
