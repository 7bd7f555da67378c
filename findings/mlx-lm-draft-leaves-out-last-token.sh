#!/usr/bin/env bash
# Behind an answer of mlx-lm the prompt cache has read the last token; with a draft model, only if the draft had guessed that token.
#
# Package     mlx-lm 0.32.2, mlx 0.32.4
# Surprise    Both ways of generating go on from a `prompt_cache` and leave it behind the answer for the next turn, and both give the same
#             tokens. `generate_step` has read all of them by then, the last one too. `speculative_generate_step` has read the last token if it
#             was a guess that was right, and not if the model gave it behind the guesses, as it does once in each round. So how many
#             tokens the cache has depends on where in a round the answer ends, which no caller is told (`from_draft` of a response says it,
#             for who knows what it means), and the next turn is answered as if the last token, the end of a turn as a rule, were not there.
#             By its source the server keeps the cache under all tokens of prompt and answer in both cases.
# Who         Conversations with a draft model, by `prompt_cache` or by the server.
# Documented  No.
# Upstream    No report known for mlx-lm. The same was reported of another: google-ai-edge/LiteRT-LM issue #3439.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -qq --disable-pip-version-check mlx==0.32.4 mlx-cpu==0.32.4 mlx-lm==0.32.2
cd "$work"
HOME=$work HF_HUB_OFFLINE=1 "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
import random
from importlib.metadata import version

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.generate import generate_step, speculative_generate_step
from mlx_lm.models import llama
from mlx_lm.models.cache import make_prompt_cache

VOCABULARY, COUNTED = 200, 90  # behind a token below 90 the next number follows, so that guesses are right; what follows others depends on the text


class Counting(llama.Model):
    def __call__(self, inputs, *arguments, **options):
        follows = mx.where(inputs < COUNTED, inputs + 1, VOCABULARY)
        return super().__call__(inputs, *arguments, **options) + 1000.0 * (mx.arange(VOCABULARY) == follows[..., None])


def random_model(seed):
    mx.random.seed(seed)
    model = Counting(llama.ModelArgs(
        model_type="llama", hidden_size=32, num_hidden_layers=2, intermediate_size=64, num_attention_heads=2, num_key_value_heads=2, head_dim=16,
        rms_norm_eps=1e-5, vocab_size=VOCABULARY, tie_word_embeddings=False,
    ))
    model.update(tree_map(lambda w: mx.random.normal(w.shape) * 0.3 if w.ndim > 1 else w, model.parameters()))
    return model


def text(seed, length):
    """Return a text of tokens that no number follows."""
    draw = random.Random(seed)
    return [draw.randrange(COUNTED + 1, VOCABULARY) for _ in range(length)]


model, draft = random_model(1), random_model(2)
prompt, turn = [*text(1, 20), 5], text(3, 3)


def plain(tokens, length, cache=None):
    return [int(token) for token, _ in generate_step(mx.array(tokens), model, max_tokens=length, prompt_cache=cache)]


def guessed(tokens, length, cache):
    return list(speculative_generate_step(mx.array(tokens), model, draft, max_tokens=length, num_draft_tokens=3, prompt_cache=cache))


print("mlx-lm", version("mlx-lm"), "mlx", version("mlx"))
print("expected: behind the same answer the cache has read the same tokens, and the next turn is answered the same\n")
print("tokens of     last one     in the cache         next turn's answer")
print("the answer    guessed      alone   with draft   alone   with draft")
seen = []
for length in range(1, 13):
    alone, both = make_prompt_cache(model), make_prompt_cache(model) + make_prompt_cache(draft)
    answer, steps = plain(prompt, length, alone), guessed(prompt, length, both)
    read = [cache[0].offset - len(prompt) for cache in (alone, both)]
    right, without = plain(prompt + answer + turn, 8), plain(prompt + answer[:-1] + turn, 8)
    next_alone, next_both = plain(turn, 8, alone), [int(token) for token, _, _ in guessed(turn, 8, both)]
    judged = ["right" if tokens == right else "as without the last token" if tokens == without else "another" for tokens in (next_alone, next_both)]
    last = bool(steps[-1][2])
    seen.append(([int(token) for token, _, _ in steps] == answer, read[0] == length, read[1] == length - (not last), judged[0] == "right",
                 judged[1] == ("right" if last else "as without the last token")))
    print(f"{length:<14}{'yes' if last else 'no':13}{read[0]:<8}{read[1]:<13}{judged[0]:8}{judged[1]}")
    if last != (length % 4 > 0):
        raise SystemExit(f"changed: the last of {length} tokens is {'a guess' if last else 'no guess'}")
if not all(map(all, seen)):
    raise SystemExit(f"changed: {seen}")
print("\nseen: an answer that ends behind the guesses of a round is kept without its last token")
PYTHON
