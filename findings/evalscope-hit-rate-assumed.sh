#!/usr/bin/env bash
# EvalScope's benchmark of conversations reports the cache hit rate that would be possible where the server reports none, and calls it the rate.
#
# Package     evalscope 1.14.1 (`evalscope perf --multi-turn`) before a stand-in that answers HTTP and has no cache
# Surprise    Where an answer's usage has no `prompt_tokens_details.cached_tokens`, the tokens of the turn before, prompt and answer, are
#             counted as cached (evalscope/perf/core/strategies/multi_turn.py, "Estimation heuristic"). Table and results show that as
#             "Cache Hit (%)", "Cache Hit Rate (%)" and "Cached Prompt tok/s" without a mark, and "Eligible Cache Hit Rate (%)", "the
#             fraction of theoretically-cacheable tokens the server actually reused", is 100 by construction. vLLM reports no such details
#             unless it is started with `--enable-prompt-tokens-details`, SGLang unless with `--enable-cache-report`.
# Who         Whoever measures hit rates of engines with their defaults: with prefix caching off, or with a cache that loses every prefix,
#             the rate is the best there is. Switching the report on makes it fall.
# Documented  In two ways: of the rate it is said that it "requires prefix caching enabled on the server and `cached_tokens` field returned", and
#             that a low one means "server prefix cache isn't enabled or evicts too aggressively"; of one example, that 58 % "of input
#             tokens came from conversation history". Until May 2026 the rate was named "approx".
# Upstream    No report known.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
pip() { "$work/venv/bin/python" -m pip install -qq --disable-pip-version-check "$@"; }
pip --no-deps evalscope==1.14.1
# What `evalscope.perf` imports; pip takes many minutes to agree on all that the package requires.
pip aiohttp==3.14.5 colorlog==6.12.0 datasets==5.2.0 docstring_parser==0.18.0 editdistance==0.8.1 fastapi==0.165.0 filetype==1.2.0 jinja2==3.1.6 \
    jsonlines==4.0.0 jsonschema==4.26.0 numpy==2.4.6 openai==3.57.0 pandas==3.1.1 pillow==13.0.0 pydantic==2.14.4 PyYAML==6.0.4 requests==2.34.2 \
    rich==15.0.0 sse-starlette==3.7.0 tabulate==0.10.0 tqdm==4.70.1 uvicorn==0.54.0
cd "$work"
HOME=$work HF_HUB_OFFLINE=1 "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
import contextlib, io, json, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

from evalscope.perf.arguments import Arguments
from evalscope.perf.main import run_perf_benchmark

TURNS, WORDS, ANSWER = 4, 80, 20


class Server(BaseHTTPRequestHandler):
    """An engine without a cache: a token for each word, and what `details` makes of a prompt's length as its details."""

    details = None

    def log_message(self, *_):
        pass

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        prompt = sum(len(message["content"].split()) for message in asked["messages"])
        usage = {"prompt_tokens": prompt, "completion_tokens": ANSWER, "total_tokens": prompt + ANSWER}
        if self.details:
            usage["prompt_tokens_details"] = self.details(prompt)
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "a " * ANSWER}}
        body = json.dumps({"id": "x", "object": "chat.completion", "created": 0, "model": "m", "usage": usage, "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
turns = [{"role": "user", "content": "w " * WORDS}, {"role": "assistant", "content": "-"}] * TURNS
with open("conversations.jsonl", "w") as file:
    file.writelines(json.dumps(turns) + "\n" for _ in range(3))


def rates(details, folder):
    """Run the benchmark; return the hit rate and the eligible one, in percent."""
    Server.details = staticmethod(details) if details else None
    arguments = Arguments(
        model="m", url=f"http://127.0.0.1:{server.server_port}/v1/chat/completions", api="openai", dataset="custom_multi_turn",
        dataset_path="conversations.jsonl", multi_turn=True, number=3, parallel=1, stream=False, no_test_connection=True, outputs_dir=folder,
    )  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):
        found = next(iter(run_perf_benchmark(arguments).values()))
    eligible = next(row for row in found["trace_summary"].rows if row.metric == "Eligible Cache Hit Rate (%)")
    return round(found["metrics"].avg_cached_percent, 1), round(eligible.mean, 1)


print("evalscope", version("evalscope"))
print("expected: no hit rate, or a rate that is marked as the greatest possible one, where the server says nothing of its cache\n")
print("what the server reports    Cache Hit (%)   Eligible Cache Hit Rate (%)")
seen = {}
reports = {
    "nothing": None,
    "0 cached tokens": lambda prompt: {"cached_tokens": 0},
    "a half of each prompt": lambda prompt: {"cached_tokens": prompt // 2},
}
for name, details in reports.items():
    seen[name] = rates(details, f"outputs{len(seen)}")
    print(f"{name:27}{seen[name][0]:<16}{seen[name][1]}")
prompts = [turn * WORDS + (turn - 1) * ANSWER for turn in range(1, TURNS + 1)]
possible = round(100 * sum(prompt + ANSWER for prompt in prompts[:-1]) / sum(prompts), 1)
if seen["nothing"] != (possible, 100) or seen["0 cached tokens"] != (0, 0) or seen["a half of each prompt"][0] != 50:
    raise SystemExit(f"changed: {seen}")
print("\nseen: a server without a cache has the best rate there is, as long as it does not report")
PYTHON
