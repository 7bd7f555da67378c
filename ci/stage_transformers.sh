#!/usr/bin/env bash
# Run the suites at answers level on the installed transformers, on tiny models with random weights, and the tests that need it.
# No GPU, no download of weights. Arguments go to `cachewitness run`. Exits with the first status that is not 0, after everything
# has run.
#
#   CACHEWITNESS_TRANSFORMERS_CACHE  where the virtual environment is kept between runs (~1.3 GB)
#   CACHEWITNESS_TORCH_INDEX         index of CPU builds of torch; empty for none but the configured ones
#   TRANSFORMERS                     the release: 5.24.0, or 5.23.0
#   MODELS                           the architectures that run both suites; default: three. The tests run all
#   PYTHON                           the Python that makes the environment (3.11 or later)
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${CACHEWITNESS_TRANSFORMERS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/cachewitness/transformers}
torch_index=${CACHEWITNESS_TORCH_INDEX-https://download.pytorch.org/whl/cpu}
release=${TRANSFORMERS:-5.24.0}
pins=(torch==2.13.0 "transformers==$release")
export HF_HUB_OFFLINE=1

# The environment is named after what is in it; `.ready` says that it was finished.
venv=$cache/venv-$(echo "${pins[@]}" | sha256sum | cut -c1-12)
if [[ ! -e $venv/.ready ]]; then
    rm -rf "$venv"
    "${PYTHON:-python3}" -m venv "$venv"
    index=()
    [[ -n $torch_index ]] && index=(--extra-index-url "$torch_index")
    "$venv/bin/python" -m pip install --quiet "${index[@]}" "${pins[0]}"
    "$venv/bin/python" -m pip install --quiet "${pins[1]}"
    touch "$venv/.ready"
fi
"$venv/bin/python" -m pip install --quiet -e '.[dev]' -c ci/constraints.txt

status=0
run() { # options of the engine's name; arguments of the run
    printf '\n== %s\n' "$1"
    "$venv/bin/python" -m cachewitness.cli run --engine "transformers:$1" "${@:2}" || status=$((status ? status : $?))
}
for model in ${MODELS:-qwen3_next gemma3 jamba,feed=tokens}; do
    run "model=$model" "$@"
done
run model=jamba --suite answers "$@"
printf '\n== tests\n'
"$venv/bin/python" -m pytest suites/systems/transformers/test_answers.py \
    suites/systems/transformers/test_allocator.py || status=$((status ? status : $?))
exit "$status"
