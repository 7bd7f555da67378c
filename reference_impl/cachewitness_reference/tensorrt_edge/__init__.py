"""TensorRT-Edge-LLM's hybrid cache manager, as an executable specification.

A small device runs a few sequences at once. Each is a *row* (a batch slot) of every tensor of the
cache: attention layers keep the keys and values of all its tokens there, recurrent layers one state
and the tail of a convolution. There are no blocks, no tables and no keys. What has to be right
instead is that all tensors agree on which sequence a row is, and on how many of its tokens they
stand for.

**The story of a request.** It gets a free row. If its system prompt was captured before, KV,
recurrent and conv states are restored into the row; if not, the states are zeroed.
`reset_for_new_sequences` then declares how many tokens of each row are valid, prefill begins right
there, and `commit_sequence_length` moves the length on, by a length per row after prefill and by
one for all after decode. When sequences end, `compact_batch` moves the survivors together and
`set_active_batch_size` shrinks the batch. Layers are named by their absolute index, and a table
leads to the sub-manager that has them (`routing`).

**What must hold.** KV, length, recurrent and conv state of a row are of one sequence and of one
position, before every computation. Compaction is one simultaneous permutation of rows, the same for
every tensor, for every mapping that takes survivors one to one onto the first rows; any other is
refused and nothing has moved (`compaction`). A capture knows its position; restored, it is paired
with exactly that KV length, and prefill goes on at exactly that token (`capture`, `rows`). A state
paired with a length one short applies a token twice, and nothing will ever say so.

**Reading order.** `spec` (sources, rules, axes, differences), `config`, `routing`, `rows`,
`compaction`, `capture`, `policy` (the manager without tensors), `system_prompts`, `runtime`,
`tensors` (the manager with them; needs torch).

**Where engines may legally differ.** In which row a request is; in the order of survivors; in what
a vacated row still holds, which nobody may read; in which system prompts are kept, and how long; in
whether requests join a running batch.

**Named differences** from the releases are in `spec.DIFFERENCES`: above all that they compact in
place, by ascending rows, which is right only for mappings that keep the order of survivors, and
that their system-prompt cache pairs a state at N with a KV length of N − 1. Neither was run, both
were read.
"""
