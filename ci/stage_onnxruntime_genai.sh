#!/usr/bin/env bash
# Run the suites at answers level on the installed ONNX Runtime GenAI, on tiny models that are made here, and the tests that need
# it. No GPU, no download of weights: the models are random and are exported by its own builder.
# Arguments go to `cachewitness run`. Exits with the first status that is not 0, after everything has run.
#
#   CACHEWITNESS_ONNXRUNTIME_GENAI_CACHE  where the environment and the models are kept between runs (~1.6 GB)
#   CACHEWITNESS_TORCH_INDEX              index of CPU builds of torch; empty for none but the configured ones
#   PYTHON                                the Python that makes the environment; `python3.11` if unset
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${CACHEWITNESS_ONNXRUNTIME_GENAI_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/cachewitness/onnxruntime-genai}
venv=$(ci/pinned_venv.sh "$cache" ci/onnxruntime_genai_requirements.txt)
"$venv/bin/python" -m pip install --quiet -e '.[dev]' -c ci/constraints.txt
export HF_HUB_OFFLINE=1

# The models are named after what makes them.
models=$cache/models-$(cat ci/onnxruntime_genai_requirements.txt ci/onnxruntime_genai_models.py | sha256sum | cut -c1-12)
mkdir -p "$models"
for model in qwen3_5 lfm2 llama; do
    [[ -e $models/$model/genai_config.json ]] && continue
    "$venv/bin/python" ci/onnxruntime_genai_models.py "$model" "$models" >"$models/$model.log" 2>&1 ||
        { tail -20 "$models/$model.log"; echo "stage_onnxruntime_genai: the model $model could not be made"; exit 2; }
done

export CACHEWITNESS_ONNXRUNTIME_GENAI_MODELS=$models
status=0
for options in model=qwen3_5 model=lfm2 model=llama model=qwen3_5,buffer=grown model=llama,buffer=grown model=qwen3_5,answer=left; do
    printf '\n== %s\n' "$options"
    "$venv/bin/python" -m cachewitness.cli run --engine "onnxruntime-genai:$options" "$@" || status=$((status ? status : $?))
done
printf '\n== tests\n'
"$venv/bin/python" -m pytest suites/systems/onnxruntime_genai/test_answers.py || status=$((status ? status : $?))
exit "$status"
