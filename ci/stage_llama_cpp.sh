#!/usr/bin/env bash
# Run the suites at answers level on the real llama.cpp, on tiny hybrid models that are made here, and the tests that need it.
# Then the same suites on its server by its URL, as on any server (docs/your-server.md).
# No GPU, no compiler, no download of weights: the models are random and are written as GGUF.
# Arguments go to `cachewitness run`. Exits with the first status that is not 0, after everything has run.
#
#   CACHEWITNESS_LLAMA_CPP_CACHE   where the environment and the models are kept between runs (~400 MB)
#   CACHEWITNESS_LLAMA_CPP_ONLY    the models that are run, separated by blanks; default: all
#   PYTHON                         the Python that makes the environment (3.11 or later)
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${CACHEWITNESS_LLAMA_CPP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/cachewitness/llama_cpp}
engine=(xllamacpp==2026.10.11549 gguf==0.19.0 numpy==2.4.6)
names=${CACHEWITNESS_LLAMA_CPP_ONLY:-qwen3-next qwen35 granite-hybrid falcon-h1 lfm2 jamba nemotron-h gemma3 gpt-oss qwen3}

run=$cache/run
if [[ ! -e $run/.ready ]]; then
    rm -rf "$run"
    "${PYTHON:-python3}" -m venv "$run"
    "$run/bin/python" -m pip install --quiet "${engine[@]}"
    touch "$run/.ready"
fi
"$run/bin/python" -m pip install --quiet -e '.[dev]' -c ci/constraints.txt

export CACHEWITNESS_LLAMA_CPP_MODELS=$cache/models
"$run/bin/python" ci/llama_cpp_models.py "$CACHEWITNESS_LLAMA_CPP_MODELS"

status=0
windows() { [[ $1 == gemma3 || $1 == gpt-oss ]]; } # does the model have sliding windows?
for model in $names; do
    printf '\n== %s\n' "$model"
    "$run/bin/python" -m cachewitness.cli run --engine "llama-cpp:model=$model" "$@" || status=$((status ? status : $?))
done
server=
trap '[[ -z $server ]] || kill "$server" 2>/dev/null || true' EXIT
address=$(mktemp)
for model in $names; do
    printf '\n== %s, by its URL\n' "$model"
    cells=shared # where slots share their cells a window may lack a token (docs/systems/llama_cpp-notes.md)
    windows "$model" && cells=apart
    : >"$address" # the last server's address is not this one's
    "$run/bin/python" ci/llama_cpp_server.py "$CACHEWITNESS_LLAMA_CPP_MODELS/$model.gguf" "$cells" >"$address" 2>/dev/null &
    server=$!
    until grep -q '^http' "$address"; do
        kill -0 "$server" || { echo "stage_llama_cpp: the server of $model ended before it answered" >&2; exit 2; }
        sleep 0.1
    done
    "$run/bin/python" -m cachewitness.cli run --engine "openai-server:url=$(grep '^http' "$address"),block=32,dtype=float32" "$@" ||
        status=$((status ? status : $?))
    kill "$server"
    wait "$server" 2>/dev/null || true
    server=
done
rm -f "$address"

printf '\n== tests\n'
"$run/bin/python" -m pytest suites/systems/llama_cpp/test_{answers,slot_cuts,plan}.py || status=$((status ? status : $?))
exit "$status"
