# Sourced by the scripts on lmdeploy: an environment in which the scheduler of its PyTorch engine can be imported on a CPU.
#
#   lmdeploy_scheduler FOLDER lmdeploy==VERSION     makes FOLDER/venv: torch, the wheel without its requirements, what the scheduler imports
# shellcheck shell=bash
lmdeploy_scheduler() {
    local folder=$1 package=$2 index=()
    "${PYTHON:-python3}" -m venv "$folder/venv"
    [[ -n ${TORCH_INDEX:-} ]] && index=(--extra-index-url "$TORCH_INDEX")
    "$folder/venv/bin/python" -m pip install -qq --disable-pip-version-check "${index[@]}" torch==2.13.0
    "$folder/venv/bin/python" -m pip install -qq --disable-pip-version-check numpy==2.4.6 psutil==7.2.2 pydantic==2.14.4
    "$folder/venv/bin/python" -m pip install -qq --disable-pip-version-check --no-deps "$package"
}
