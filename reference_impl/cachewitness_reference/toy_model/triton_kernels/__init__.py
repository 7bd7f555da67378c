"""The kernels of a paged execution in Triton: they read and write pages through block tables,
requests of any length together.

What they compute stands, without pages and without a device, in `attention`, `causal_conv`,
`gated_delta` and `norms`. Tokens of all requests lie flat behind one another: those of request r
are first[r] ... first[r + 1] - 1. A page that there is not is read as page 0, which holds poison; a
place or page below 0 is not written.

Each kernel is an operation of torch (`torch.ops.cachewitness`), so that a dispatch mode counts it
and a meta device runs it. With TRITON_INTERPRET=1 in the environment before Triton is imported,
kernels run on the CPU in Triton's interpreter.
"""
