#!/usr/bin/env bash
# The tests that need torch, transformers or lm-eval: the toy model's tensors, its kernels in Triton's interpreter, cold against
# cached, scores. Makes a virtual environment of its own with the extras `toy`, `triton` and `score` at the pinned versions (2.5 GB
# with a CPU build of torch).
# Arguments go to pytest; `--prepare` alone makes the environment and runs nothing; `--short` first leaves out the files
# that take longest, and says at the end which. Exits with pytest's status.
#
#   CACHEWITNESS_TOY_VENV     where the environment is kept between runs; a temporary folder if unset
#   CACHEWITNESS_TESTS        `all` for all configurations and faults, of which tests take some otherwise
#   CACHEWITNESS_TORCH_INDEX  index of CPU builds of torch; empty for none but the configured ones
#   PYTHON                    the Python that makes the environment (3.11 or later)
set -euo pipefail
cd "$(dirname "$0")/.."
exec </dev/null

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
venv=${CACHEWITNESS_TOY_VENV:-$work/venv}
export PYTHONPYCACHEPREFIX="${PYTHONPYCACHEPREFIX:-$work/pycache}" HYPOTHESIS_STORAGE_DIRECTORY="$work/hypothesis"
unset PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE
torch_index=${CACHEWITNESS_TORCH_INDEX-https://download.pytorch.org/whl/cpu}

if [[ ! -e $venv/.ready ]]; then
    "${PYTHON:-python3}" -m venv "$venv"
    index=()
    [[ -n $torch_index ]] && index=(--extra-index-url "$torch_index")
    "$venv/bin/python" -m pip install --quiet "${index[@]}" torch --constraint ci/constraints.txt
    "$venv/bin/python" -m pip install --quiet --editable '.[dev,toy,triton,score,dev-toy,dev-score,dev-mutation]' --constraint ci/constraints.txt
    # transformers takes kernels of flash-linear-attention where it finds them, and they need a GPU: apart, for one test.
    "$venv/bin/python" -m pip install --quiet --no-deps --target "$venv/fla" fla-core einops --constraint ci/constraints.txt
    touch "$venv/.ready"
fi

[[ ${1-} = --prepare ]] && exit 0

elsewhere="plain or cpp" # consoles that need no extra, or a compiler, ran in ci/check.sh
long=()
if [[ ${1-} = --short ]]; then
    shift
    elsewhere+=" or score"
    long=(suites/parity/scores/test_{damage,needs,policies,score_rates,serve,server,server_failures,side_by_side,turns_toy}.py
        suites/toy/kernels/test_recurrences.py)
fi

# Threads that wait for one another on a busy core are slower than one thread.
export OMP_NUM_THREADS=1 GOMP_SPINCOUNT=0 OMP_WAIT_POLICY=PASSIVE
export TRITON_INTERPRET=1 # kernels run on the CPU
status=0
PYTHONPATH="$venv/fla" "$venv/bin/python" -m pytest -q -o cache_dir="$work/pytest" suites/toy/kernels/test_recurrences.py \
    -k flash_linear_attention || status=$?
"$venv/bin/python" -m pytest --numprocesses=auto --dist=worksteal -o cache_dir="$work/pytest" \
    suites/toy/model suites/toy/engine suites/toy/kernels suites/parity/{tensors,scores,likelihood} suites/docs/test_consoles.py \
    suites/repository/test_mutation.py \
    -k "not (shows_what_is_printed and ($elsewhere))" "${long[@]/#/--ignore=}" "$@" || status=$?
if ((${#long[@]})); then
    printf '\n== not run here: %s, and the consoles of the documentation that score; ci/stage_toy.sh runs them\n' "${long[*]}"
fi
exit "$status"
