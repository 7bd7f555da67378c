"""Cold against cached: the same requests, answered without a cache and with one, compared number by number.

An *arm* is a way to have requests answered: without caching, with a cache that cannot help, with one that does, from a second
tier, across preemptions, in other chunks. Whatever the arm, every position must come out as in one unsplit run without a cache;
a cold run that is split like the cached one may share its fault, so it is compared with too, but never alone.

Differences between right computations are measured first, on chunkings of a cold run, and a stated multiple of them is
tolerated. Where a cached run was chunked like a cold one, nothing is tolerated. An arm whose mechanism did not happen (no hit
in an arm of hits) has checked nothing, and says so.

Nothing here imports torch but `record`, `noise`, `chains` and `judge`, which run when an engine with tensors was opened.
"""
