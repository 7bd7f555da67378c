#!/usr/bin/env bash
# Run the suites at answers level on the real OpenVINO GenAI, on tiny hybrid models that are made here, and the tests that need
# it. No GPU, no download of weights: the models are random and are exported by optimum in an environment of its own.
# Arguments go to `cachewitness run`. Exits with the first status that is not 0, after everything has run.
#
#   CACHEWITNESS_OPENVINO_CACHE   where the environments and models are kept between runs (~4 GB)
#   CACHEWITNESS_TORCH_INDEX      index of CPU builds of torch; empty for none but the configured ones
#   PYTHON                        the Python that makes the environments (3.11 or later)
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${CACHEWITNESS_OPENVINO_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/cachewitness/openvino}
engine=(openvino-genai==2026.4.1.0 openvino==2026.4.1 openvino-tokenizers==2026.4.1.0)
models=$cache/models-$(sha256sum <ci/openvino_models.py | cut -c1-12) # those of another maker are not these
export CI=true # openvino_telemetry sends nothing there

# The engine's environment: its three wheels and this repository.
run=$cache/run
if [[ ! -e $run/.ready ]]; then
    rm -rf "$run"
    "${PYTHON:-python3}" -m venv "$run"
    "$run/bin/python" -m pip install --quiet "${engine[@]}"
    touch "$run/.ready"
fi
"$run/bin/python" -m pip install --quiet -e '.[dev]' -c ci/constraints.txt

make_model() { # name, release of transformers
    [[ -e $models/$1/openvino_model.xml ]] && return
    local maker
    maker=$(ci/openvino_maker.sh "$cache")
    mkdir -p "$models"
    rm -rf "${models:?}/$1"
    PYTHONPATH=$maker/$2 "$maker/bin/python" ci/openvino_models.py "$1" "$models" >"$models/$1.log" 2>&1 ||
        { tail -20 "$models/$1.log"; echo "stage_openvino: the model $1 could not be made"; exit 2; }
}

make_model qwen3-next 4.57.6
make_model llama 4.57.6
make_model lfm2 5.2.0
make_model qwen3-next-wide 4.57.6
make_model llama-narrow 4.57.6

export CACHEWITNESS_OPENVINO_MODELS=$models
status=0
for model in qwen3-next lfm2; do
    printf '\n== %s\n' "$model"
    "$run/bin/python" -m cachewitness.cli run --engine "openvino-genai:model=$model" "$@" || status=$((status ? status : $?))
    printf '\n== %s, settings=more\n' "$model"
    "$run/bin/python" -m cachewitness.cli run --engine "openvino-genai:model=$model,settings=more" --suite answers "$@" || status=$((status ? status : $?))
done
for settings in usual more; do
    # Attention alone has two of the findings, with clients that go away and with requests at once; without these it has none.
    printf '\n== llama, settings=%s\n' "$settings"
    "$run/bin/python" -m cachewitness.cli run --engine "openvino-genai:model=llama,settings=$settings" \
        --option avoid=aborts+company "$@" || status=$((status ? status : $?))
done
for model in qwen3-next-wide llama-narrow; do
    printf '\n== capacities, %s\n' "$model"
    "$run/bin/python" -m cachewitness.cli consume fixtures/vectors/openvino_genai/sizing.json \
        --engine "openvino-genai:model=$model" || status=$((status ? status : $?))
done
printf '\n== tests\n'
"$run/bin/python" -m pytest suites/systems/openvino_genai/test_answers.py suites/systems/openvino_genai/test_checkpoint.py suites/systems/openvino_genai/test_capacity.py suites/systems/openvino_genai/test_precisions.py || status=$((status ? status : $?))
exit "$status"
