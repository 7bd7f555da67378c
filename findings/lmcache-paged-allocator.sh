#!/usr/bin/env bash
# LMCache's paged allocator hands a page out twice that was given back twice, its own check finds nothing, and a short chunk has the bytes of a whole page.
#
# Package     lmcache 0.5.6 (`PagedTensorMemoryAllocator`: CPU memory with paging, as the backends of NIXL, P2P and PD take it)
# Surprise    A `ref_count_down` too many is met with "Setting ref count back to 0 as a hack", so one expects that no more comes of it, and
#             with the other allocator nothing does. With pages the object is put into the free queue again: two later callers get the
#             same object, and what one of them frees or writes is the other's. `memcheck()` stays True, as what is counted as free and
#             what is counted as used are wrong by the same page.
#             A chunk that is shorter than a page has the right `tensor`, and `get_size()` and `byte_array` of the whole page, whose rest
#             is what its last holder left there. A comment in the source says of `byte_array` that padding must not be shown.
# Who         Whoever frees twice on an error path, which the default allocator forgives; backends that write `byte_array`, for the last
#             chunk of a prompt: more bytes than its shape has, and they are another request's.
# Documented  No. The warning asks to find the bug, and does not say that the page is in use twice from then on.
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
    pyyaml==6.0.3 prometheus_client==0.26.0
pip --no-deps lmcache==0.5.6
cd "$work"
HOME=$work LMCACHE_DISABLE_BANNER=1 LMCACHE_TRACK_USAGE=false "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
import logging
from importlib.metadata import version

import torch
from lmcache.v1.memory_allocators.paged_tensor_memory_allocator import PagedTensorMemoryAllocator
from lmcache.v1.memory_allocators.tensor_memory_allocator import TensorMemoryAllocator

logging.disable(logging.CRITICAL)  # the warning is quoted above
PAGES, PAGE, SHORT = 4, torch.Size([2, 1, 16, 32]), torch.Size([2, 1, 5, 32])
BYTES = 4 * PAGE.numel()
print("lmcache", version("lmcache"))
print("expected: as many objects as there is room for, each with a place of its own; and a chunk of 5 tokens has the bytes of 5 tokens\n")
seen = {}
for kind in (TensorMemoryAllocator, PagedTensorMemoryAllocator):
    memory = torch.zeros(PAGES * BYTES, dtype=torch.uint8)
    pool = kind(memory, align_bytes=BYTES) if kind is TensorMemoryAllocator else kind(memory, [PAGE], [torch.float32])
    first = pool.allocate(PAGE, torch.float32)
    first.tensor.fill_(7)
    first.ref_count_down()
    first.ref_count_down()
    checked = pool.memcheck()
    objects = []
    while (one := pool.allocate(PAGE, torch.float32)) is not None:
        objects.append(one)
    places = [(one.data_ptr - memory.data_ptr()) // BYTES for one in objects]
    print(f"{kind.__name__:28}room for {PAGES}, freed twice: {len(objects)} objects at {places}, memcheck {checked}")
    memory.fill_(9)  # what a holder before left
    for one in {id(one): one for one in objects}.values():
        one.ref_count_down()
    short = pool.allocate(SHORT, torch.float32)
    short.tensor.zero_()
    left = bytes(short.byte_array).count(9)
    print(f"{'':28}{4 * SHORT.numel()} bytes of 5 tokens: byte_array has {len(short.byte_array)}, {left} of them its last holder's")
    seen[kind.__name__] = sorted(places), checked, len(short.byte_array), left
short = 4 * SHORT.numel()
right = [0, 1, 2, 3], True, short, 0
if seen["TensorMemoryAllocator"] != right:
    raise SystemExit(f"changed: the other allocator is {seen['TensorMemoryAllocator']}")
if seen["PagedTensorMemoryAllocator"] != ([0, 0, 1, 2, 3], True, BYTES, BYTES - short):
    raise SystemExit(f"changed: the paged one is {seen['PagedTensorMemoryAllocator']}")
print("\nseen: one page for two objects and nothing that tells of it, and bytes that belong to nobody's chunk")
PYTHON
