"""OpenVINO GenAI's cache for hybrid models, as an executable specification.

A model with linear attention keeps two things: keys and values of every token, and one recurrent
state per sequence. OpenVINO GenAI gives each a pool of its own. KV blocks hold a fixed number of
tokens; a linear-attention block holds the whole state of a sequence at one position. Without prefix
caching a sequence has one such block, overwritten as it goes. With it, the state at every
*interval* (a multiple of a KV block) is left behind as a checkpoint, and the second pool grows with
tokens too.

**The story of a request.** Its prompt is looked up before the step that first runs it: the KV cache
says how far a run of full blocks reaches, the linear-attention cache where within that run it has a
checkpoint, and the largest position that both hold is where the request resumes (`orchestrator`). A
step serves requests that generate first, then prompts, each cut to the token budget and to the room
in *both* pools (`scheduler`). The columns that a chunk writes are keyed as the prefixes that they
then end: full blocks, checkpoints, and the tail (`block_manager`). A block that others hold is
copied before it changes. When the request ends, its blocks keep their keys in an overwritable
store, the tail among them: a checkpoint after P + G - 1 tokens, where a longer prompt of the same
conversation resumes. Room is made from unused blocks, then from the oldest of the store
(`block_pool`). If that is not enough, the request that came last gives way; if nothing can run at
all, everybody is dropped.

**What must hold.** A request resumes only where both caches hold exactly its prefix, its identity
included: a state after exactly so many tokens, and every key and value before. No key names what no
scheduled step writes. At least one token is left to compute, and a recurrent state takes no token
in twice.

**Reading order.** `spec` (sources, rules, releases), `config`, `sizing`, `scenarios`; `sequence`,
`block_pool`, `block_manager`, `orchestrator`, `scheduler`. The names are OpenVINO's own.

**Where engines may legally differ.** Which block is handed out, how prompts are cut into chunks,
who is preempted. Which of two blocks of the same content carries the key. Whether earlier
checkpoints than the one resumed at are held.

**Named differences.** Where OpenVINO does otherwise, for the reason given:

* *keys of the future*: OpenVINO keys a block when it is allocated, under the length that prompt and
  generation will have; a prompt that is computed in several steps can be hit before it is there.
  Here a block is keyed as what the scheduled step writes.
* *R - 1*: if the whole prompt is cached OpenVINO resumes one token earlier with the state of the
  whole prompt, which takes that token in twice. Here a hybrid resumes at the largest checkpoint
  before the last token.
* *copy on write in prompts*: OpenVINO copies shared blocks in the generate phase alone; a prompt
  that resumes inside a block that somebody else holds writes into it. Here it is copied.
* *partial preemption of hybrids*: OpenVINO takes blocks off both tables, each with its own block
  size, and sets the request back by the KV tokens; the state it goes on from is another one. Here
  it goes back to a checkpoint that it holds, or to the start.
* *each cache for itself*: 2026.2 restores from either cache what it has and goes on at the smaller
  position, where the state may be one of a longer prefix. Here, as from 2026.3 on, both resume
  where both hold the prefix.
* *longest tail*: OpenVINO tries KV tails shortest first, and may miss a checkpoint that a longer
  one allows. Here longest first.
* *duplicates*: OpenVINO's newest block takes the key; here a held block keeps it (`block_pool`).
* *after a preemption in full* a request is looked up again; OpenVINO computes it from its first
  token.
* *identity* (salt, adapter, media) enters the hashes; OpenVINO hashes tokens alone. *Hashes* are
  those of KV blocks for both caches.
* *overflow*: numbers that wrap around or are cut off in OpenVINO are refused (`config`).
* *forgetting every key* while prefix caching is on has no counterpart in OpenVINO.

The last KV tokens behind a checkpoint are computed again although they are cached; both do so.
"""
