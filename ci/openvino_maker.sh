#!/usr/bin/env bash
# Print the folder of the environment that exports models for OpenVINO; make it first, unless it is there (1.8 GB). Its transformers is
# too new to be exported: `4.57.6` and `5.2.0` in that folder hold releases that are not, for PYTHONPATH.
#
#   ci/openvino_maker.sh CACHE
#
#   CACHEWITNESS_TORCH_INDEX  index of CPU builds of torch; empty for none but the configured ones
#   PYTHON                    the Python that makes the environment (3.11 or later)
set -euo pipefail
maker=$1/maker
if [[ ! -e $maker/.ready ]]; then
    rm -rf "$maker"
    "${PYTHON:-python3}" -m venv "$maker"
    index=${CACHEWITNESS_TORCH_INDEX-https://download.pytorch.org/whl/cpu}
    {
        "$maker/bin/python" -m pip install --quiet ${index:+--extra-index-url "$index"} torch==2.13.0
        "$maker/bin/python" -m pip install --quiet transformers==5.5.4 'huggingface-hub<1.22' 'requests<3,>=2.33' setuptools
        "$maker/bin/python" -m pip install --quiet --no-deps optimum==2.3.0 optimum-intel==2.2.0
        "$maker/bin/python" -m pip install --quiet nncf==3.4.0 openvino==2026.4.1 openvino-tokenizers==2026.4.1.0
        "$maker/bin/python" -m pip install --quiet --no-deps --target "$maker/4.57.6" \
            transformers==4.57.6 'huggingface-hub<1.0' 'tokenizers<0.23'
        "$maker/bin/python" -m pip install --quiet --no-deps --target "$maker/5.2.0" transformers==5.2.0
    } >&2
    touch "$maker/.ready"
fi
printf '%s\n' "$maker"
