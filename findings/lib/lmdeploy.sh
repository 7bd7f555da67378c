# Sourced by the scripts on lmdeploy, with `work` and `lib` set: installs its wheel without its dependencies, and what its scheduler imports.
# shellcheck shell=bash disable=SC2154
"${PYTHON:-python3}" -m venv "$work/venv"
index=()
[[ -n ${TORCH_INDEX:-} ]] && index=(--extra-index-url "$TORCH_INDEX")
"$work/venv/bin/python" -m pip install -qq --disable-pip-version-check "${index[@]}" torch==2.13.0
"$work/venv/bin/python" -m pip install -qq --disable-pip-version-check numpy==2.4.6 psutil==7.2.2 pydantic==2.14.4
"$work/venv/bin/python" -m pip install -qq --disable-pip-version-check --no-deps lmdeploy==0.18.0
cd "$work"
export HOME=$work PYTHONPATH=$lib
