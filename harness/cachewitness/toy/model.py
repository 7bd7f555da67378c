"""Which model runs on a trace's layout: a small random one made to fit, or a checkpoint whose
layers fit the groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from cachewitness._util.errors import UsageError
from cachewitness.core.events import Group
from cachewitness_reference.toy_model import checkpoint
from cachewitness_reference.toy_model.config import LayerType, ModelError, ToyConfig
from cachewitness_reference.toy_model.paged import PagedGroup, Pools
from cachewitness_reference.toy_model.weights import random_weights

PRECISIONS: dict[str, tuple[torch.dtype, torch.dtype | None]] = {
    "float64": (torch.float64, None),
    "float32": (torch.float32, None),
    "bf16-state": (torch.float32, torch.bfloat16),
    "bfloat16": (torch.bfloat16, None),
}
"""Per name the dtype of everything, and that of recurrent memories if it is another. Memories are
never narrower than float32 unless that is asked for: those of `bfloat16` are float32.
"""
LAYER_OF: dict[str, LayerType] = {
    "recurrent": "linear_attention",
    "sliding": "sliding_attention",
    "full": "full_attention",
}
VOCABULARY = 251
CHANGE = 0.05
"""How much new weights differ from the old ones, as a share of each tensor's standard deviation."""


@dataclass(frozen=True)
class Model:
    """A model on a device, the groups that its layers form, and its precision by name; `sha256`
    or `seed` say which it is.
    """

    config: ToyConfig
    weights: dict[str, Tensor]
    groups: tuple[PagedGroup, ...]
    precision: str
    device: str
    sha256: str = ""
    seed: int = 0
    _versions: dict[int, dict[str, Tensor]] = field(default_factory=dict, compare=False, repr=False)

    def version(self, number: int) -> dict[str, Tensor]:
        """Return the weights of a version; version 0 is the model itself, any other differs from
        it everywhere.
        """
        if number == 0:
            return self.weights
        if number not in self._versions:
            generator = torch.Generator().manual_seed(number)
            self._versions[number] = {
                name: tensor + _noise(tensor, generator) for name, tensor in self.weights.items()
            }
        return self._versions[number]

    def pools(self, pages: int, null: Sequence[int] = (0,)) -> Pools:
        """Return empty pools of so many pages."""
        dtype, state_dtype = PRECISIONS[self.precision]
        return Pools(
            self.groups,
            pages,
            self.config,
            dtype=dtype,
            state_dtype=state_dtype,
            device=self.device,
            null=null,
        )

    def fresh(self, length: int, texts: int = 1) -> tuple[Pools, list[list[list[int]]]]:
        """Return empty pools with room for texts of so many tokens, and the tables of each text."""
        columns = [-(-length // group.block_size) for group in self.groups]
        pools = self.pools(1 + texts * sum(columns))
        free = iter(range(1, pools.pages))
        return pools, [
            [[next(free) for _ in range(count)] for count in columns] for _ in range(texts)
        ]


def made_for(groups: Sequence[Group], *, seed: int, precision: str, device: str) -> Model:
    """Return a random model with a layer for each group, recurrent ones first and full attention
    last.

    An attention group gets a second layer if no layer of another kind stands before it, so that
    what it keeps depends on more than its own tokens. Raises UsageError for a kind of group, or for
    windows, that the model does not have.
    """
    windows = sorted({group.window for group in groups if group.kind == "sliding"})
    if len(windows) > 1:
        raise UsageError(
            f"--engine: the toy model has one window for all its layers; the layout has {windows}"
        )
    kinds = list(LAYER_OF)
    for group in groups:
        if group.kind not in kinds:
            raise UsageError(
                f"--engine: the toy model has no layers for a {group.kind} group; it has"
                f" {', '.join(kinds)}"
            )
    order = sorted(groups, key=lambda group: kinds.index(group.kind))
    order += order[:1] if order[0].kind != "recurrent" else []
    config = ToyConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=32,
        layer_types=tuple(LAYER_OF[group.kind] for group in order),
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        sliding_window=windows[0] if windows else 1,
        linear_num_key_heads=1,
        linear_num_value_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        chunk_size=16,
    )
    weights = random_weights(config, seed, PRECISIONS[precision][0])
    layers = {
        group.id: tuple(i for i, other in enumerate(order) if other is group) for group in groups
    }
    return Model(config, _on(weights, device), _paged(groups, layers), precision, device, seed=seed)


def loaded(folder: Path, groups: Sequence[Group], *, precision: str, device: str) -> Model:
    """Return a checkpoint's model; its layers of a kind are dealt out to the groups of that kind.

    Raises UsageError if the checkpoint cannot be used or has no layers for a group, or another
    window.
    """
    try:
        read = checkpoint.load(folder, PRECISIONS[precision][0], device)
    except ModelError as error:
        raise UsageError(f"--checkpoint: {error}") from None
    layers: dict[int, tuple[int, ...]] = {}
    for kind in (*LAYER_OF, "chunked"):
        layers |= _dealt(
            folder, kind, read.config, [group for group in groups if group.kind == kind]
        )
    for group in groups:
        if group.kind == "sliding" and group.window != read.config.sliding_window:
            raise UsageError(
                f"--checkpoint: {folder} has a window of {read.config.sliding_window} tokens, the"
                f" layout one of {group.window}"
            )
    return Model(read.config, read.weights, _paged(groups, layers), precision, device, read.sha256)


def _dealt(
    folder: Path, kind: str, config: ToyConfig, groups: Sequence[Group]
) -> dict[int, tuple[int, ...]]:
    """Return the layers of each group of a kind: those of one type, or, if there is but one
    type, every n-th.
    """
    by_type: dict[LayerType, list[int]] = {}
    for index, layer_type in enumerate(config.layer_types):
        if kind_of(layer_type) == kind:
            by_type.setdefault(layer_type, []).append(index)
    parts = list(by_type.values())
    if len(parts) == 1:
        parts = [own for start in range(len(groups)) if (own := parts[0][start :: len(groups)])]
    if len(parts) != len(groups) or bool(by_type) != bool(groups):
        count = sum(map(len, by_type.values()))
        raise UsageError(
            f"--checkpoint: {folder} has {count} {kind} layers of {len(by_type)} types; they do not"
            f" fit the layout's {len(groups)} {kind} groups"
        )
    return {group.id: tuple(part) for group, part in zip(groups, parts, strict=True)}


def kind_of(layer_type: LayerType) -> str:
    """Return the kind of cache group that a layer belongs to."""
    return (
        "recurrent"
        if layer_type == "mamba2"
        else next(kind for kind, name in LAYER_OF.items() if name == layer_type)
    )


def _paged(groups: Sequence[Group], layers: dict[int, tuple[int, ...]]) -> tuple[PagedGroup, ...]:
    return tuple(
        PagedGroup(layers[g.id], g.block_size, g.snapshots == "every-block") for g in groups
    )


def _on(weights: dict[str, Tensor], device: str) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in weights.items()}


def _noise(tensor: Tensor, generator: torch.Generator) -> Tensor:
    noise = (
        torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        * CHANGE
        * (float(tensor.std()) or 1.0)
    )
    return noise.to(tensor)
