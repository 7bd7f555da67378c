#!/usr/bin/env bash
# mlx-vlm's disk cache evicts the prefix that is read all the time before prompts that nobody ever read: a file is as old as its prompt's oldest file.
#
# Package     mlx-vlm 0.7.10 (its module `apc`), mlx 0.32.4
# Surprise    A prompt is written as files of some blocks each (256 by default), whose time is renewed when they are read. The sweep that makes
#             room orders prompts by their last use, and for that takes the oldest of their files. A system prompt belongs to the
#             conversation that was stored first with it; what is behind it there is never read again, so that conversation counts as the
#             oldest however often its front is read. A sweep that has more than one file to remove (it goes down to 90% of the bound)
#             takes the unused tail and then the front that was read a moment ago, while files that were never read stay.
# Who         Servers with long shared prefixes and a disk tier near its bound: the prefix that pays for the tier goes in each sweep.
# Documented  The other way round, in the source: prompts "ordered by last-used time".
# Upstream    No report known.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
pip() { "$work/venv/bin/python" -m pip install -qq --disable-pip-version-check "$@"; }
pip mlx==0.32.4 mlx-cpu==0.32.4 numpy==2.4.6
pip --no-deps mlx-vlm==0.7.10 2>/dev/null # the module needs none of its requirements, which are 1 GB
cd "$work"
HOME=$work "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
import os
import pathlib
import sys
import types
from importlib.metadata import distribution

import mlx.core as mx

found = distribution("mlx-vlm")
package = types.ModuleType("mlx_vlm")  # what the package itself imports is not installed
package.__path__ = [str(found.locate_file("mlx_vlm"))]
sys.modules["mlx_vlm"] = package
from mlx_vlm.apc import APCManager, DiskBlockStore  # noqa: E402

BLOCK, FILE, COLD = 16, 4, 18  # tokens of a block, blocks of a file, prompts that are never read
os.environ["APC_DISK_MIN_FREE_RAM_GB"] = "0"
TOKENS = BLOCK * FILE
SYSTEM = list(range(TOKENS))


def prompt(number):
    return list(range(1000 * number, 1000 * number + TOKENS))


def store(cache, tokens):
    """Store a prompt and wait for its files; return those that are new."""
    before = set(disk.dir.iterdir())
    keys = [mx.zeros((1, 1, len(tokens), 8))]
    cache.release(cache.store_kv_blocks(tokens, keys, keys))
    disk.flush()
    return sorted(set(disk.dir.iterdir()) - before)


disk = DiskBlockStore(pathlib.Path("store"), overrides={"disk_shard_max_blocks": FILE})
cache = APCManager(num_blocks=1, block_size=BLOCK, disk=disk)


def on_disk(tokens):
    """How many of a prompt's blocks come from the disk. Reading them renews their file's time."""
    return cache.lookup_prefix_disk_cache(tokens, allow_memory_overlap=True)[1] // BLOCK


def aged(files, hours):
    """Files as they would be after so many hours, instead of waiting."""
    for file in files:
        os.utime(file, (file.stat().st_atime - 3600 * hours, file.stat().st_mtime - 3600 * hours))


print("mlx-vlm", found.version, "mlx", distribution("mlx").version)
print("expected: a sweep removes what was not read for the longest time\n")
first = store(cache, SYSTEM + prompt(1))
aged(first, 100)
cold = []
for number in range(2, 2 + COLD):
    files = store(cache, prompt(number))
    aged(files, 60 - number)
    cold += files
assert (len(first), len(cold)) == (2, COLD)
size = cold[0].stat().st_size
reads = [on_disk(SYSTEM + prompt(100 + user)) for user in range(5)]
print(f"{len(first) + len(cold)} files on disk; five users read the system prompt: {reads} blocks each")
disk.max_bytes = int((len(first) + COLD + 0.5) * size)
store(cache, prompt(200))
removed = [file for file in first + cold if not file.exists()]
left = on_disk(SYSTEM + prompt(300)), sum(file.exists() for file in cold)
print(f"one prompt more than fits: {len(removed)} files removed; blocks of the system prompt left: {left[0]}; prompts left that were never read: {left[1]} of {COLD}")
if reads != [FILE] * 5 or len(removed) < 3 or left != (0, COLD - len(removed) + 2):
    raise SystemExit(f"changed: {reads} {len(removed)} {left}")
print("\nseen: what was read last is removed, and files that were never read stay")
PYTHON
