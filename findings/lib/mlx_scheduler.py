"""The scheduler of vllm-mlx or of rapid-mlx, which was made from it, with a small Llama of mlx-lm
with random weights; imported by the scripts that need one.

It needs one of the two, mlx-lm and mlx, and gives `scheduler`, `ask` and `words`.
"""

import importlib.util
import itertools
import logging
import random

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models import llama

logging.disable(logging.WARNING)
package = "vllm_mlx" if importlib.util.find_spec("vllm_mlx") else "rapid_mlx"
requests = importlib.import_module(f"{package}.request")
schedulers = importlib.import_module(f"{package}.scheduler")
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
    return schedulers.Scheduler(
        model, Words(), schedulers.SchedulerConfig(cache_memory_mb=200, **options)
    )


def ask(engine, prompt, length, stop=()):
    """Return (the tokens of the prompt that the model read, the greedy answer of at most so many tokens, ended by those of `stop`)."""  # noqa: E501
    before = read
    greedy = requests.SamplingParams(max_tokens=length, temperature=0.0, stop_token_ids=list(stop))
    engine.add_request(requests.Request(f"request {next(names)}", list(prompt), greedy))
    while engine.has_requests():
        for output in engine.step().outputs:
            answer = output.output_token_ids
    return read - before - len(answer), list(answer)


def words(seed, count):
    """Return so many random tokens."""
    draw = random.Random(seed)
    return [draw.randrange(VOCABULARY) for _ in range(count)]
