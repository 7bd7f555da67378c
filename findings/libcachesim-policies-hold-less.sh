#!/usr/bin/env bash
# Two of libCacheSim's policies hold less than the cache has room for: W-TinyLFU nothing below 100 objects, Clock-Pro half of it.
#
# Package     libcachesim 0.3.5 (the Python bindings of libCacheSim)
# Surprise    A policy that is given room for N objects of equal size is compared with others that hold N. `WTinyLFU` gives its window 1 % of
#             the room, and whatever does not fit in the window is not admitted: with room for 99 objects it holds none and misses always,
#             with room for 100 it is among the best. `ClockPro` holds `init_ratio_cold` of the room and no more, however long it runs: 0.5 by
#             default, where the docstring says 1, so half of the room stays empty. With 1.0 it is better than LRU. Neither says a word.
# Who         Whoever compares policies for caches of few large objects (the KV of prompts and documents, states of conversations), or takes
#             the miss ratio of these two from a simulation.
# Documented  No; of `init_ratio_cold`, "initial ratio of cold pages (default: 1)".
# Upstream    No report known; that Clock-Pro is behind Clock on small caches was seen when it was added (1a1a11a/libCacheSim pull #129).
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -qq --disable-pip-version-check libcachesim==0.3.5 numpy==2.4.6
cd "$work"
HOME=$work "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
import random
from importlib.metadata import version

from libcachesim import LRU, Clock, ClockPro, ReaderInitParam, TraceReader, TraceType, WTinyLFU

OBJECTS, REQUESTS = 300, 5000
draw = random.Random(0)
asked = draw.choices(range(OBJECTS), [1 / (rank + 1) ** 0.8 for rank in range(OBJECTS)], k=REQUESTS)
with open("trace.csv", "w") as file:
    file.write("time,object,size\n")
    file.writelines(f"{at},{name},1\n" for at, name in enumerate(asked))


def misses(policy):
    """Return (miss ratio, objects that are held at the end)."""
    columns = ReaderInitParam(has_header=True, has_header_set=True, delimiter=",", obj_id_is_num=True)
    columns.time_field, columns.obj_id_field, columns.obj_size_field = 1, 2, 3
    ratio, _ = policy.process_trace(TraceReader("trace.csv", TraceType.CSV_TRACE, columns))
    return round(ratio, 3), policy.get_n_obj()


def lru(room):
    """Return the same of an LRU of a few lines, the control."""
    held, missed = {}, 0
    for name in asked:
        missed += name not in held
        if name not in held and len(held) == room:
            del held[next(iter(held))]
        held.pop(name, None)
        held[name] = True
    return round(missed / REQUESTS, 3), len(held)


POLICIES = {
    "LRU": LRU, "Clock": Clock, "WTinyLFU": WTinyLFU, "WTinyLFU, window of 5 %": lambda cache_size: WTinyLFU(cache_size, window_size=0.05),
    "ClockPro": ClockPro, "ClockPro, all cold": lambda cache_size: ClockPro(cache_size, init_ratio_cold=1.0),
}
ROOMS = (50, 99, 100, 150)
print("libcachesim", version("libcachesim"))
print("expected: every policy fills the room it is given, and the better ones miss less than LRU\n")
print(f"{'misses (objects held)':26}" + "".join(f"room for {room:<10}" for room in ROOMS))
seen = {}
for name, policy in POLICIES.items():
    for room in ROOMS:
        seen[name, room] = misses(policy(cache_size=room))
    print(f"{name:26}" + "".join(f"{f'{seen[name, room][0]:.1%} ({seen[name, room][1]})':19}" for room in ROOMS))
wrong = [key for key, (ratio, held) in seen.items() if held != key[1]]
expected = [("WTinyLFU", 50), ("WTinyLFU", 99), *(("ClockPro", room) for room in ROOMS)]
full = all(seen["LRU", room] == lru(room) for room in ROOMS) and all(seen[name, 150][0] < seen["LRU", 150][0] for name in ("WTinyLFU", "ClockPro, all cold"))
if wrong != expected or not full or seen["WTinyLFU", 99] != (1.0, 0) or any(seen["ClockPro", room][1] != room // 2 for room in (50, 100, 150)):
    raise SystemExit(f"changed: {seen}")
print("\nseen: without its window W-TinyLFU admits nothing, and Clock-Pro leaves half of the room empty")
PYTHON
