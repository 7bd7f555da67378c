#!/usr/bin/env bash
# Unpack a wheel of vLLM without its libraries, if that was not done before; print the folder that holds `vllm`.
#
#   ci/unpack_vllm.sh PYTHON FOLDER NAME==VERSION     the Python whose pip fetches it, where it is kept, and which
set -euo pipefail
python=$1 folder=$2 wheel=$3
tree=$folder/${wheel/==/-}
if [[ ! -d $tree ]]; then
    mkdir -p "$folder"
    part=$(mktemp -d "$folder/.part.XXXXXX")
    "$python" -m pip download --quiet --no-deps --only-binary :all: --dest "$part/wheel" "$wheel" >&2
    "$python" - "$part" <<'PYTHON'
import pathlib, sys, zipfile

part = pathlib.Path(sys.argv[1])
with zipfile.ZipFile(next((part / "wheel").glob("*.whl"))) as wheel:
    wheel.extractall(part / "tree", [name for name in wheel.namelist() if ".so" not in pathlib.PurePath(name).suffixes])
PYTHON
    mv "$part/tree" "$tree"
    rm -rf "$part"
fi
printf '%s\n' "$tree"
