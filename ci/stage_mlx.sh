#!/usr/bin/env bash
# Run the suites at answers level on the installed mlx-lm, on a CPU, on tiny models with random weights, and the tests that need
# it. No GPU, no download of weights. Arguments go to `cachewitness run`. Exits with the first status that is not 0, after
# everything has run.
#
#   CACHEWITNESS_MLX_CACHE   where the virtual environment is kept between runs (~0.6 GB)
#   MODELS                   the architectures that run both suites; default: all but jamba, whose batches are wrong without a
#                            cache (docs/systems/mlx_lm-notes.md), so that nothing can be said of its cache
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
for model in ${MODELS:-qwen3_next gemma3_text falcon_h1}; do
    printf '\n== %s\n' "$model"
    "$venv/bin/python" -m cachewitness.cli run --engine "mlx-lm:model=$model" "$@" ||
        status=$((status ? status : $?))
done
printf '\n== tests\n'
"$venv/bin/python" -m pytest suites/systems/mlx_lm/test_answers.py || status=$((status ? status : $?))
exit "$status"
