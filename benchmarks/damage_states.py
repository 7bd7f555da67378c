"""What damage to recurrent states costs on a model that has learnt something, by engine: writes a
section of docs/results/score.md.

    python -m benchmarks.damage_states fixtures/checkpoints/bytes --kept FOLDER
        [--engine mlx-lm] [--limit 24] [--write docs/results/score.md]

It measures as `benchmarks.damage_costs` does, behind the prefixes of fixtures/english_texts.
Answers are kept in FOLDER by the checkpoint's digest, so that another checkpoint is asked anew. Of
engines that are not named, the page keeps the rows that it has of the same checkpoint.

Needs what `ci/stage_likelihood.sh` installs for `hybrid`, `hybrid-mlx` and `hybrid-server`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.damage_costs import (
    LLAMA_CPP,
    MLX,
    SERVER,
    TRANSFORMERS,
    Bench,
    Row,
    damaged,
    proxied,
    rows_of,
    table,
)
from benchmarks.damage_costs_asking import CI, served, started
from benchmarks.sections import tell
from cachewitness._util import pages
from cachewitness.parity.likelihood.measuring import Plan
from cachewitness.parity.scores import tasks

TITLE = "## Likelihoods on recurrent states"
TEXTS = Path("fixtures/english_texts/texts.jsonl")
LIMIT = 24
PLAN = Plan(positions=4, noise=3)
"""What is compared: every token of an answer but the first, where there is no noise."""
PROXIED = {
    "none": "",
    "one token lost": "token",
    "32 tokens of the prefix lost": "skipped",
    "its last 32 tokens stale": "stale",
    "another prefix": "whole",
}
"""Faults that the proxy plants into what hits of llama.cpp's server restore."""


def of_transformers(bench: Bench, checkpoint: Path) -> Iterator[Row]:
    """Return the rows of transformers."""
    from benchmarks.damage_costs_faults import STATES, Library

    return damaged(bench, TRANSFORMERS, Library(checkpoint, STATES))


def of_mlx(bench: Bench, checkpoint: Path) -> Iterator[Row]:
    """Return the rows of mlx-lm, on the folder that is made for it."""
    from benchmarks.damage_costs_faults import STATES
    from benchmarks.damage_costs_mlx import Library

    return damaged(bench, MLX, Library(_forms(bench, checkpoint), STATES))


def of_llama_cpp(bench: Bench, checkpoint: Path) -> Iterator[Row]:
    """Yield the rows of llama.cpp's server, on the file that is made for it."""
    with started(SERVER, f"{_forms(bench, checkpoint)}.gguf") as plain:
        cold = bench.cold(LLAMA_CPP, lambda: served(plain()))
        yield from proxied(bench, plain, PROXIED, cold)


def _forms(bench: Bench, checkpoint: Path) -> Path:
    """Return the folder of the checkpoint as mlx-lm reads it, beside a file for llama.cpp."""
    made = bench.kept / "forms"
    if not made.is_dir():
        made.parent.mkdir(parents=True, exist_ok=True)
        script = str(CI / "checkpoint_forms.py")
        subprocess.run([sys.executable, script, str(checkpoint), str(made)], check=True)
    return made


ENGINES = {TRANSFORMERS: of_transformers, MLX: of_mlx, LLAMA_CPP: of_llama_cpp}


def section(lines: list[str], checkpoint: Path, digest: str, limit: int) -> str:
    """Return the section of the page."""
    recipe = json.loads((checkpoint / "recipe.json").read_text(encoding="utf-8"))
    nats = {name: of["nats a byte"] for name, of in recipe["nats"].items()}
    layers = recipe["config"]["layer_types"]
    head = _HEAD.format(
        checkpoint=checkpoint.name,
        digest=digest,
        recurrent=layers.count("linear_attention"),
        full=layers.count("full_attention"),
        learnt=nats["nothing"],
        untrained=nats["untrained"],
        limit=limit,
        plan=f"--limit {limit} --positions {PLAN.positions} --noise {PLAN.noise} --arms hit",
    )
    absent = [engine for engine in ENGINES if not any(f"| {engine} |" in line for line in lines)]
    unmeasured = [f"Not measured on these weights: {', '.join(absent)}."] * bool(absent)
    return pages.flowed("\n\n".join([TITLE, head, table(lines), *unmeasured, _READ]))


_HEAD = """[The checkpoint `{checkpoint}`](../reference/checkpoints.md#a-model-of-bytes),
{recurrent} GatedDeltaNet layers and {full} of full attention (weights {digest}), has read English
text: {learnt:.2f} nats a byte held out, {untrained:.2f} before. Behind 8 prefixes of 642 to 709
bytes from this repository's pages (`fixtures/english_texts`), `{plan}`, in float32. `python -m
benchmarks.damage_states fixtures/checkpoints/{checkpoint} --kept FOLDER --write
docs/results/score.md` writes this section, with the columns of [what damage
costs](#what-damage-costs), one run of each row. In **transformers** and **mlx-lm** the states of a
cache that a hit finds are changed, and keys and values are right, or the other way round. In front
of **llama.cpp**'s server a proxy sends other tokens, so there keys and values are as wrong as the
states."""
_READ = """The size of a change decides. A cost is that of a few tokens of each question, which
transformers and mlx-lm know by the chosen one alone, and chance moves it either way.

`ci/stage_likelihood.sh hybrid hybrid-skipped hybrid-stale hybrid-foreign` (and
`hybrid-mlx`, `hybrid-server` with the same ends) has `score` itself see the like, with states that
are skipped, those of the kept prefix that ends at 512 tokens, and another prompt's. mlx-lm keeps
the token that it answers to a prefix as well, so a few positions do not count there."""


def main() -> None:
    """Measure what is not kept, print the section, and write the page if asked to."""
    parser = argparse.ArgumentParser(description="Measure what damage to states costs.")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--kept", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--engine", choices=[*ENGINES], action="append")
    parser.add_argument("--limit", type=int, default=LIMIT)
    parser.add_argument("--write", type=Path, metavar="PAGE")
    given = parser.parse_args()
    weights = (given.checkpoint / "model.safetensors").read_bytes()
    digest = hashlib.sha256(weights).hexdigest()[:12]
    bench = Bench(given.kept / digest, tasks.texts(TEXTS, given.limit), PLAN)
    measured = {
        engine: partial(ENGINES[engine], bench, given.checkpoint)
        for engine in given.engine or ENGINES
    }
    page = given.write
    same = page is not None and digest in page.read_text(encoding="utf-8")
    lines = rows_of(measured, ENGINES, page if same else None, TITLE)
    tell(section(lines, given.checkpoint, digest, given.limit), page)


if __name__ == "__main__":
    main()
