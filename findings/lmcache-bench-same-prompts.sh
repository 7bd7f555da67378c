#!/usr/bin/env bash
# LMCache's `random-prefill` benchmark sends the same prompts in every run and with every seed; its "shared prompt" is shared by no two sessions.
#
# Package     lmcache 0.5.6 (`lmcache bench engine`) before a stand-in that answers HTTP
# Surprise    Two workloads are not what they are called. `random-prefill`, which measures the speed of prefill and has no warm-up, sends
#             "Request 0: hi hi hi ...": nothing of it is random, and `--seed` is taken and not read (workloads/random_prefill.py). A second
#             run finds the first one's prompts in the engine or in LMCache, and its prefill is a hit. `multi-round-chat` has a
#             `--mrc-shared-prompt-length`, and begins each session's system prompt with the session's number (workloads/
#             multi_round_chat.py), so two sessions differ in the second word and share no block.
# Who         Whoever repeats a run to compare two settings, or the first run's speed with another seed's: the second is faster, whatever
#             it changed. Whoever reads a hit rate of the chat as that of a shared system prompt.
# Documented  No. The help has "Random seed" for all workloads, and "System prompt token length" for the shared one.
# Upstream    No report known. vLLM warns since 2026 of the same with a repeated seed (vllm-project/vllm#52884); there another seed helps.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
pip() { "$work/venv/bin/python" -m pip install -qq --disable-pip-version-check "$@"; }
pip openai==3.57.0 prometheus_client==0.24.1
pip --no-deps lmcache==0.5.6
cd "$work"
HOME=$work LMCACHE_DISABLE_BANNER=1 "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
import contextlib, json, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

from lmcache.cli.main import main

asked = []


class Server(BaseHTTPRequestHandler):
    """An engine that answers one word, and remembers the prompts."""

    def log_message(self, *_):
        pass

    def do_POST(self):
        messages = json.loads(self.rfile.read(int(self.headers["content-length"])))["messages"]
        asked.append(" ".join(message["content"] for message in messages))
        chunk = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "m"}
        word = [{"index": 0, "delta": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}]
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        body = "".join(f"data: {json.dumps(part)}\n\n" for part in (chunk | {"choices": word}, chunk | {"choices": [], "usage": usage})).encode()
        body += b"data: [DONE]\n\n"
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def prompts(workload, seed, *options):
    """Run a workload; return the prompts that the engine was asked."""
    asked.clear()
    general = ["--engine-url", f"http://127.0.0.1:{server.server_port}", "--model", "m", "--tokens-per-gb-kvcache", "1000", "--kv-cache-volume", "1"]
    with contextlib.redirect_stdout(sys.stderr):
        main(["bench", "engine", *general, "--no-csv", "--quiet", "--workload", workload, "--seed", str(seed), *options])
    return list(asked)


def shared(one, other):
    """Count the words that two prompts share in front."""
    one, other = one.split(), other.split()
    return next((at for at, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
print("lmcache", version("lmcache"))
print("expected: another seed draws other prompts; sessions with a shared prompt of 100 tokens share 100\n")
first, second = (sorted(prompts("random-prefill", seed, "--rp-request-length", "300", "--rp-num-requests", "4")) for seed in (1, 2))
words = {word for prompt in first for word in prompt.split()[2:]}
again = sum(prompt in first for prompt in second)
print(f"random-prefill     {len(first)} prompts with seed 1; with seed 2 {again} of {len(second)} are the same; behind 'Request N:' the words {sorted(words)}")
chat = prompts("multi-round-chat", 1, "--mrc-shared-prompt-length", "100", "--mrc-chat-history-length", "200", "--mrc-duration", "1", "--mrc-qps", "4")
fronts = {prompt.split(".")[0]: prompt for prompt in reversed(chat)}
one, other = fronts["Session 0"], fronts["Session 1"]
print(f"multi-round-chat   {len(fronts)} sessions; the first words {' '.join(one.split()[:5])!r}, {' '.join(other.split()[:5])!r}: {shared(one, other)} shared")
if (len(first), again, words, shared(one, other)) != (4, 4, {"hi"}, 1):
    raise SystemExit(f"changed: {len(first)}, {again}, {sorted(words)}, {shared(one, other)}")
print("\nseen: a second run's prompts are the first one's, whatever the seed; two sessions share one word")
PYTHON
