"""The model over pages: a batch of unequal chunks, each continuing its request from what block
tables point at.

Nothing is known of a request but its chunk and its tables; whatever came before is read from the
pools, be it right or not. The order within a step is that of a real worker, and matters where
tables are wrong:

1. recurrent groups read the states that their chunks continue from: the state after `start` tokens
   is in column ceil(start / block) - 1. A state written in this very step is not there yet;
2. pages about to be written become their new group's, noise to all others;
3. layer by layer, attention groups write the chunk's keys and values and then read all that its
   queries see, and recurrent groups write the state after `stop` tokens to column ceil(stop /
   block) - 1.

One token runs by the recurrent form of a recurrence, more by the chunked one. A key outside of what
a chunk's queries see may be poison; a poisoned key that they do see makes the output NaN.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cachewitness_reference.toy_model import attention, flat, recurrent
from cachewitness_reference.toy_model.attention import Weights
from cachewitness_reference.toy_model.chunk import Chunk
from cachewitness_reference.toy_model.dense import feed_forward, unembed
from cachewitness_reference.toy_model.kernels import PLAIN, FlatKernels, Kernels
from cachewitness_reference.toy_model.norms import rms_norm
from cachewitness_reference.toy_model.paged_plan import NOWHERE, Bucket, Plan, plan
from cachewitness_reference.toy_model.paged_pools import PagedGroup, Pools, Shelf, move
from cachewitness_reference.toy_model.recurrent_state import RecurrentState
from cachewitness_reference.toy_model.watch import Read, Watch

__all__ = ["Chunk", "PagedGroup", "Pools", "Shelf", "move", "step"]


def step(
    pools: Pools,
    chunks: Sequence[Chunk],
    w: Weights,
    *,
    pad_rows: int = 1,
    kernels: Kernels | FlatKernels = PLAIN,
    watch: Watch | None = None,
) -> Tensor:
    """Run the chunks and return the logits wanted of them [sum of outputs, vocab], in the order of
    the chunks.

    Rows of equal length run together; with `pad_rows` their number is filled up to a multiple of
    it. `watch` is filled with what the step reads and computes on its way. With flat kernels rows
    of any length run together (`flat`).
    """
    with torch.inference_mode():
        if isinstance(kernels, FlatKernels):
            return flat.step(pools, chunks, w, kernels, pad_rows, watch)
        return _Step(pools, plan(pools, chunks, pad_rows, kernels), w, kernels, watch).run()


class _Step:
    def __init__(
        self, pools: Pools, plan: Plan, w: Weights, kernels: Kernels, watch: Watch | None
    ) -> None:
        self.pools = pools
        self.plan = plan
        self.w = w
        self.config = pools.config
        self.kernels = kernels
        self.watch = watch
        if watch is not None:
            watch.buckets = plan.buckets
            watch.places = plan.places
        self.sent = plan.parcel.send(pools.device)
        self.states = {
            (g, bucket.first): self._read_states(g, bucket)
            for bucket in plan.buckets
            for g in sorted(bucket.states)
        }
        for g, pages in plan.claims:
            pools.claim(g, pages)
        self.visible = {
            (g, bucket.first): self._sees(g, bucket) for bucket in plan.buckets for g in bucket.keys
        }

    def run(self) -> Tensor:
        config = self.config
        w = self.w
        x = w["model.embed_tokens.weight"][self.sent[self.plan.tokens]]
        for layer, (g, index) in enumerate(self.pools.place):
            name = f"model.layers.{layer}"
            normed = rms_norm(x, w[f"{name}.input_layernorm.weight"], config.rms_norm_eps)
            mix = (
                self._recurrent if recurrent.is_recurrent(self.pools.kinds[g]) else self._attention
            )
            x = x + mix(normed, name, g, index)
            normed = rms_norm(x, w[f"{name}.post_attention_layernorm.weight"], config.rms_norm_eps)
            x = x + feed_forward(normed, w, f"{name}.mlp")
            if self.watch is not None:
                self.watch.outputs.append(x)
        return unembed(x[self.sent[self.plan.wanted]], w, config)

    def _watched(self, g: int, index: int, bucket: Bucket, read: Read) -> None:
        if self.watch is not None:
            self.watch.reads[self.pools.groups[g].layers[index], bucket.first] = read

    def _rows(self, x: Tensor, bucket: Bucket) -> Tensor:
        """Return a bucket's part [rows, length, ...] of what lies flat."""
        return x[bucket.first : bucket.first + bucket.rows * bucket.length].unflatten(
            0, (bucket.rows, bucket.length)
        )

    # --- recurrent groups -------------------------------------------------------------------------

    def _read_states(self, g: int, bucket: Bucket) -> list[Tensor]:
        """Return conv and memory [layers, rows, ...] that the rows continue from."""
        read = bucket.states[g]
        states = [view.index_select(1, self.sent[read.pages]) for view in self.pools.views[g]]
        if read.cold is False:
            return states
        if read.cold is True:
            return [torch.zeros_like(state) for state in states]
        cold = self.sent[read.cold] > 0
        return [torch.where(cold.view(-1, *[1] * (state.dim() - 2)), 0, state) for state in states]

    def _recurrent(self, x: Tensor, name: str, g: int, index: int) -> Tensor:
        outputs = []
        for bucket in self.plan.buckets:
            rows = self._rows(x, bucket)
            begin = 0
            conv, memory = self.states[g, bucket.first]
            state = RecurrentState(conv[index], memory[index])
            self._watched(g, index, bucket, Read(state._asdict()))
            for cut, save in zip(bucket.cuts, bucket.states[g].saves, strict=True):
                piece = rows[:, begin:cut]
                out, state = recurrent.run(
                    self.pools.kinds[g],
                    piece,
                    state,
                    self.w,
                    name,
                    self.config,
                    kernels=self.kernels,
                )
                self._save(g, index, state, *(self.sent[handle] for handle in save))
                outputs.append(out)
                begin = cut
            if len(bucket.cuts) > 1:
                outputs[-len(bucket.cuts) :] = [torch.cat(outputs[-len(bucket.cuts) :], dim=1)]
        return torch.cat([out.flatten(0, 1) for out in outputs])

    def _save(self, g: int, index: int, state: RecurrentState, rows: Tensor, pages: Tensor) -> None:
        if len(rows):
            for view, value in zip(self.pools.views[g], state, strict=True):
                view[index].index_copy_(0, pages, value.index_select(0, rows).to(view.dtype))

    # --- attention groups -------------------------------------------------------------------------

    def _sees(self, g: int, bucket: Bucket) -> tuple[Tensor, Tensor]:
        """Return which keys each query sees [rows, length, S], and which are there for none
        [rows, S].
        """
        window = self.config.sliding_window if self.pools.kinds[g] == "sliding_attention" else 0
        keys = self.sent[bucket.keys[g].positions]
        queries = self._rows(self.sent[self.plan.positions], bucket)
        return attention.sees(queries, keys, window), keys == NOWHERE

    def _attention(self, x: Tensor, name: str, g: int, index: int) -> Tensor:
        name = f"{name}.self_attn"
        query, key, value, gate = attention.project(
            x, self.sent[self.plan.angles], self.w, name, self.config
        )
        sources, places = (self.sent[handle] for handle in self.plan.writes[g])
        kept = self.pools.views[g][0][index].flatten(0, 1)
        kept.index_copy_(0, places, torch.stack([key, value], dim=1).index_select(0, sources))
        outputs = []
        for bucket in self.plan.buckets:
            visible, nowhere = self.visible[g, bucket.first]
            read = kept.index_select(0, self.sent[bucket.keys[g].places].flatten()).unflatten(
                0, nowhere.shape
            )
            read.masked_fill_(nowhere[..., None, None, None], 0)
            key, value = read.unbind(2)
            self._watched(
                g,
                index,
                bucket,
                Read({"key": key, "value": value}, self.sent[bucket.keys[g].positions]),
            )
            attended = self.kernels.attend(self._rows(query, bucket), key, value, visible)
            outputs.append(attended.flatten(0, 1))
        return attention.output(torch.cat(outputs), gate, self.w, name, self.config)
