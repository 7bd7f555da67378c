"""Test vectors: what a policy answers, as data that an engine in any language can be asked about.

A vector is one question and its answer: an `input`, what is `expected`, and why it is asked
(`comment`, and `flags` that name the bugs it hunts). They are written by tools alone: `cachewitness
fill` asks the references, `cachewitness consume` asks an engine. A person chooses the questions, at
boundaries where engines go wrong: one token before, at and behind a multiple of a block, an
interval or a window; nothing, one token, exactly full.

**What must hold.** An answer follows from the input alone. Nothing in it depends on what an engine
is free to choose (block ids, victims, which of two equal blocks is hit); where it would, the vector
is `acceptable` and says from where on. `valid` must be answered as expected, and an `invalid` input
must be refused.

**Who checks the references.** A file that its own reference wrote proves nothing about the
reference. The tests compute every kind of answer a second time, from the safety law and from the
arithmetic of the documents, without the policy.

**Reading order.** `form` (the types, which are the schemas), `store` (files and their hashes),
`lifecycle` (what of a trace must be equal), `fill`, `consume`; then
`cachewitness.systems.<policy>.reference.vectors`: how the reference answers, and
`cachewitness_faults.<policy>.reference.vectors`: what it is asked.
"""
