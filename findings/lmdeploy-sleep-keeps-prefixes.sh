#!/usr/bin/env bash
# lmdeploy's PyTorch engine wakes up with the prefixes that it had before it slept, and memory of zeros in their place.
#
# Package     lmdeploy 0.18.0 (its scheduler and `Engine.sleep` and `wakeup`; the executor is a stand-in that does nothing)
# Surprise    Sleeping lets the memory of keys and values go (`self.cache_engine = None`, pytorch/engine/model_agent/agent.py), and waking
#             up allocates it anew, of zeros. `Engine.sleep` ends all sessions, "since it releases the KV cache", as a comment says, but
#             nobody tells the prefix trie, which has no call to forget anything. The next prompt with a known beginning is told that it
#             is cached, and attends to zeros. New weights, for which one sleeps with level 2, meet the same.
# Who         Training with rollouts (sleep, update, wake up) and servers that are put to sleep, with `enable_prefix_caching=True`: every
#             system prompt, few-shot prompt or conversation of before. Nothing is logged.
# Documented  No.
# Upstream    lmdeploy#4917, closed: weights updated without a sleep meet old prefixes; a sleep first, which destroys the cache, is said to be
#             the way. It destroys the memory and not the prefixes.
set -euo pipefail
lib=$(cd "$(dirname "${BASH_SOURCE[0]}")/lib" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck source=lib/lmdeploy.sh
source "$lib/lmdeploy.sh"
lmdeploy_scheduler "$work" lmdeploy==0.18.0
cd "$work"
export HOME=$work PYTHONPATH=$lib
"$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
import asyncio
import importlib
import sys
from types import ModuleType, SimpleNamespace

from lmdeploy_paging import Engine, enter

OTHERS = {"adapter.adapter": ["AdapterManager"], "engine.config_builder": ["ConfigBuilder"], "engine.engine_checker": ["EngineChecker"],
          "engine.executor": ["build_executor", "get_distributed_executor_backend"], "disagg.conn.engine_conn": ["EngineP2PConnection"]}
version = enter()
for name, classes in OTHERS.items():
    module = sys.modules[f"lmdeploy.pytorch.{name}"] = ModuleType(name)
    vars(module).update(dict.fromkeys(classes, object))
server = object.__new__(importlib.import_module("lmdeploy.pytorch.engine.engine").Engine)


class Executor:
    """What the real one does is read in the source: the memory goes, and comes back as zeros."""

    async def sleep(self, level):
        print("sleep: the executor lets the memory of keys and values go")

    def wakeup(self, tags):
        print("wakeup: the executor allocates it anew, of zeros")


async def night():
    await server.sleep()
    server.wakeup()


def nothing(*args, **kwargs):
    return None


print("lmdeploy", version)
print("expected: a prompt from before the sleep is computed anew\n")
engine = Engine(blocks=20)
server.scheduler, server.executor, server._engine_loop, server._multimodal_session_end_count = engine.scheduler, Executor(), None, 0
server.req_manager = SimpleNamespace(block_request_types=nothing, unblock_request_types=nothing, reject_request=nothing)
engine.submit(range(1000, 1200))
told = [engine.forward()[0] for _ in range(3)]
print(f"a prompt of 200 tokens computes [{told[0][0][1]},{told[0][0][2]})")
asyncio.run(night())
engine.maker.reset_runtime_state()
engine.sent = None
again = engine.submit(range(1000, 1200))
_, start, stop, _ = engine.forward()[0][0]
print(f"the same prompt computes [{start},{stop}); {again.cached_tokens} tokens are cached, its client is told")
if (start, again.cached_tokens) != (192, 192):
    raise SystemExit(f"changed: it computes from {start} on, and {again.cached_tokens} tokens are cached")
print("\nseen: 192 tokens are read from memory that nobody has written since it was allocated")
PYTHON
