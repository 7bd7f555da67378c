"""How fast the toy model runs: prefill and decode, over pages, without a cache, and in
transformers, in one run on one machine.

    python -m benchmarks.toy [--device cuda] [--kernels triton] [--checkpoint DIR] [--batch 64] [--write docs/results/speed.md]

All three run the same weights in float32: those of a checkpoint of the published architecture
(Qwen3.5), or random ones of its sizes. Times on a machine that does other things are worth little,
so the section gives ratios beside the rates, every measurement is the best of several, and the
paged and the other executions take turns. Before anything is timed the greedy tokens of the paged
execution are compared with those of `transformers.generate`.
"""  # noqa: E501

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from array import array
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks import sections
from cachewitness._util import pages
from cachewitness.toy.kind import need_torch

need_torch()

import torch

from cachewitness_reference.toy_model import checkpoint, dense
from cachewitness_reference.toy_model.config import ToyConfig
from cachewitness_reference.toy_model.export import PUBLISHED_CHUNK, export
from cachewitness_reference.toy_model.kernels import NAMES, named
from cachewitness_reference.toy_model.paged import Chunk, PagedGroup, Pools, step
from cachewitness_reference.toy_model.tokenizer import as_hugging_face, vocabulary
from cachewitness_reference.toy_model.weights import random_weights

BLOCK = 16
ROUNDS = 3


class Paged:
    """A batch of requests over pages of their own."""

    def __init__(
        self,
        model: checkpoint.Checkpoint,
        prompts: torch.Tensor,
        new: int,
        device: str,
        kernels: str,
    ) -> None:
        self.model = model
        self.prompts = prompts.tolist()
        self.kernels = named(kernels)
        types = model.config.layer_types
        groups = [
            PagedGroup(layers, BLOCK)
            for kind in dict.fromkeys(types)
            if (layers := tuple(i for i, layer_type in enumerate(types) if layer_type == kind))
        ]
        columns = -(-(prompts.shape[1] + new) // BLOCK)
        self.pools = Pools(
            groups, 1 + len(prompts) * len(groups) * columns, model.config, device=device
        )
        free = iter(range(1, self.pools.pages))
        self.tables = [[array("i", islice(free, columns)) for _ in groups] for _ in self.prompts]

    def prefill(self, size: int) -> torch.Tensor:
        """Run the prompts in chunks of `size` tokens and return the tokens that follow."""
        length = len(self.prompts[0])
        for start in range(0, length, size):
            logits = self._run([prompt[start : start + size] for prompt in self.prompts], start)
        return logits.argmax(-1)

    def decode(self, last: torch.Tensor, new: int) -> list[torch.Tensor]:
        """Generate `new` tokens greedily behind `last` [requests]."""
        out = [last]
        start = len(self.prompts[0])
        for position in range(start, start + new - 1):
            logits = self._run([[token] for token in out[-1].tolist()], position)
            out.append(logits.argmax(-1))
        return out

    def _run(self, tokens: list[list[int]], start: int) -> torch.Tensor:
        chunks = [Chunk(own, start, table) for own, table in zip(tokens, self.tables, strict=True)]
        return step(self.pools, chunks, self.model.weights, kernels=self.kernels)


def main(argv: list[str] | None = None) -> int:
    """Measure, print the section, and return 1 if the executions do not generate the same."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--kernels", default="torch", choices=NAMES)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--new", type=int, default=32)
    parser.add_argument("--chunk", type=int, default=256)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args(argv)
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("--device cuda: torch sees no GPU here")
    if options.kernels == "triton" and options.device == "cpu":
        sys.exit("--kernels triton: on the CPU they run in an interpreter, whose time says nothing")
    torch.backends.cudnn.allow_tf32 = (
        False  # transformers' convolutions would be narrower than float32 on a GPU
    )
    with tempfile.TemporaryDirectory() as folder:
        section, same = measure(options, options.checkpoint or random_checkpoint(Path(folder)))
    sections.tell(section, options.write)
    return 0 if same else 1


def measure(options: Any, folder: Path) -> tuple[str, bool]:
    """Return the section of the page, and whether paged execution and transformers generate the
    same.
    """
    from transformers import Qwen3_5ForCausalLM

    model = checkpoint.load(folder, torch.float32, options.device)
    theirs = (
        Qwen3_5ForCausalLM.from_pretrained(folder, dtype=torch.float32).to(options.device).eval()
    )
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(
        model.config.vocab_size, (options.batch, options.prompt), generator=generator
    )
    paged = Paged(model, prompts, options.new, options.device, options.kernels)
    there = prompts.to(options.device)

    def generate(new: int) -> torch.Tensor:
        with torch.inference_mode():
            wanted = {
                "max_new_tokens": new,
                "min_new_tokens": new,
                "do_sample": False,
                "pad_token_id": 0,
            }
            return theirs.generate(there, attention_mask=torch.ones_like(there), **wanted)[
                :, options.prompt :
            ]

    def unsplit() -> None:
        with torch.inference_mode():
            dense.forward(there, model.weights, model.config)

    first = paged.prefill(options.chunk)
    same = torch.equal(torch.stack(paged.decode(first, options.new), dim=1), generate(options.new))
    runs: dict[str, Callable[[], object]] = {
        "paged prefill": lambda: paged.prefill(options.chunk),
        "dense prefill": unsplit,
        "transformers prefill": lambda: generate(1),
        "paged decode": lambda: paged.decode(first, options.new),
        "transformers both": lambda: generate(options.new),
    }
    seconds = best(runs, options.device)
    seconds["transformers decode"] = (
        seconds.pop("transformers both") - seconds["transformers prefill"]
    )
    return render(options, seconds, same), same


def best(runs: dict[str, Callable[[], object]], device: str) -> dict[str, float]:
    """Return the least seconds of each run, all of them in turn, several times."""
    least = dict.fromkeys(runs, float("inf"))
    for _ in range(ROUNDS):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            if device == "cuda":
                torch.cuda.synchronize()
            least[name] = min(least[name], time.perf_counter() - began)
    return least


def render(options: Any, seconds: dict[str, float], same: bool) -> str:
    """Return the section of the page."""
    prefilled = options.batch * options.prompt
    decoded = options.batch * (options.new - 1)
    rate = {
        name: (prefilled if "prefill" in name else decoded) / took for name, took in seconds.items()
    }
    gpu = (
        torch.cuda.get_device_name()
        if options.device == "cuda"
        else f"CPU, {torch.get_num_threads()} thread"
    )
    rows = [
        [name, f"{tokens:,.0f}", f"{tokens / rate['transformers ' + name.split()[1]]:.2f}"]
        for name, tokens in rate.items()
    ]
    return pages.render(
        "speed-toy", device=gpu, options=options, rounds=ROUNDS, same=same, rows=rows
    )


def random_checkpoint(folder: Path) -> Path:
    """Write random weights of the published architecture at the toy's size, and return the
    folder.
    """
    words = vocabulary([f" w{number}" for number in range(60)])
    config = ToyConfig(
        vocab_size=len(words),
        hidden_size=128,
        intermediate_size=320,
        layer_types=("linear_attention", "linear_attention", "linear_attention", "full_attention"),
        chunk_size=PUBLISHED_CHUNK,
    )
    export(folder, config, random_weights(config, 0), as_hugging_face(words), {})
    return folder


if __name__ == "__main__":
    sys.exit(main())
