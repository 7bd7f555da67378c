"""vllm-mlx's scheduler with a small Llama of mlx-lm with random weights; imported by the scripts
that need one.

It needs vllm-mlx, mlx-lm and mlx, and gives `scheduler`, `ask` and `words`.
"""

import itertools
import logging
import random

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models import llama
from vllm_mlx.request import Request, SamplingParams
from vllm_mlx.scheduler import Scheduler, SchedulerConfig

logging.disable(logging.WARNING)
VOCABULARY = 200
names = itertools.count()
read = 0  # tokens that the model has been given


class Model(llama.Model):
    """A Llama that counts the tokens it reads."""

    def __call__(self, inputs, *arguments, **options):
        """Count the tokens of a call, and compute it."""
        global read
        read += inputs.size
        return super().__call__(inputs, *arguments, **options)


class Words:
    """The tokenizer: a token's text is its number."""

    eos_token_id = None
    clean_up_tokenization_spaces = False

    def encode(self, text, **_):
        """Return the numbers that a text names."""
        return [int(word) for word in text.split()]

    def decode(self, tokens, **_):
        """Return the numbers as a text."""
        return " ".join(map(str, tokens))


mx.random.seed(1)
model = Model(
    llama.ModelArgs(
        model_type="llama",
        hidden_size=32,
        num_hidden_layers=2,
        intermediate_size=64,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        rms_norm_eps=1e-5,
        vocab_size=VOCABULARY,
        tie_word_embeddings=False,
    )
)
model.update(
    tree_map(lambda w: mx.random.normal(w.shape) * 0.3 if w.ndim > 1 else w, model.parameters())
)


def scheduler(**options):
    """Return a new scheduler, whose prefix cache is empty, with these options of its configuration."""  # noqa: E501
    return Scheduler(model, Words(), SchedulerConfig(cache_memory_mb=200, **options))


def ask(engine, prompt, length):
    """Return (the tokens of the prompt that the model read, the greedy answer of so many tokens)."""  # noqa: E501
    before, greedy = read, SamplingParams(max_tokens=length, temperature=0.0)
    engine.add_request(Request(f"request {next(names)}", list(prompt), greedy))
    while engine.has_requests():
        for output in engine.step().outputs:
            answer = output.output_token_ids
    return read - before - length, list(answer)


def words(seed, count):
    """Return so many random tokens."""
    draw = random.Random(seed)
    return [draw.randrange(VOCABULARY) for _ in range(count)]
