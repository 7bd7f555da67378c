#!/usr/bin/env bash
# LMCache's cache simulator foresees hit rates of another cache than LMCache's: it evicts a prompt's first chunks first, and knows no salts.
#
# Package     lmcache 0.5.6 (`lmcache tool cache-simulator`, and the server's own eviction policy, keys and log of look-ups), torch 2.13.0
# Surprise    The simulator replays a server's look-ups through an LRU cache to say what hit rate a capacity gives. It inserts and touches a
#             prompt's chunks from the first to the last (tools/cache_simulator/simulator.py, "Update cache"), so that the first is evicted
#             first. The server's policy does it the other way round, since "if we first evict key1, due to prefix match, key2 and key3 will
#             not be hit" (v1/distributed/eviction_policy/lru.py). Where prompts do not all fit, the simulator foresees nothing, and the
#             policy keeps their fronts. And a chunk is known by its hash alone, while the server's key has the request's salt too, which
#             the log leaves out: what users with salts of their own ask is foreseen as hits of one another.
# Who         Whoever sizes a cache by the simulator, or takes a workload's hit rate from it.
# Documented  The other way round: "The simulator enforces the same prefix rule as LMCache", "the same definition used by the LMCache server
#             itself" (which by its source leaves the tokens behind the last full chunk out of its rate; the simulator counts them).
# Upstream    No report known.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
pip() { "$work/venv/bin/python" -m pip install -qq --disable-pip-version-check "$@"; }
index=()
[[ -n ${TORCH_INDEX:-} ]] && index=(--extra-index-url "$TORCH_INDEX")
pip "${index[@]}" torch==2.13.0
pip numpy==2.2.6 numba==0.68.1 sortedcontainers==2.4.0 nvtx==0.2.17 psutil==7.2.2 py-cpuinfo==9.0.0 requests==2.34.2 aiohttp==3.14.5 cachetools==8.0.2 \
    cryptography==50.0.2 PyYAML==6.0.4 prometheus_client==0.24.1 opentelemetry-sdk==1.40.0
pip --no-deps lmcache==0.5.6
cd "$work"
HOME=$work LMCACHE_DISABLE_BANNER=1 LMCACHE_TRACK_USAGE=false "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
import math
from importlib.metadata import version
from pathlib import Path

from lmcache.tools.cache_simulator.simulator import compute_kv_bytes_per_chunk, load_lookup_events, simulate
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.eviction_policy.lru import LRUEvictionPolicy
from lmcache.v1.mp_observability.event import Event, EventType
from lmcache.v1.mp_observability.subscribers.logging.lookup_hash import LookupHashLogConfig, LookupHashLoggingSubscriber

CHUNK = 256


def logged(requests, folder):
    """Log look-ups as the server does (`--lookup-hash-log-dir`), and read the log as the simulator does."""
    log = LookupHashLoggingSubscriber(LookupHashLogConfig(output_dir=folder))
    for at, (salt, hashes) in enumerate(requests):
        about = {"request_id": f"{at}", "model_name": "m", "cache_salt": salt, "chunk_size": CHUNK, "seq_len": CHUNK * len(hashes)}
        about |= {"chunk_hashes": hashes, "dtypes": ["bfloat16"], "shapes": [[1, CHUNK, 64]]}
        log._on_lookup_hashes(Event(EventType.MP_LOOKUP, metadata=about, timestamp=1.0 + at))
    log.shutdown()
    return load_lookup_events([Path(folder)])


def kept(requests, capacity):
    """Return the hit rate of so many chunks under the server's keys and policy, which takes one away for each that finds no room."""
    policy, stored, hits = LRUEvictionPolicy(), set(), 0
    for salt, hashes in requests:
        keys = [ObjectKey(chunk_hash=one, model_name="m", kv_rank=0, cache_salt=salt) for one in hashes]
        hit = next((at for at, key in enumerate(keys) if key not in stored), len(keys))
        hits += hit
        policy.on_keys_touched(keys[:hit])
        new = [key for key in keys if key not in stored]
        for key in new:
            if len(stored) == capacity:
                (action,) = policy.get_eviction_actions(math.ulp(0.0), lambda candidate: candidate not in keys)
                stored.difference_update(action.keys)
                policy.on_keys_removed(action.keys)
            stored.add(key)
        policy.on_keys_created(new)
    return hits / sum(len(hashes) for _, hashes in requests)


def prompt(name):
    return [bytes([name, at]) * 16 for at in range(10)]


CASES = {
    "two prompts in turn, room for both": ([("", prompt(at % 2)) for at in range(20)], 20),
    "two prompts in turn, room for three quarters": ([("", prompt(at % 2)) for at in range(20)], 15),
    "one prompt of five users, each with a salt": ([(f"user{at}", prompt(0)) for at in range(5)], 50),
}
print("lmcache", version("lmcache"))
print("expected: what the simulator foresees is what the server's policy and keys give\n")
print("prompts of 10 chunks                            foreseen   given")
seen = []
for at, (name, (requests, capacity)) in enumerate(CASES.items()):
    events = logged(requests, f"log{at}")
    size = compute_kv_bytes_per_chunk(events[0])
    seen.append((round(simulate(events, capacity * size, size)["token_hit_rate"], 2), round(kept(requests, capacity), 2)))
    print(f"{name:48}{seen[-1][0]:<11.0%}{seen[-1][1]:.0%}")
if seen[0] != (0.9, 0.9) or seen[1][0] != 0 or seen[1][1] < 0.2 or seen[2] != (0.8, 0) or any("salt" in key for key in events[0]):
    raise SystemExit(f"changed: {seen}, {sorted(events[0])}")
print("\nseen: the simulator's cache loses the front of a prompt first, and takes users for one another")
PYTHON
