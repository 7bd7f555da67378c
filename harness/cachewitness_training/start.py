"""The parameters with which a training begins: random, but for circuits without which recall takes
long to be found.

Two layers make an induction head: one tells of every token which stood before it, another looks
behind its own token for what followed. Each is of use only where the other is, so that a training
that begins without them hesitates for a thousand steps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cachewitness._util.data import checkpoints
from cachewitness_reference.toy_model import checkpoint, weights
from cachewitness_reference.toy_model.config import ToyConfig
from cachewitness_training.grow import grow
from cachewitness_training.recipes import Recipe

FREE = 16
"""Dimensions that embeddings leave free, in which the first layer tells which token stood before.
"""
CONSTANT = 2.0
CONSTANT_AT = FREE
"""A dimension that is the same in all embeddings, loud beside the others."""
LOUDNESS = 0.75
"""How loud the token before is told."""
Parameters = dict[str, Tensor]


def first_parameters(recipe: Recipe) -> Parameters:
    """Return grown parameters, plain random ones for a text, or random ones with loud embeddings,
    quiet layers and memories that last and recall.

    With quiet layers each sees mostly its own token at first; the final norm brings the logits back
    to scale.
    """
    if recipe.packages:
        return weights.random_weights(recipe.config, recipe.seed)
    if recipe.grown_from:
        read = checkpoint.load(checkpoints() / recipe.grown_from)
        return grow(read.weights, read.config, recipe.config, recipe.seed)
    parameters = weights.random_weights(recipe.config, recipe.seed)
    for name, parameter in parameters.items():
        if name == "model.embed_tokens.weight":
            parameter *= 10.0
            parameter[:, :FREE] = 0.0
            parameter[:, CONSTANT_AT] = CONSTANT
        elif name == "model.norm.weight":
            parameter -= 0.9
        elif name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
            parameter *= 0.1
        elif name.endswith("dt_bias"):
            parameter -= 6.0
    _connect(parameters, recipe.config)
    return parameters


def _connect(parameters: Parameters, config: ToyConfig) -> None:
    first, *others = (
        _part(parameters, index, kind) for index, kind in enumerate(config.layer_types)
    )
    remembers = config.layer_types[0] == "linear_attention"
    previous = _tell_by_memory(first, config) if remembers else _tell_by_position(first, config)
    if remembers:
        _recall(first, config)
    for kind, layer in zip(config.layer_types[1:], others, strict=True):
        if kind == "linear_attention":
            _recall(layer, config)
        else:
            _look_for(layer, previous, config)


def _part(parameters: Parameters, index: int, kind: str) -> Parameters:
    """Return a layer's own parameters of what mixes tokens, by the last part of their names."""
    start = f"model.layers.{index}.{'linear_attn' if kind == 'linear_attention' else 'self_attn'}."
    return {
        name[len(start) :].removesuffix(".weight"): value
        for name, value in parameters.items()
        if name.startswith(start)
    }


def _recall(layer: Parameters, config: ToyConfig) -> None:
    """Let half of the heads find what followed the last two tokens when they stood together before.

    Queries and keys project alike. In half of the dimensions a query looks at its own token and a
    key at the token before its own, in the other half both look one token further back; values are
    tokens themselves.
    """
    for head in range(config.linear_num_key_heads // 2):
        near, far = torch.arange(config.linear_key_head_dim).chunk(2)
        query, key, value = _rows(head, config)
        layer["in_proj_qkv"][key] = layer["in_proj_qkv"][query]
        for rows, back in (
            (query[near], 0),
            (query[far], 1),
            (key[near], 1),
            (key[far], 2),
            (value, 0),
        ):
            _look_back(layer["conv1d"], rows, back)


def _tell_by_memory(layer: Parameters, config: ToyConfig) -> Tensor:
    """Let the last head recall, by its own token, what it has just written: the token before.

    Returns what projects a token as it is told [dimensions, hidden].
    """
    head = config.linear_num_key_heads - 1
    query, key, value = _rows(head, config)
    out = torch.arange(len(value)) + head * len(value)
    layer["in_proj_qkv"][key] = layer["in_proj_qkv"][query]
    for rows, back in ((query, 0), (key, 0), (value, 1)):
        _look_back(layer["conv1d"], rows, back)
    for name, rows in (("in_proj_z", out), ("in_proj_b", torch.tensor([head]))):
        layer[name][rows] = 0.0
        layer[name][rows, CONSTANT_AT] = 1.0  # gate and writing stay open
    layer["out_proj"][:, out] = 0.0
    layer["out_proj"][torch.arange(FREE), out[:FREE]] = LOUDNESS / 4  # the open gate is near 4
    return layer["in_proj_qkv"][value[:FREE]].clone()


def _tell_by_position(layer: Parameters, config: ToyConfig) -> Tensor:
    """Let the first head attend to the position before its own. Returns what projects a token as
    it is told.
    """
    half = config.rotary_dim // 2
    size = config.head_dim
    fast = torch.arange(2)  # the two fastest angles tell neighbours apart
    angles = config.rope_theta ** (-fast / half)
    query = layer["q_proj"][: 2 * size]
    key = layer["k_proj"][:size]
    query.zero_()
    key.zero_()
    query[fast, CONSTANT_AT] = torch.cos(angles)
    query[fast + half, CONSTANT_AT] = -torch.sin(angles)
    key[fast, CONSTANT_AT] = 1.0
    layer["o_proj"][:, :size] = 0.0
    layer["o_proj"][torch.arange(FREE), torch.arange(FREE)] = 2 * LOUDNESS  # the gate is half open
    return layer["v_proj"][:FREE].clone()


def _look_for(layer: Parameters, previous: Tensor, config: ToyConfig) -> None:
    """Let the first half of the heads look for tokens behind their own token, in dimensions that
    are not rotated.
    """
    size = config.head_dim
    for head in range(config.num_attention_heads // 2):
        query = layer["q_proj"][2 * head * size : (2 * head + 1) * size]
        key = layer["k_proj"][head * size : (head + 1) * size]
        query.zero_()
        key.zero_()
        query[-FREE:] = previous
        key[-FREE:, :FREE] = torch.eye(FREE)


def _rows(head: int, config: ToyConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Return the channels of a head's query, key and value."""
    keys = config.linear_num_key_heads * config.linear_key_head_dim
    query = torch.arange(config.linear_key_head_dim) + head * config.linear_key_head_dim
    value = torch.arange(config.linear_value_head_dim) + head * config.linear_value_head_dim
    return query, keys + query, 2 * keys + value


def _look_back(conv: Tensor, rows: Tensor, tokens: int) -> None:
    """Let channels of a convolution see the token so many before, and no other."""
    conv[rows] = 0.0
    conv[rows, 0, conv.shape[-1] - 1 - tokens] = 1.0
