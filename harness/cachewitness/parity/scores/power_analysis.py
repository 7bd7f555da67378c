"""The smallest loss that a number of questions can show, printed before they are asked."""

from __future__ import annotations

from cachewitness.parity.scores.gate import Noise, Rules
from cachewitness.parity.scores.statistics import POWER, mde, n_for_margin

ASSUMED = (0.005, 0.02, 0.05)
"""Shares of answers that may differ by chance, while nothing was measured yet."""


def before(n: int, rules: Rules) -> list[str]:
    """Return what n questions can show for several shares of answers that differ by chance."""
    losses = "; ".join(f"{share:.1%}: {_loss(n, share, rules)}" for share in ASSUMED)
    return [
        f"smallest loss that {n:,} questions show (power {POWER:.0%}), by the share of answers that"
        f" differ by chance: {losses}"
    ]


def measured(noise: Noise, rules: Rules) -> list[str]:
    """Return what can be shown now that two cold runs were compared."""
    if not noise.n:
        head = "noise floor not measured (no arm off-again)"
        return [f"{head}: {_deciding(noise, rules) or 'all that is lost counts, be it by chance'}"]
    line = (
        f"noise floor {noise.tokens:,} of {noise.n:,} answers (with 95 % confidence under"
        f" {noise.tokens_upper:.1%})"
    )
    if deciding := _deciding(noise, rules):
        return [f"{line}: {deciding}"]
    line += f", {noise.scores:,} scores (under {noise.scores_upper:.1%})"
    share = max(noise.discordance, 1 / noise.n)
    needed = n_for_margin(share, rules.margin, rules.alpha)
    line += f": the smallest loss that shows is {_loss(noise.n, share, rules)}"
    if needed <= noise.n:
        return [line]
    return [
        f"{line}; a margin of {100 * rules.margin:g} points takes {needed:,} questions, so"
        " `unknown` is likely"
    ]


def _deciding(noise: Noise, rules: Rules) -> str:
    """Return why tokens decide, or do not although they were to; empty if the score does."""
    if rules.tokens == "strict":
        return "tokens decide, as was asked for, and one hard divergence fails"
    if rules.tokens == "reported":
        return ""
    if noise.tokens:
        return "the engine is declared bit-exact and is not, so no arm passes"
    return "the engine is declared bit-exact, so tokens are compared, and one hard divergence fails"


def _loss(n: int, share: float, rules: Rules) -> str:
    found = mde(n, share, rules.alpha)
    return "none" if found is None else f"{100 * found:.2f} points"
