"""How far rounding alone moves a right computation, and how far it may: floors, tolerances and
their ceilings.

Nothing here calls what an engine computes with. The floor is measured on the definition of the
model (`cachewitness_reference.toy_model.definition`): the same texts in float64 and once more
rounded as the engine's precision rounds, memories after so many tokens as often as chunks of such
sizes would store them. In float64 there is nothing wider to compare with; its rounding is
float32's, smaller by the ratio of their units, 2 ** -29.

The tolerance is a multiple of the floor; in float64 it is fixed, some thousand floors. The ceiling
follows from arithmetic alone:

    HEADROOM x largest value x (unit x layers x tokens + stored unit x recurrent layers x sqrt(tokens))

`unit` is half the distance from 1 to the next number. The first term is the worst case of a
rounding in each layer and token, which rotary angles reach: an angle is a position times a
frequency, and its error grows with the position. The second is that of memories which are stored in
a narrower format again and again; such roundings are independent of one another and grow as a root
(Higham, Mary, SIAM Journal on Scientific Computing 41 (2019), theorem 2.4). Above its ceiling a
tolerance judges nothing.
"""  # noqa: E501

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cachewitness.toy.model import PRECISIONS, Model
from cachewitness_reference.toy_model import recurrent
from cachewitness_reference.toy_model.definition import Computed, Rounding, compute

FACTOR = 4.0
"""The tolerance as a multiple of the noise floor."""
FLOAT64_TOLERANCE = 1e-10
"""Tolerance and ceiling in float64, whatever is compared."""
STATE = ("conv", "memory")
"""The parts of a recurrent state."""
HEADROOM = 16.0
TOKENS = 192
_AFTER = (192, 111, 64, 16)
"""After how many tokens of each text states are compared."""
_STORED_EVERY = (1, 7, 16, 50)
_FLOAT32_TO_FLOAT64 = 2.0**-29


class Noise(NamedTuple):
    """The floor of one quantity, how far it may be from the definition, and the most that this
    may ever be.
    """

    floor: float
    tolerance: float
    ceiling: float

    @property
    def judges(self) -> bool:
        """Whether the tolerance is a number and below its ceiling."""
        return self.tolerance <= self.ceiling


@dataclass(frozen=True)
class Floors:
    """The noise of a model's logits and, layer by layer, of its output and of the parts that it
    keeps in a cache.
    """

    logits: Noise
    layers: tuple[dict[str, Noise], ...]

    @property
    def blind(self) -> str:
        """Return why nothing can be judged with these floors; empty if everything can."""
        named = [("logits", self.logits), *self.states()]
        return next((_too_wide(name, noise) for name, noise in named if not noise.judges), "")

    def states(self) -> list[tuple[str, Noise]]:
        """Return the noise of each part of each recurrent state, by name."""
        kept = [
            (part, i, noise)
            for i, parts in enumerate(self.layers)
            for part, noise in parts.items()
            if part in STATE
        ]
        return [(f"{part} of layer {i}", noise) for part, i, noise in kept]


def _too_wide(name: str, noise: Noise) -> str:
    return (
        f"rounding alone moves the {name} of this model by {noise.floor:.1e}, so that the tolerance"
        f" {noise.tolerance:.1e} would exceed its ceiling {noise.ceiling:.1e}; use a wider dtype"
    )


_KNOWN: dict[tuple[object, ...], Floors] = {}


def floors(model: Model) -> Floors:
    """Return the floors of a model, measured once for each precision; they depend on no device
    and no cache.
    """
    key = (model.config, model.precision, model.sha256, model.seed)
    if key not in _KNOWN:
        _KNOWN[key] = _measured(model)
    return _KNOWN[key]


def _measured(model: Model) -> Floors:
    generator = torch.Generator().manual_seed(0)
    texts = torch.randint(
        model.config.vocab_size, (len(_AFTER), TOKENS), generator=generator
    ).tolist()
    exact = compute(texts, model.weights, model.config, after=_AFTER)
    rounded = [
        compute(texts, model.weights, model.config, after=_AFTER, rounding=how)
        for how in _roundings(model)
    ]
    parts = [{"output", *kept} for kept in exact.kept]
    return Floors(
        _noise(model, exact.logits, [other.logits for other in rounded]),
        tuple(
            {
                name: _noise(
                    model, _part(exact, i, name), [_part(other, i, name) for other in rounded]
                )
                for name in sorted(names)
            }
            for i, names in enumerate(parts)
        ),
    )


def _part(computed: Computed, layer: int, name: str) -> Tensor:
    return computed.outputs[layer] if name == "output" else computed.kept[layer][name]


def _roundings(model: Model) -> list[Rounding]:
    dtype, stored = PRECISIONS[model.precision]
    dtype = torch.float32 if dtype == torch.float64 else dtype
    if stored is None or not _recurrent_layers(model):
        return [Rounding(dtype)]
    return [Rounding(dtype, stored, every) for every in _STORED_EVERY]


def _noise(model: Model, exact: Tensor, rounded: list[Tensor]) -> Noise:
    floor = max(distance(other, exact) for other in rounded)
    if model.precision == "float64":
        floor *= _FLOAT32_TO_FLOAT64
        return Noise(floor, max(FACTOR * floor, FLOAT64_TOLERANCE), FLOAT64_TOLERANCE)
    return Noise(floor, FACTOR * floor, ceiling(model, float(exact.abs().max())))


def ceiling(model: Model, largest: float) -> float:
    """Return the most that a tolerance may be for values up to `largest`; see above."""
    dtype, stored = PRECISIONS[model.precision]
    computed = _unit(dtype) * len(model.config.layer_types) * TOKENS
    kept = (
        _unit(stored) * _recurrent_layers(model) * math.sqrt(TOKENS) if stored is not None else 0.0
    )
    return HEADROOM * largest * (computed + kept)


def _unit(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).eps) / 2


def _recurrent_layers(model: Model) -> int:
    return sum(recurrent.is_recurrent(layer_type) for layer_type in model.config.layer_types)


def distance(ours: Tensor, exact: Tensor) -> float:
    """Return the largest difference to what the definition says; infinite if there is anything
    that is no number.
    """
    difference = (ours.detach().to("cpu", torch.float64) - exact.to(torch.float64)).abs()
    return float(difference.nan_to_num(nan=math.inf).max()) if difference.numel() else 0.0
