"""Measures which cache a model needs for which question, on held-out prefixes, by the dense
execution.

Behind the prefix what one kind of layer left behind is put to zero, or is another prefix's; then
every answer is compared with the right one, token by token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

import torch
from torch import Tensor

from cachewitness.toy.problems.families import GROUPS
from cachewitness_reference.toy_model import dense
from cachewitness_reference.toy_model.config import ToyConfig
from cachewitness_training.branches import IGNORED, Branches
from cachewitness_training.paths import ZERO, branch, dropped, kinds
from cachewitness_training.recipes import Stage

Needs = dict[str, dict[str, float]]
"""The share of right answers per group of questions, by what was damaged; under `nothing`:
undamaged."""
HELD_OUT_SEED = "held-out"
QUESTIONS, TOKENS = 24, 6000


def needs(parameters: Mapping[str, Tensor], config: ToyConfig, batches: int, stage: Stage) -> Needs:
    """Return the share of right answers per group, undamaged and with each kind of cache zeroed
    or exchanged.
    """
    branches, stage = (
        Branches(config, 0.0),
        replace(stage, questions=QUESTIONS, recitals=0.0, same=0.5),
    )
    right: dict[str, dict[str, list[bool]]] = {}
    for index in range(batches):
        batch = branches.batch(Random(f"{HELD_OUT_SEED}/{index}"), stage, TOKENS)
        with torch.no_grad():
            _, left = dense.resume(
                batch.prefixes, parameters, config, 0, [None] * len(config.layer_types)
            )
            for name, sources in damages(config, batch.rows, len(batch.prefixes)).items():
                logits, _ = dense.resume(
                    batch.tokens,
                    parameters,
                    config,
                    batch.prefixes.shape[1],
                    branch(left, sources, config),
                )
                correct = ((logits.argmax(-1) == batch.targets) | (batch.targets == IGNORED)).all(1)
                for group, found in zip(batch.groups, correct.tolist(), strict=True):
                    right.setdefault(name, {}).setdefault(group, []).append(found)
    return {
        name: {group: sum(found[group]) / len(found[group]) for group in GROUPS if group in found}
        for name, found in right.items()
    }


def damages(config: ToyConfig, rows: Sequence[int], prefixes: int) -> dict[str, Tensor]:
    """Return by damage what each layer goes on from (`paths`), for branches of the given `rows`
    of so many prefixes.
    """
    found = {"nothing": dropped(config, "", rows, {})}
    for kind in kinds(config):
        found[f"{kind} zeroed"] = dropped(config, kind, rows, dict.fromkeys(range(prefixes), ZERO))
        found[f"{kind} of another"] = dropped(
            config, kind, rows, {row: (row + 1) % prefixes for row in range(prefixes)}
        )
    return {name: torch.tensor(sources) for name, sources in found.items()}
