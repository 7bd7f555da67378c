#!/usr/bin/env bash
# The checks of this repository: lint, format, types, imports, dead code, spelling, changelog, tests. Every stage runs, also
# after one has failed, and says how long it took; exits 1 if any did. Needs the `dev` extra in the Python that `python` names:
# pip install -e '.[dev]' -c ci/constraints.txt
set -uo pipefail
cd "$(dirname "$0")/.."

# The tests start hundreds of processes, and each would compile the package anew: where nothing may be written beside the sources,
# what is compiled is kept elsewhere until the end.
if [[ -n ${PYTHONDONTWRITEBYTECODE-} ]]; then
    compiled=$(mktemp -d)
    trap 'rm -rf "$compiled"' EXIT
    export PYTHONPYCACHEPREFIX=$compiled
    unset PYTHONDONTWRITEBYTECODE
fi

failed=()
stage() {
    local name=$1 began=$SECONDS
    shift
    printf '\n== %s: %s\n' "$name" "$*"
    "$@" || failed+=("$name")
    printf '%s took %d s\n' "$name" "$((SECONDS - began))"
}

changelog() {
    # A draft reads every fragment and refuses a name that is not <slug>.<added|changed|fixed|removed>.md.
    local output
    output=$(python -m towncrier build --draft --version unreleased 2>&1) || { printf '%s\n' "$output"; return 1; }
}

# The tests are compiled beside the other checks, once: otherwise each worker would compile all of them. Errors are the tests' stage's.
python -m pytest --collect-only >/dev/null 2>&1 &
collected=$!

stage lint python -m ruff check .
stage format python -m ruff format --check .
stage types python -m mypy
stage types-ci python -m mypy --strict ci
stage types-benchmarks python -m mypy --strict -p benchmarks
stage imports python ci/lint_imports.py
stage dead-code python -m vulture
stage spelling python -m codespell_lib
stage changelog changelog
# Twice as many workers as cores: about as often as they compute, tests wait for a process that is slow or hangs on purpose.
workers=$(python -c 'import os; print(2 * len(os.sched_getaffinity(0)))')
wait "$collected"
stage tests python -m pytest --numprocesses="$workers" --dist=worksteal

cat <<'END'

== not run here
toy    tensors, cold against cached, scores: whatever "not run" lists above   ci/stage_toy.sh
cuda   the same on a GPU                                                      docs/gpu.md
all    the configurations, faults and operations that tests took some of      ci/stage_all.sh
mutants  every seeded fault, hunted anew                                       ci/stage_mutants.sh
vllm   two real releases, and faults patched into them                        ci/stage_vllm.sh
lmcache  the installed LMCache, and faults patched into it                     ci/stage_lmcache.sh
llama  the real llama.cpp's server on tiny hybrid models                       ci/stage_llama_cpp.sh
likelihood  likelihoods of a real pretrained hybrid on four engines            ci/stage_likelihood.sh
openvino  the real OpenVINO GenAI on tiny hybrid models                        ci/stage_openvino.sh
transformers  the installed transformers on tiny hybrid models                 ci/stage_transformers.sh
mlx    the installed mlx-lm on tiny hybrid models                             ci/stage_mlx.sh
onnxruntime-genai  the installed ONNX Runtime GenAI on tiny models           ci/stage_onnxruntime_genai.sh
campaign  campaigns on a real PostgreSQL server and a real Ray cluster        ci/stage_campaign.sh
routers  the installed Dynamo's radix tree behind key events                    ci/stage_routers.sh
sglang  the installed SGLang, and faults patched into it                       ci/stage_sglang.sh
lmdeploy  the installed lmdeploy, and faults patched into it                   ci/stage_lmdeploy.sh
exllamav3  the installed exllamav3, and faults patched into it                 ci/stage_exllamav3.sh
server  a real vLLM server on a CPU, scored and broken                        ci/stage_vllm_server.sh
readers  a million changed files, each taken or refused                       ci/stage_readers.sh
coverage  lines and branches that the tests run, by room                      ci/stage_coverage.sh
site   the documentation as a site, without a warning                         ci/stage_site.sh
package  wheel and sdist, built twice, installed as a user would               ci/stage_package.sh
container  the gate's container, built and run without a network               ci/stage_container.sh
pythons  the tests on every Python that is supported and found                ci/stage_pythons.sh
END

if ((${#failed[@]})); then
    printf '\nfailed: %s\n' "${failed[*]}"
    exit 1
fi
printf '\nevery stage passed\n'
