#!/usr/bin/env bash
# Run the suites on the installed LMCache, as the second tier of vLLM's reference; then random workloads on a real vLLM's own
# scheduler with LMCache's own connector; then the tests that need both, faults patched into LMCache among them. No GPU. Arguments
# go to the first `cachewitness run`. Exits with the first status that is not 0.
#
#   CACHEWITNESS_VLLM_SOURCE    a folder that holds `vllm`; vllm==0.33.0 is fetched if unset
#   CACHEWITNESS_LMCACHE_CACHE  where the virtual environment is kept between runs (~1.5 GB)
#   CACHEWITNESS_TORCH_INDEX    index of CPU builds of torch; empty for none but the configured ones
#   PYTHON                      the Python that makes the environment (3.11 or later)
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH=$PWD/harness:$PWD/reference_impl

cache=${CACHEWITNESS_LMCACHE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/cachewitness/lmcache}
torch_index=${CACHEWITNESS_TORCH_INDEX-https://download.pytorch.org/whl/cpu}
torch=torch==2.13.0
pins=(ci/vllm_requirements.txt ci/lmcache_requirements.txt)

# The environment is named after what is in it; `.ready` says that it was finished.
venv=$cache/venv-$({ echo "$torch"; cat "${pins[@]}"; } | sha256sum | cut -c1-12)
if [[ ! -e $venv/.ready ]]; then
    rm -rf "$venv"
    "${PYTHON:-python3}" -m venv "$venv"
    index=()
    [[ -n $torch_index ]] && index=(--extra-index-url "$torch_index")
    "$venv/bin/python" -m pip install --quiet "${index[@]}" "$torch"
    "$venv/bin/python" -m pip install --quiet --no-deps -r "${pins[0]}" -r "${pins[1]}"
    touch "$venv/.ready"
fi

status=0
"$venv/bin/python" -m cachewitness.cli run --engine real-lmcache --policy lmcache "$@" || status=$?
source=${CACHEWITNESS_VLLM_SOURCE:-$(ci/unpack_vllm.sh "$venv/bin/python" "$cache/src" vllm==0.33.0)}
for connector in lmcache lmcache-outputs; do
    printf '\n== vLLM with connector %s\n' "$connector"
    "$venv/bin/python" -m cachewitness.cli run --engine "vllm:source=$source,connector=$connector" --suite scheduler-random --quiet \
        --layout full --layout full-swa --layout full-mamba --layout full-swa-mamba --option tier_pages=48 || status=$((status ? status : $?))
done
printf '\n== tests\n'
CACHEWITNESS_VLLM_SOURCE=$source "$venv/bin/python" -m pytest -m lmcache suites/systems/lmcache/test_real.py \
    suites/systems/lmcache/test_allocator.py \
    suites/systems/lmcache/test_connector.py suites/systems/lmcache/test_findings_alone.py || status=$((status ? status : $?))
# LMCache's edits of state groups import vLLM by its name.
PYTHONPATH=$PYTHONPATH:$source "$venv/bin/python" -m pytest -m lmcache suites/systems/lmcache/test_stored_states.py ||
    status=$((status ? status : $?))
exit "$status"
