# Sourced by the scripts on exllamav3: an environment in which its generator can be imported on a CPU.
#
#   exllamav3_generator FOLDER exllamav3==VERSION     makes FOLDER/venv: torch, the wheel without its requirements, what the generator imports
# shellcheck shell=bash
exllamav3_generator() {
    local folder=$1 package=$2 index=()
    "${PYTHON:-python3}" -m venv "$folder/venv"
    [[ -n ${TORCH_INDEX:-} ]] && index=(--extra-index-url "$TORCH_INDEX")
    "$folder/venv/bin/python" -m pip install -qq --disable-pip-version-check "${index[@]}" torch==2.13.0
    "$folder/venv/bin/python" -m pip install -qq --disable-pip-version-check numpy==2.4.6 pydantic==2.14.4
    "$folder/venv/bin/python" -m pip install -qq --disable-pip-version-check --no-deps "$package"
}
