"""The training loop: Muon for matrices, AdamW for the rest, a schedule in steps so that a seed says everything."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

import torch
import torch.nn.functional as F
from torch import Tensor

from harness._util.data import fixtures
from harness.engines.toy.problems.families import GROUPS
from harness.engines.toy.train.grow import grow
from harness.engines.toy.train.recipes import Phase, Recipe
from harness.engines.toy.train.sequences import IGNORED, Batch, Sequences
from reference_impl.toy_model import checkpoint, dense, weights
from reference_impl.toy_model.config import ToyConfig

EVALUATED_EVERY_STEPS = 200
HELD_OUT_SEED = "held-out"
Report = Callable[[int, float, dict[str, float], float], None]
"""Told the step, the loss, the accuracy per group and the seconds since the start."""


def train(recipe: Recipe, report: Report) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Train from the recipe's seed; return the parameters and the accuracy per group on held-out contexts."""
    parameters = _initial(recipe)
    for parameter in parameters.values():
        parameter.requires_grad_()
    first, started = 0, time.perf_counter()
    for phase in recipe.phases:
        losses = []
        for step, loss in _phase(recipe, phase, parameters, first):
            losses.append(loss)
            if (step + 1) % EVALUATED_EVERY_STEPS == 0:
                recent = sum(losses[-EVALUATED_EVERY_STEPS:]) / EVALUATED_EVERY_STEPS
                report(first + step + 1, recent, accuracy(recipe, parameters, 8), time.perf_counter() - started)
        first += phase.steps
    finished = {name: parameter.detach() for name, parameter in parameters.items()}
    if recipe.published:
        finished = {name: parameter.bfloat16().float() for name, parameter in finished.items()}
    return finished, accuracy(recipe, finished, 64)


def _phase(recipe: Recipe, phase: Phase, parameters: dict[str, Tensor], first: int) -> Iterator[tuple[int, float]]:
    """Train for a phase, whose step 0 is step `first` of all; yield each step and its loss."""
    sequences = Sequences(phase, window=recipe.window, recited=recipe.recited)
    optimizers = _optimizers(parameters, recipe)
    for step in range(phase.steps):
        stage = [stage for stage in phase.stages if stage.start <= step][-1]
        batch = sequences.batch(Random(f"{recipe.seed}/{first + step}"), stage.examples, recipe.tokens_per_step, stage.size)
        loss = _loss(batch, parameters, recipe.config)
        loss.backward()
        _update(optimizers, _rate(phase, step))
        yield step, loss.item()


def _initial(recipe: Recipe) -> dict[str, Tensor]:
    """Return grown parameters, or random ones with loud embeddings and quiet layers.

    With the latter every layer sees mostly its own token at first, so that full attention, the last layer, finds the token
    that it looks for; the final norm brings the logits back to scale.
    """
    if recipe.grown_from:
        read = checkpoint.load(fixtures() / "checkpoints" / recipe.grown_from)
        return grow(read.weights, read.config, recipe.config, recipe.seed)
    parameters = weights.random_weights(recipe.config, recipe.seed)
    for name, parameter in parameters.items():
        if name == "model.embed_tokens.weight":
            parameter *= 10.0
        elif name == "model.norm.weight":
            parameter -= 0.9
        elif name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
            parameter *= 0.1
    return parameters


def _rate(phase: Phase, step: int) -> float:
    """Return the share of the peak rate in a step of a phase."""
    falling = 1.0 if step < phase.decay_start else (phase.steps - step) / (phase.steps - phase.decay_start)
    return min(1.0, (step + 1) / phase.warmup_steps) * max(falling, 0.02)


def _loss(batch: Batch, parameters: dict[str, Tensor], config: ToyConfig) -> Tensor:
    logits = dense.forward(batch.tokens, parameters, config, hidden=batch.hidden, forget=batch.forget)
    wanted = batch.targets != IGNORED
    return F.cross_entropy(logits[wanted], batch.targets[wanted])


def _optimizers(parameters: dict[str, Tensor], recipe: Recipe) -> list[tuple[torch.optim.Optimizer, float]]:
    matrices = [p for name, p in parameters.items() if p.ndim == 2 and "embed" not in name and min(p.shape) > 4]
    chosen = {id(p) for p in matrices}
    rest = [p for p in parameters.values() if id(p) not in chosen]
    return [
        (torch.optim.Muon(matrices, lr=recipe.muon_rate, momentum=0.95, weight_decay=0.0), recipe.muon_rate),
        (torch.optim.AdamW(rest, lr=recipe.adam_rate, betas=(0.9, 0.98), weight_decay=0.0), recipe.adam_rate),
    ]


def _update(optimizers: list[tuple[torch.optim.Optimizer, float]], share: float) -> None:
    for optimizer, peak in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = peak * share
        torch.nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def accuracy(recipe: Recipe, parameters: dict[str, Tensor], contexts: int) -> dict[str, float]:
    """Return per group the share of answers whose every token is the likeliest, over held-out contexts of full length.

    Under greedy decoding such an answer comes out as it was written.
    """
    open_paths = replace(recipe.phases[-1], dropped=0.0, hidden=0.0)
    sequences = Sequences(open_paths, window=recipe.window, recited=0)
    right: dict[str, list[bool]] = {group: [] for group in GROUPS}
    for index in range(contexts):
        batch = sequences.batch(Random(f"{HELD_OUT_SEED}/{index}"), (14, 14), 1)
        with torch.no_grad():
            logits = dense.forward(batch.tokens, parameters, recipe.config)
        for start, stop in _answers(batch.targets[0]):
            correct = bool((logits[0, start:stop].argmax(-1) == batch.targets[0, start:stop]).all())
            right[[*GROUPS][int(batch.groups[0, start])]].append(correct)
    return {group: sum(found) / len(found) for group, found in right.items()}


def _answers(targets: Tensor) -> Iterator[tuple[int, int]]:
    wanted = (targets != IGNORED).int()
    edges = torch.diff(wanted, prepend=wanted.new_zeros(1), append=wanted.new_zeros(1))
    yield from zip((edges == 1).nonzero().flatten().tolist(), (edges == -1).nonzero().flatten().tolist(), strict=True)
