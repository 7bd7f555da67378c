"""Grows a trained model into one with larger heads that computes the same.

A published architecture may want heads far larger than a small model needs. Heads are widened with
dimensions that change nothing at first: what is projected into them is faint noise (so that
training can use them), and nothing is read out of them. Norms over a head are rescaled, since their
mean now runs over more dimensions. Sliding windows become full attention, which does change what is
computed; a short training puts that right.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from cachewitness_reference.toy_model.config import ToyConfig
from cachewitness_reference.toy_model.weights import random_weights

FAINT = 0.1


def grow(
    weights: Mapping[str, Tensor], small: ToyConfig, big: ToyConfig, seed: int
) -> dict[str, Tensor]:
    """Return parameters of `big` that compute what those of `small` do, but for windows.

    Both have the same layers (a sliding one may become full), hidden sizes and numbers of heads;
    the heads of `big` are larger.
    """
    grown = random_weights(big, seed)
    for name, target in grown.items():
        source = weights[name]
        if source.shape == target.shape:
            target.copy_(source)
            continue
        target *= 0.0 if name.endswith(("o_proj.weight", "out_proj.weight")) else FAINT
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            target[: small.head_dim] = (1.0 + source) * (
                small.head_dim / big.head_dim
            ) ** 0.25 - 1.0
        elif name.endswith("linear_attn.norm.weight"):
            target[: small.linear_value_head_dim] = (
                source * (small.linear_value_head_dim / big.linear_value_head_dim) ** 0.5
            )
        else:
            _place(name, source, target, small, big)
    return grown


def _place(name: str, source: Tensor, target: Tensor, small: ToyConfig, big: ToyConfig) -> None:
    """Copy a projection head by head, into the first dimensions of each."""
    out = name.endswith(("o_proj.weight", "out_proj.weight"))
    source, target = (source.T, target.T) if out else (source, target)
    old, new = (_heads(name, config) for config in (small, big))
    at_old = at_new = 0
    for few, many in zip(old, new, strict=True):
        target[at_new : at_new + few] = source[at_old : at_old + few]
        at_old, at_new = at_old + few, at_new + many
    assert (at_old, at_new) == (len(source), len(target))


def _heads(name: str, c: ToyConfig) -> list[int]:
    """Return how many rows each head has, in order; the query's rows of a head come before its
    gate's.
    """
    if name.endswith(("in_proj_qkv.weight", "conv1d.weight")):
        keys = [c.linear_key_head_dim] * (2 * c.linear_num_key_heads)
        return keys + [c.linear_value_head_dim] * c.linear_num_value_heads
    if "linear_attn" in name:
        return [c.linear_value_head_dim] * c.linear_num_value_heads
    if name.endswith("q_proj.weight"):
        return [c.head_dim] * (2 * c.num_attention_heads)
    heads = c.num_attention_heads if name.endswith("o_proj.weight") else c.num_key_value_heads
    return [c.head_dim] * heads
