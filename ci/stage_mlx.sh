#!/usr/bin/env bash
# Run the suites at answers level on the installed mlx-lm, on a CPU, on tiny models with random weights, and the tests that need
# it. No GPU, no download of weights. Arguments go to `cachewitness run`. Exits with the first status that is not 0, after
# everything has run.
#
#   CACHEWITNESS_MLX_CACHE   where the virtual environment is kept between runs (~0.6 GB)
#   MODELS                   the architectures that run both suites
#   STORIES, ALONE           those that run the hand-written one; the latter one request at a time, as their batches are wrong without
#                            a cache (docs/systems/mlx_lm-notes.md)
#   PYTHON                   the Python that makes the environment (3.11 or later)
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${CACHEWITNESS_MLX_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/cachewitness/mlx}
pins=(mlx==0.32.4 mlx-cpu==0.32.4 mlx-lm==0.32.2)
export HF_HUB_OFFLINE=1

# The environment is named after what is in it; `.ready` says that it was finished.
venv=$cache/venv-$(echo "${pins[@]}" | sha256sum | cut -c1-12)
if [[ ! -e $venv/.ready ]]; then
    rm -rf "$venv"
    "${PYTHON:-python3}" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet "${pins[@]}"
    touch "$venv/.ready"
fi
"$venv/bin/python" -m pip install --quiet -e '.[dev]' -c ci/constraints.txt

status=0
run() { # MODEL ARGUMENT…
    local model=$1
    shift
    printf '\n== %s\n' "$model"
    "$venv/bin/python" -m cachewitness.cli run --engine "mlx-lm:model=$model" "$@" ||
        status=$((status ? status : $?))
}
for model in ${MODELS:-qwen3_next gemma3_text falcon_h1}; do
    run "$model" "$@"
done
for model in ${STORIES:-mamba2 granitemoehybrid plamo2 lfm2}; do
    run "$model" --suite answers "$@"
done
for model in ${ALONE:-jamba nemotron_h mamba olmo_hybrid bailing_moe_linear rwkv7 recurrent_gemma baichuan_m1}; do
    run "$model,concurrency=1" --suite answers "$@"
done
printf '\n== tests\n'
"$venv/bin/python" -m pytest suites/systems/mlx_lm/test_answers.py || status=$((status ? status : $?))
exit "$status"
