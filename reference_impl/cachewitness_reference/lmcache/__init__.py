"""LMCache's store of KV cache for hybrid models, as an executable specification.

LMCache keeps, in memory beside the engine's, what vLLM has computed, so that a prompt whose pages
the engine has lost is loaded rather than computed. It sits behind vLLM's scheduler as a connector.
Hybrid models make that hard: their layers remember differently, and a prefix is of use only where
every one of them can go on.

**The story of a request.** At registration the engine's cache groups become engine groups, those of
one shape kernel groups, and kernel groups that need equally many chunks before a hit *object
groups* (`groups`). A prompt is cut into chunks, and each full chunk has a digest that names the
whole prefix up to its end (`keys`). When the request is admitted, the connector asks which lengths
every object group can serve, takes the longest, and locks what it needs (`fold`, `server`). The
engine gets blocks for what lies beyond its own hit, and they are filled before the step runs. With
every step the chunks that it completes are copied out (`tracker`, `connector`). An object can be
found when its copy has been made, not before (`l1`). When memory runs short a share of the objects
goes (`eviction`).

**What must hold.** What is served at a length L holds, in each group, what resuming at L needs,
computed from exactly those tokens under the same identity. Lengths are not monotone: a state exists
at some chunk ends, so 5 chunks may be servable and 4 not. Objects are evicted one by one, in no
regard of each other; the fold makes that safe. A state after the last token cannot be resumed one
token earlier, so with recurrent layers the last token is left out of a look-up.

**What the engine must do.** A chunk ends where every group has a block end, so it is a multiple of
the unified block size N (`sizing`); states exist where a step ends, so a step advances by at least
a block (`checks`). With all groups in one object, as releases do unless told otherwise, a chunk is
served only if a step ended there; with `separate_object_groups` states that are missing cost
nothing but the lengths where they are.

**Reading order.** `spec` (sources, rules, releases), `sizing`, `checks`, `groups`, `opaque`,
`keys`, `fold`, `l1`, `eviction`, `server`, `tracker`, `connector`. Names are LMCache's own.

**Where engines may legally differ.** Which objects are evicted and when, how long a look-up keeps
its locks, whether a second copy of an object is made. An engine may serve less than the fold says,
never more.

**Named differences from release 0.5.6, and our choices.**

* *digests* are SHA-256 over 8-byte ids, where LMCache takes BLAKE3 over 4-byte ones: they are
  compared with each other alone.
* *an adapter* enters the first digest. In LMCache's key it is missing: two adapters share what
  either stored.
* *kernels* (attention backend and kernel block size) enter the model's name in a key. In LMCache's
  key they are missing: engines that differ in them read each other's pages, so its document forbids
  that they share a server.
* *ids of media* are 62 bits wide and apart from every token's; LMCache's are 31 bits and may fall
  on a token's.
* *null blocks*: a chunk is not stored in an object group if any block of it that would be kept is
  null. LMCache leaves a chunk out only if all are, and so may store the null block's content beside
  real ones, where groups share an object or a window is longer than a chunk.
* *a look-up that waits* for blocks is asked again with every attempt, its locks let go of in
  between; LMCache remembers the first answer.
* *loads* are made before the step that admits the request. LMCache loads while other steps run, and
  admits it then.
* *the eviction thread*, which wakes once a second, wakes here after every step.
* *a reset* of the store lets go of waiting look-ups first and then forgets everything; LMCache
  keeps what is locked.
* *new weights* end every key. LMCache is not told of them.
* *the last token* is reserved in the newest release alone, as in LMCache: `release` 0.5.4 or 0.5.5
  resumes a recurrent model one token before the state that was loaded, which is wrong and which the
  harness finds.
"""
