"""The training loop: Muon for matrices, AdamW for the rest, a schedule in steps so that a seed says
everything.

What it has reached is kept beside the target every few steps, so that a training that was killed
goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cachewitness._util.errors import UsageError
from cachewitness_training.lessons import lessons
from cachewitness_training.needs import Needs
from cachewitness_training.recipes import Recipe, as_data
from cachewitness_training.start import first_parameters

REPORTED_EVERY_STEPS, MEASURED_EVERY_STEPS, KEPT_EVERY_STEPS = 20, 200, 100
Optimizers = list[tuple[torch.optim.Optimizer, float]]
Report = Callable[[int, float, Needs | None, float], None]
"""Told the step, the loss, from time to time which cache is needed for what, and the seconds since
the start."""


def train(recipe: Recipe, kept: Path, report: Report) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Train from the recipe's seed, or go on from the file `kept`; return the parameters and what
    is said of them beside the recipe: which cache they need for what, and of a text what it was.
    """
    parameters = first_parameters(recipe)
    for parameter in parameters.values():
        parameter.requires_grad_()
    optimizers = _optimizers(parameters, recipe)
    first = _read(kept, recipe, parameters, optimizers)
    started = time.perf_counter()
    losses = list[float]()
    taught = lessons(recipe)
    for step in range(first, recipe.steps):
        loss = taught.loss(step, parameters)
        loss.backward()
        _update(optimizers, _rate(recipe, step))
        losses.append(loss.item())
        if (step + 1) % KEPT_EVERY_STEPS == 0:
            _keep(kept, recipe, step + 1, parameters, optimizers)
        if (step + 1) % REPORTED_EVERY_STEPS == 0:
            measured = (
                taught.needs(parameters, 2, step)
                if (step + 1) % MEASURED_EVERY_STEPS == 0
                else None
            )
            recent = losses[-REPORTED_EVERY_STEPS:]
            report(step + 1, sum(recent) / len(recent), measured, time.perf_counter() - started)
    finished = {name: parameter.detach() for name, parameter in parameters.items()}
    if recipe.published:
        finished = {
            name: parameter.to(getattr(torch, recipe.published)).float()
            for name, parameter in finished.items()
        }
    measured = {
        damage: {group: round(share, 4) for group, share in found.items()}
        for damage, found in taught.needs(finished, 8, recipe.steps).items()
    }
    return finished, taught.source | {taught.measured: measured}


def _rate(recipe: Recipe, step: int) -> float:
    """Return the share of the peak rate in a step."""
    falling = (
        1.0
        if step < recipe.decay_start
        else (recipe.steps - step) / (recipe.steps - recipe.decay_start)
    )
    return min(1.0, (step + 1) / recipe.warmup_steps) * max(falling, 0.02)


def _optimizers(parameters: dict[str, Tensor], recipe: Recipe) -> Optimizers:
    matrices = [
        p
        for name, p in parameters.items()
        if p.ndim == 2 and "embed" not in name and min(p.shape) > 4
    ]
    chosen = {id(p) for p in matrices}
    rest = [p for p in parameters.values() if id(p) not in chosen]
    return [
        (
            torch.optim.Muon(matrices, lr=recipe.muon_rate, momentum=0.95, weight_decay=0.0),
            recipe.muon_rate,
        ),
        (
            torch.optim.AdamW(rest, lr=recipe.adam_rate, betas=(0.9, 0.98), weight_decay=0.0),
            recipe.adam_rate,
        ),
    ]


def _update(optimizers: Optimizers, share: float) -> None:
    for optimizer, peak in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = peak * share
        torch.nn.utils.clip_grad_norm_(
            [p for group in optimizer.param_groups for p in group["params"]], 1.0
        )
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def _keep(
    kept: Path, recipe: Recipe, step: int, parameters: dict[str, Tensor], optimizers: Optimizers
) -> None:
    """Write what has been reached; a reader finds the old file or the new one, never a part."""
    content = {
        "recipe": repr(as_data(recipe)),
        "step": step,
        "parameters": {name: parameter.detach() for name, parameter in parameters.items()},
        "optimizers": [optimizer.state_dict() for optimizer, _ in optimizers],
    }
    kept.parent.mkdir(parents=True, exist_ok=True)
    unfinished = kept.with_name(f"{kept.name}.new")
    torch.save(content, unfinished)
    unfinished.replace(kept)


def _read(kept: Path, recipe: Recipe, parameters: dict[str, Tensor], optimizers: Optimizers) -> int:
    """Take up what was kept and return the step to go on with; without a file there is nothing to
    take up.

    Raises UsageError if the file is of another recipe.
    """
    if not kept.exists():
        return 0
    content: dict[str, Any] = torch.load(kept, weights_only=True)
    if content["recipe"] != repr(as_data(recipe)):
        raise UsageError(
            f"{kept}: of another recipe than {recipe.name} is now; remove it to train from the"
            " start"
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(content["parameters"][name])
    for (optimizer, _), state in zip(optimizers, content["optimizers"], strict=True):
        optimizer.load_state_dict(state)
    return int(content["step"])
