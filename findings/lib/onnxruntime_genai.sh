# Sourced by scripts on onnxruntime-genai: an environment with it, and a model of random weights that its own builder exports.
#
#   onnxruntime_genai FOLDER onnxruntime-genai==VERSION MODEL     makes FOLDER/venv, and of MODEL (llama or qwen3_5) FOLDER/onnx
# shellcheck shell=bash
onnxruntime_genai() {
    local folder=$1 package=$2 model=$3 lib index=()
    lib=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
    "${PYTHON:-python3}" -m venv "$folder/venv"
    local pip=("$folder/venv/bin/python" -m pip install -qq --disable-pip-version-check)
    [[ -n ${TORCH_INDEX:-} ]] && index=(--extra-index-url "$TORCH_INDEX")
    "${pip[@]}" "${index[@]}" torch==2.13.0
    "${pip[@]}" "$package" onnxruntime==1.32.0 onnx==1.23.2 onnx_ir==1.1.0 transformers==5.24.0
    cd "$folder"
    export HOME=$folder HF_HUB_OFFLINE=1 PYTHONPATH=$lib
    "$folder/venv/bin/python" -m onnxruntime_genai_model "$model" >"$folder/log" 2>&1 || { tail -5 "$folder/log" >&2; exit 1; }
    "$folder/venv/bin/python" -m onnxruntime_genai.models.builder -i model -o onnx -p fp32 -e cpu -c cache \
        --extra_options exclude_embeds=false >>"$folder/log" 2>&1 || { tail -5 "$folder/log" >&2; exit 1; }
}
