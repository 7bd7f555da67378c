"""The step of `paged` with kernels that follow block tables: all requests, of whatever lengths, in
one run of operations.

The order is that of `paged`. What is new is what a captured graph needs. `forward` is the part that
repeats: it takes nothing from the host but the shape of the batch, so that two steps of one `Shape`
run the same operations over tensors of the same shapes. Reading states and claiming pages stand
before it, because which pages are claimed differs from step to step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from cachewitness_reference.toy_model import attention, recurrent
from cachewitness_reference.toy_model.attention import Weights
from cachewitness_reference.toy_model.captured import Graphs, States, can_capture
from cachewitness_reference.toy_model.chunk import NULL, Chunk
from cachewitness_reference.toy_model.config import ModelError, ToyConfig
from cachewitness_reference.toy_model.flat_plan import Batch, FlatPlan, batch, plan
from cachewitness_reference.toy_model.kernels import FlatKernels
from cachewitness_reference.toy_model.paged_pools import Pools, sent
from cachewitness_reference.toy_model.watch import Read, Watch


def step(
    pools: Pools,
    chunks: Sequence[Chunk],
    w: Weights,
    kernels: FlatKernels,
    pad_rows: int = 1,
    watch: Watch | None = None,
) -> Tensor:
    """Run the chunks and return the logits wanted of them [sum of outputs, vocab], in the order of
    the chunks.

    Raises ModelError for layers of a type that these kernels lack.
    """
    planned = plan(pools, chunks, pad_rows, kernels.positions)
    c = constants(w, pools.config, kernels)
    wanted = sum(chunk.outputs for chunk in chunks)
    if watch is None and can_capture(kernels, pools, planned.shape):
        return _graphs(pools, w, kernels).run(
            planned,
            lambda there: begin(pools, planned, there, kernels),
            lambda there, states: forward(pools, there, states, c, kernels),
        )[:wanted]
    there = batch(planned.shape, sent(planned.numbers, pools.device))
    states = begin(pools, planned, there, kernels)
    if watch is not None:
        watch.buckets = planned.buckets(len(chunks))
        watch.places = [(index, 0) for index in range(len(chunks))]
    return forward(pools, there, states, c, kernels, watch)[:wanted]


def _graphs(pools: Pools, w: Weights, kernels: FlatKernels) -> Graphs:
    """Return the decode steps that were captured of a model over pools."""
    graphs: Graphs | None = kernels.graphs
    if graphs is None or not graphs.fits(pools, w):
        kernels.graphs = graphs = Graphs(pools, w)
    return graphs


def begin(pools: Pools, planned: FlatPlan, there: Batch, kernels: FlatKernels) -> States:
    """Read the states that requests go on from, then make the pages that the step writes their
    new group's.
    """
    states = {}
    for g, kind in enumerate(pools.kinds):
        if kind == "mamba2":
            raise ModelError("layers of type mamba2 have no kernels in Triton; use those of torch")
        if recurrent.is_recurrent(kind):
            states[g] = [kernels.gather(pool, there.groups[g][0]) for pool in pools.views[g]]
    for g, pages in planned.claims:
        pools.claim(g, pages)
    return states


def constants(w: Weights, config: ToyConfig, kernels: FlatKernels) -> Weights:
    """Return the weights as `forward` uses them: matrices transposed, `inverse_frequencies` and
    `embedding` beside them.

    They are kept with the kernels for as long as the same weights are used.
    """
    if kernels.known is None or kernels.known[0] is not w:
        embedding = w["model.embed_tokens.weight"]
        frequencies = attention.inverse_frequencies(config, embedding.dtype, embedding.device)
        turned = {name: tensor.T if tensor.dim() == 2 else tensor for name, tensor in w.items()}
        kernels.known = w, turned | {"embedding": embedding, "inverse_frequencies": frequencies}
    return kernels.known[1]


def forward(
    pools: Pools,
    there: Batch,
    states: States,
    c: Weights,
    kernels: FlatKernels,
    watch: Watch | None = None,
) -> Tensor:
    """Run the layers over a batch that lies on the device, and return its logits, padding's
    last; `c` are `constants`.
    """
    return _Forward(pools, there, states, c, kernels, watch).run()


class _Forward:
    def __init__(
        self,
        pools: Pools,
        there: Batch,
        states: States,
        c: Weights,
        kernels: FlatKernels,
        watch: Watch | None,
    ) -> None:
        self.pools = pools
        self.batch = there
        self.states = states
        self.c = c
        self.kernels = kernels
        self.watch = watch
        self.config = pools.config
        self.eps = pools.config.rms_norm_eps
        angles = there.angles[:, None] * c["inverse_frequencies"]
        self.cos = angles.cos()
        self.sin = angles.sin()

    def run(self) -> Tensor:
        c = self.c
        kernels = self.kernels
        eps = self.eps
        added = c["embedding"].index_select(0, self.batch.tokens)
        stream = torch.zeros_like(added)
        for layer, (g, index) in enumerate(self.pools.place):
            name = f"model.layers.{layer}"
            normed = kernels.normalise(stream, added, c[f"{name}.input_layernorm.weight"], eps)
            mix = (
                self._gated_delta
                if recurrent.is_recurrent(self.pools.kinds[g])
                else self._attention
            )
            added = mix(normed, name, g, index)
            normed = kernels.normalise(
                stream, added, c[f"{name}.post_attention_layernorm.weight"], eps
            )
            inner = F.silu(normed.mm(c[f"{name}.mlp.gate_proj.weight"])).mul_(
                normed.mm(c[f"{name}.mlp.up_proj.weight"])
            )
            added = inner.mm(c[f"{name}.mlp.down_proj.weight"])
            if self.watch is not None:
                self.watch.outputs.append(stream + added)
        wanted = self.batch.wanted
        stream, added = stream.index_select(0, wanted), added.index_select(0, wanted)
        return kernels.normalise(stream, added, c["model.norm.weight"], eps).mm(
            c["model.embed_tokens.weight"]
        )

    def _gated_delta(self, x: Tensor, name: str, g: int, index: int) -> Tensor:
        c, kernels, there, name = self.c, self.kernels, self.batch, f"{name}.linear_attn"
        (conv_pages, memory_pages) = self.pools.views[g]
        (convs, memories) = self.states[g]
        saves = there.groups[g][1]
        inputs = x.mm(c[f"{name}.in_proj_qkv.weight"])
        mixed = kernels.conv(
            inputs, c[f"{name}.conv1d.weight"], convs, index, there.first, there.shape.longest
        )
        kernels.keep_inputs(
            inputs, convs, conv_pages, index, there.first, there.owners, there.stops, saves
        )
        a = x.mm(c[f"{name}.in_proj_a.weight"])
        b = x.mm(c[f"{name}.in_proj_b.weight"])
        log_decay, strength = kernels.gates(a, b, c[f"{name}.A_log"], c[f"{name}.dt_bias"])
        segments = (there.first, there.segments, there.stops, saves, there.shape.longest)
        read = kernels.delta(mixed, log_decay, strength, memories, memory_pages, index, *segments)
        gated = kernels.gate(
            read, x.mm(c[f"{name}.in_proj_z.weight"]), c[f"{name}.norm.weight"], self.eps
        )
        if self.watch is not None:
            for row, bucket in enumerate(self.watch.buckets):
                parts = {
                    "conv": convs[index, row : row + 1],
                    "memory": memories[index, row : row + 1],
                }
                self.watch.reads[self.pools.groups[g].layers[index], bucket.first] = Read(parts)
        return gated.mm(c[f"{name}.out_proj.weight"])

    def _attention(self, x: Tensor, name: str, g: int, index: int) -> Tensor:
        c, kernels, there, name = self.c, self.kernels, self.batch, f"{name}.self_attn"
        (kept,) = self.pools.views[g]
        (table, places) = there.groups[g]
        window = self.config.sliding_window if self.pools.kinds[g] == "sliding_attention" else 0
        projected, key, value = (x.mm(c[f"{name}.{part}_proj.weight"]) for part in "qkv")
        scales = (c[f"{name}.q_norm.weight"], c[f"{name}.k_norm.weight"])
        query = kernels.keep(
            projected, key, value, *scales, self.cos, self.sin, places, kept, index, self.eps
        )
        spans = (there.first, there.starts, there.shape.longest)
        attended = kernels.attend(query, projected, kept, index, table, *spans, window)
        if self.watch is not None:
            self._watch_keys(self.watch, g, index, window)
        return attended.mm(c[f"{name}.o_proj.weight"])

    def _watch_keys(self, watch: Watch, g: int, index: int, window: int) -> None:
        """Note what each chunk's queries see."""
        kept = self.pools.views[g][0][index]
        table = self.batch.groups[g][0].unflatten(0, (self.batch.shape.requests, -1))
        for row, (bucket, start) in enumerate(
            zip(watch.buckets, self.batch.starts.tolist(), strict=False)
        ):
            first = max(0, start - window + 1) if window else 0
            positions = torch.arange(first, start + bucket.length, device=kept.device)
            pages = table[row, positions // kept.shape[1]]
            pages = torch.where((pages < 0) | (pages >= kept.shape[0]), NULL, pages)
            key, value = kept[pages, positions % kept.shape[1]][None].unbind(2)
            watch.reads[self.pools.groups[g].layers[index], bucket.first] = Read(
                {"key": key, "value": value}, positions[None]
            )
