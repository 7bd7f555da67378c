"""Furiosa-LLM's hybrid KV cache management, as an executable specification.

Models that mix global attention with sliding-window attention have two kinds of memory: one that
grows with the sequence, one that the window bounds. Furiosa-LLM keeps them in two pools, splits the
memory between the two when it starts, and reuses prefixes of both through one radix tree. The
published document states these rules and leaves much unsaid; what it is silent about is chosen
here, and `spec.CHOICES` names every such choice.

**The story of a request.** At start the memory was split so that at one sequence length both pools
run out together (`partition`). The request is matched, token by token, against the tree of
everything stored before; the longest match is shortened to where the window that ends there is
still in memory (`hybrid_match`). *Prefill* gives it blocks to write in both pools; where it found a
prefix, or had computed a chunk before, this is an *extend*, which loads the cached blocks and gives
write blocks for the new tokens alone; *decode* is an extend of one token. After each forward pass
what was computed is stored in the tree (`radix_tree`), and *cleanup* gives back the sliding blocks
that the window has left, while the global ones stay. In the end everything is given back; what the
tree knows stays there, least recently used first to go, from its leaves (`block_pool`).

**What must hold.** A request that resumes after h tokens finds in the global pool the blocks of all
of [0, h), and in the sliding pool those of the last W - 1 tokens before h, computed from exactly
its tokens under its identity. Nobody writes into a block behind which somebody else's tokens lie: a
hit that ends inside a block copies it. A block that somebody holds is not evicted, nor is an entry
that somebody's sequence runs through. The tree has a block only after the forward pass that filled
it.

**One tree, two pools.** An entry of the tree lies within one block and names the block of either
pool that holds its tokens. The global block is what makes it an entry; the sliding block may be
gone, and the entry stays (a *hole* in the window). Recomputing the tokens over a hole fills it
again.

**Reading order.** `spec` (sources, rules, choices), `partition`, `config`, `request`, `block_pool`,
`radix_tree`, `hybrid_match`, `manager` (the lifecycle), `scheduler`.

**Where engines may legally differ.** Which block is handed out, whom a preemption strikes, who goes
first among entries not in use; whether blocks that left the window stay matchable until their
memory is needed; whether a hit ends inside a block or at its end; whether of two copies of one
content the second is kept. An engine may hit less than it could, within what it declares; never
more.

**Not here.** Layers with a recurrent state: the document speaks of none, and a configuration that
has them is refused. Nothing was compared with Furiosa's code, which is not public.
"""
