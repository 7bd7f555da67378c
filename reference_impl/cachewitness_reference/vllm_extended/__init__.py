"""vLLM's policy, and what vLLM does not have: a second tier, copies that take steps, other free
lists, large snapshots.

A tester wants more than one system's rules: copies that come late or fail, victims in another
order, states of several pages. None of that is a rule of vLLM's, so none of it stands in
`cachewitness_reference.vllm`. Each addition is a file or two here, a subclass of what it changes,
and a configuration that asks for none of them runs vLLM's own classes, untouched (`assemble`).

* `free_list`: blocks that are given back line up in order of return (`fifo`), or the latest first
  (`lifo`), keyed or not. Every rule has to hold whoever is evicted.
* `snapshots`: a recurrent state takes k pages, which are held, keyed and evicted as one
  (`pages_per_snapshot`). In vLLM a snapshot is one block; the test setting of its PR 45845 shows
  what larger ones do to a pool.
* `tier`, `tiered_pool`, `tiered_manager`, `tiered_scheduler`: keyed pages are stored beside the
  device and fetched where it has nothing, key by key (`tier_pages`). vLLM's tiers are connectors,
  which are asked for a prefix and not for a key.
* `slow_tier`, `loading_scheduler`: copies from and to that tier take steps, and may fail
  (`tier_delay`). They wait, end and fail as vLLM's connectors do. After a failed load vLLM keeps
  the blocks before the first invalid one, in layouts of one group alone; here the request is looked
  up again, so that all groups agree. vLLM takes no blocks from a request that was loaded and has
  not run yet; here others may.

**Reading order.** `spec`, `config`, `free_list`, `snapshots`, `tier`, `tiered_pool`,
`tiered_manager`, `tiered_scheduler`, `slow_tier`, `loading_scheduler`, `assemble`. It is the one
package here that builds on another one.
"""
