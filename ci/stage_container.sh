#!/usr/bin/env bash
# Builds the container of the gate (ci/examples/Containerfile) with buildah, from the files that git knows, and runs the gate in it,
# as its own user and without a network: on the engine `sample`, on a fault that must fail, and on a vLLM if one is named. Needs
# root, buildah and a base image. Exits 1 if a part does not end as it must.
#
#   CACHEWITNESS_BASE         an image in place of the Containerfile's own, as buildah names it (docker://…, oci-archive:…)
#   CACHEWITNESS_BUILD        more options for `buildah build`, such as --volume for pip's settings
#   CACHEWITNESS_VLLM_SOURCE  a folder that holds `vllm`
set -euo pipefail
cd "$(dirname "$0")/.."
exec </dev/null

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
command -v buildah >/dev/null || { echo "stage_container: buildah is missing (Debian: apt-get install buildah)" >&2; exit 1; }
store=(--storage-driver vfs --root "$work/store" --runroot "$work/run")
failed=()

# expect CODE NAME ENGINE [OPTION…]: run the gate of the container, which must end with that code.
expect() {
    local code=$1 name=$2 ended=0
    shift 2
    printf '\n== %s\n' "$name"
    mkdir -p "$work/$name" && chmod 777 "$work/$name"
    unshare --net buildah "${store[@]}" run --isolation chroot --user gate --env CACHEWITNESS_SECONDS=1 \
        --volume "$work/$name:/artefacts" \
        ${CACHEWITNESS_VLLM_SOURCE:+--volume "$CACHEWITNESS_VLLM_SOURCE:/fork:ro"} \
        "$box" -- /opt/cachewitness/ci/gate.sh "$@" >"$work/output" 2>&1 || ended=$?
    grep '^gate: ' "$work/output" || tail -n 20 "$work/output"
    [[ $ended == "$code" && -s $work/$name/report.json ]] || failed+=("$name: exit code $ended, not $code")
}

mkdir "$work/context"
git archive HEAD | tar -x -C "$work/context"
# shellcheck disable=SC2086 # words of options
buildah "${store[@]}" build --isolation chroot --network host ${CACHEWITNESS_BASE:+--from "$CACHEWITNESS_BASE"} \
    ${CACHEWITNESS_BUILD:-} --file ci/examples/Containerfile --tag cachewitness "$work/context"

box=$(buildah "${store[@]}" from --pull-never localhost/cachewitness)
expect 0 sample sample
expect 1 fault reference:mutant=hit-is-maximum-over-groups --layout full-mamba --suite invariants --fail-fast
[[ -z ${CACHEWITNESS_VLLM_SOURCE:-} ]] || expect 0 vllm vllm:source=/fork --layout full-mamba --suite invariants

if ((${#failed[@]})); then
    printf '\nfailed: %s\n' "${failed[@]}"
    exit 1
fi
printf '\nthe container was built and gates\n'
