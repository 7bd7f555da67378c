"""vLLM's prefix cache for hybrid models, as an executable specification.

A hybrid model mixes layers that remember differently. Full attention reads every earlier token;
sliding-window layers read the last few; recurrent layers (Mamba and its relatives) carry one state
that stands for all that came before. vLLM serves them from one pool of equally large pages. Layers
that remember alike form a *group* with a block table of its own, and a prefix counts as cached only
where every group can resume.

**The story of a request.** Its tokens are hashed block by block into a chain, so that one digest
names a prefix and everything that identifies it (`request`, `primitives.hash_chain`). When it is
admitted, each group says how much it has and the coordinator finds the longest length that all
accept (`coordinator`). The request holds those blocks and gets new ones (`kv_cache_manager`,
`single_type_manager`). Blocks that fill up are keyed at once, before the step that fills them has
run; blocks that no later query reads are given back on the way (`full_attention`, `sliding_window`,
`mamba`). In the end all are given back, keys stay on them, and the pool hands them out again, least
recently used first (`block_pool`).

**What must hold.** Whoever hits a prefix of p tokens finds in each group exactly what resuming at p
needs, computed from exactly those tokens under the same identity. Nothing is ever keyed over a page
that was not written there: a null column has no key, and retention only subtracts. Keys made by a
step that does not run vanish with it.

**What retention is for.** Attention blocks are worth keeping everywhere, since any prefix of a run
is a hit. A window tail or a state serves one length only, and dense ones crowd out the attention
blocks that they need. So they are kept where hits can end: once per interval, at the replay
boundary, and at shared-prefix boundaries where somebody once diverged (`retention`, `align_split`).

**Reading order.** `spec` (sources, rules, releases), `options`, `kv_cache_interface`, `config`,
`request`, `key_index`, `keyed_blocks`, `block_pool`, `retention`, `single_type_manager`,
`full_attention`, `sliding_window`, `mamba`, `coordinator`, `hybrid_coordinator`,
`kv_cache_manager`, `align_split`, `scheduler_interface`, `scheduler`; beside them `sizing`.
docs/tour.md follows one request through it. The names are vLLM's own, so that one observer drives
this package and the real thing. What we add to vLLM for testing (a second tier, slow copies, other
free lists, large snapshots) is `cachewitness_reference.vllm_extended`.

**Where engines may legally differ.** Which block is evicted, which of several blocks under one key
is hit, which ids are handed out, whom a preemption strikes. An engine may hit less than it could,
within what its rules declare; never more. Block tables may hold null columns wherever no query
reads. Several blocks may carry one key.

**Checked against.** In lock-step with vLLM's own `KVCacheManager` (0.33.0) over random workloads:
hit lengths, shared-prefix boundaries, block ids by column, reference counts, keys and their
lengths, the order of the free queue, copies, blocks to zero and events are identical, for every mix
of groups, equal and unequal block sizes, finer hashes, EAGLE, any interval and pools under
pressure. Likewise with vLLM's own `Scheduler` (0.33.0, without EAGLE): who computes how much,
preemptions, block ids, copies. The `release` option chooses what is *kept* (interval, shared-prefix
boundary, replay boundaries, the default); with equal block sizes and no EAGLE that makes the
managers of 0.24, 0.25, 0.26, 0.29 and 0.30 identical as well. Named differences:

* *withdrawal*: vLLM has no way to take keys back when a scheduled step does not run (its issues
  43569 and 57580). Here `KVCacheManager.withdraw` ends the keys of that step and takes along
  whoever adopted the blocks.
* *copy of a block of this step*: with hits inside a block, vLLM copies a block on write before the
  step runs, also if the very same step is to write that block (attention may be shared within a
  step, a copy may not). Here such a request waits one step, as it does for a recurrent state.
* *look-up and allocation are those of 0.33 in every release*. Releases before 0.33 register the
  tail of a prompt differently when hashes are finer than blocks; 0.32 keys a state again that it
  has just hit, and so puts siblings off for a step; releases up to 0.25 leave columns beyond the
  hit in a second full-attention group.
* *chunk ends are those of 0.33 in every release* (`align_split`).
* *drafts and steps in flight* were written after vLLM's scheduler and not compared in lock-step.
  States after drafts lie beside the table and are copied home before the next step; vLLM keeps them
  behind the running column and copies when the step ends. Beside two steps in flight (vLLM: a
  pipeline of two stages, scheduled ahead) a request may generate in every step; vLLM lets it rest
  for one on most devices (`decode_stagger`). With drafts, a step in flight would not know where it
  begins, since the device moves it by what was rejected before it; so the two are refused together.
  What steps in flight generate for a request that lost its blocks meanwhile is dropped here. vLLM
  0.33 still delivers it, and has the request wait until then (`num_stale_output_tokens`); it drops
  it at a reset, and behind connectors that have to deliver (`drop_stale_output`).
* *connectors* (`scheduler_interface`) load with the step that admits the request; vLLM's may load
  while other steps run, and admits the request when that is done.
* *identity of an adapter* is its name alone; vLLM adds the path it was loaded from.
"""
