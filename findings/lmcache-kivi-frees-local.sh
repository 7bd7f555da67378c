#!/usr/bin/env bash
# LMCache with `remote_serde: kivi` compresses nothing, and each chunk that it stores remotely is freed under the local cache that still lists it.
#
# Package     lmcache 0.5.6, torch 2.13.0 (its own CPU and remote backends, the remote one a folder)
# Surprise    `kivi` is one of three values of `remote_serde`, beside `naive` and `cachegen`. It gives back the object that it got: the bytes
#             are those of `naive`. And it lacks the reference that `naive` takes for the object it hands on, which the connector gives back
#             behind every put. So a put takes away a reference of somebody else. When the engine is done with the chunk its memory returns
#             to the pool while the local cache lists it: `contains` says yes, and a hit gets an object whose tensor is None.
# Who         Whoever switches on compression for a remote store beside the local CPU cache, which is on by default.
# Documented  No: the value is accepted in silence. A comment in the source says that it is to be done.
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
    pyyaml==6.0.3 prometheus_client==0.26.0 aiofile==3.12.3 aiofiles==25.1.0 msgspec==0.23.0 pyzmq==27.3.0 cryptography==50.0.2 transformers==5.24.0
pip --no-deps lmcache==0.5.6
cd "$work"
HOME=$work LMCACHE_DISABLE_BANNER=1 LMCACHE_TRACK_USAGE=false HF_HUB_OFFLINE=1 "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
import asyncio
import logging
import pathlib
import threading
from importlib.metadata import version

import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
from lmcache.v1.storage_backend.remote_backend import RemoteBackend

logging.disable(logging.CRITICAL)
LAYERS, TOKENS, HEADS, WIDTH = 2, 16, 2, 32
METADATA = LMCacheMetadata("model", 1, 1, 0, 0, torch.float16, (LAYERS, 2, TOKENS, HEADS, WIDTH))
KEY = CacheEngineKey("model", 1, 0, 1, torch.float16)
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()


def stored(serde):
    """One chunk that is put into both caches by the two calls that the engine makes, and then let go by the engine."""
    folder = pathlib.Path(serde).absolute()
    folder.mkdir()
    config = LMCacheEngineConfig.from_defaults(chunk_size=TOKENS, local_cpu=True, max_local_cpu_size=0.01, remote_url=f"fs://host:0{folder}/",
                                               remote_serde=serde)
    local = LocalCPUBackend(config, METADATA)
    remote = RemoteBackend(config, METADATA, loop, local, "cpu")
    chunk = local.allocate(torch.Size([LAYERS, 2, TOKENS, HEADS * WIDTH]), torch.float16, fmt=MemoryFormat.KV_2LTD)
    chunk.tensor.fill_(7)
    local.submit_put_task(KEY, chunk)
    counts = [chunk.get_ref_count()]
    remote.submit_put_task(KEY, chunk).result(30)
    counts.append(chunk.get_ref_count())
    chunk.ref_count_down()
    counts.append(chunk.get_ref_count())
    listed = local.contains(KEY)
    hit = local.get_blocking(KEY).tensor
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return counts, listed, None if hit is None else hit.unique().tolist(), size


print("lmcache", version("lmcache"))
print("expected: kivi stores fewer bytes than naive, and either leaves the engine's and the local cache's references alone\n")
print("serde   references: both caches asked, remote put done, engine done   listed   a local hit's tensor   bytes in the remote store")
seen = {}
for serde in ("naive", "kivi"):
    counts, listed, tensor, size = seen[serde] = stored(serde)
    print(f"{serde:8}{', '.join(map(str, counts)):62}{listed!s:9}{'None' if tensor is None else f'full of {tensor}':23}{size}")
if seen != {"naive": ([2, 2, 1], True, [7.0], seen["naive"][3]), "kivi": ([2, 1, 0], True, None, seen["naive"][3])}:
    raise SystemExit(f"changed: {seen}")
print("\nseen: kivi stores what naive stores, and takes the chunk from under the local cache")
PYTHON
