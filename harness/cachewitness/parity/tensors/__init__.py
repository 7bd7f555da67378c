"""Cold against cached: the same requests, answered without a cache and with one, compared number by
number.

An *arm* is a way to answer requests: without caching, with a cache that is never hit, with hits,
from a second tier, across preemptions, in other chunks. In every arm each position must equal that
of one unsplit run without a cache. A cold run that is split like the cached one may share its
fault, so it is compared too, but never alone.

Differences between right computations are measured first, on chunkings of a cold run, and a stated
multiple of them is tolerated. Where a cached run was chunked like a cold one, nothing is tolerated.
An arm whose mechanism did not happen (no hit in an arm of hits) is reported as nothing checked.

Nothing here imports torch but `record`, `noise`, `chunk_history` and `judge`, which run when an
engine with tensors was opened.
"""
