#!/usr/bin/env bash
# kvpress keeps a compressed cache in the order of scores, and presses that go by position take it for the order of tokens: sinks and window are lost.
#
# Package     kvpress 0.5.5, transformers 5.2.0, torch 2.13.0 (a Llama of one layer with random weights)
# Surprise    `StreamingLLMPress` keeps the first four tokens and the last ones. Every press by scores leaves the cache in the order in which
#             `topk` gives the kept entries, which is that of the scores, and among equal scores none at all. Once is harmless, as keys carry
#             their positions. The second compression of the same cache takes places for positions: with `DecodingPress(StreamingLLMPress())`
#             sinks go at the second compression, and other tokens stay for good; `ComposedPress([KnormPress(), StreamingLLMPress()])` keeps
#             what has the smallest norms, not sinks and window. The sizes are right all the while.
# Who         Whoever measures compression while decoding, or two presses in a row: the method on the label is not the one that is measured.
# Documented  No: sinks are "always preserve[d]". ComposedPress warns of presses that need hidden states or attention weights.
# Upstream    NVIDIA/kvpress issue #173 (closed) asks about the order in general; no example of a press that goes wrong.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
pip() { "$work/venv/bin/python" -m pip install -qq --disable-pip-version-check "$@"; }
index=()
[[ -n ${TORCH_INDEX:-} ]] && index=(--extra-index-url "$TORCH_INDEX")
pip "${index[@]}" torch==2.13.0
pip transformers==5.2.0 kvpress==0.5.5
cd "$work"
HOME=$work HF_HUB_OFFLINE=1 "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
from importlib.metadata import version

import torch
from kvpress import ComposedPress, DecodingPress, KnormPress, StreamingLLMPress
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

torch.set_num_threads(1)
torch.manual_seed(0)
config = LlamaConfig(vocab_size=200, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
                     head_dim=32, pad_token_id=0, bos_token_id=None, eos_token_id=None)
model = LlamaForCausalLM(config).eval()
PROMPT, TARGET, INTERVAL, SINKS = 60, 20, 8, 4
TEXT = torch.randperm(199)[None, :124] + 1  # no token twice, so that a value says which token it is of
WHOLE = DynamicCache()
with torch.no_grad():
    model(TEXT, past_key_values=WHOLE)


def kept(cache):
    """Which tokens' entries the cache holds in its first head, in its order."""
    values = cache.layers[0].values[0, 0]
    return torch.cdist(values, WHOLE.layers[0].values[0, 0]).argmin(-1).tolist()


@torch.no_grad()
def prefilled(press):
    cache = DynamicCache()
    with press(model):
        model.model(TEXT[:, :PROMPT], past_key_values=cache)
    return sorted(kept(cache))


print("kvpress", version("kvpress"), "transformers", version("transformers"), "torch", torch.__version__)
print("expected: wherever StreamingLLMPress comes last, tokens 0 to 3 are kept and the others are the last ones\n")
alone = prefilled(StreamingLLMPress(compression_ratio=0.5))
print("prompt of 60, StreamingLLM alone, half:      ", *alone)
composed = prefilled(ComposedPress([KnormPress(compression_ratio=0.25), StreamingLLMPress(compression_ratio=1 / 3)]))
print("Knorm, then StreamingLLM, half in all:       ", *composed)
print(f"\nDecodingPress(StreamingLLMPress()), {TARGET} tokens kept every {INTERVAL}\nat token   sinks kept   others, of the last {TARGET - SINKS} tokens   kept beside them")
rows = []
cache = DynamicCache()
with torch.no_grad(), DecodingPress(base_press=StreamingLLMPress(), compression_interval=INTERVAL, target_size=TARGET)(model):
    model.model(TEXT[:, :PROMPT], past_key_values=cache)
    for at in range(PROMPT, TEXT.shape[1]):
        here = torch.tensor([at])
        model(TEXT[:, at : at + 1], past_key_values=cache, position_ids=here[None], cache_position=here)
        if cache.layers[0].keys.shape[2] == TARGET:
            entries = set(kept(cache))
            sinks, window = set(range(SINKS)), set(range(at + 1 - TARGET + SINKS, at + 1))
            rows.append((len(entries & sinks), len(entries & window)))
            print(f"{at:<11}{rows[-1][0]:<13}{rows[-1][1]:<31}{' '.join(map(str, sorted(entries - sinks - window)))}")
facts = [alone == [*range(SINKS), *range(34, PROMPT)], composed[:SINKS] != list(range(SINKS)), rows[0] == (SINKS, TARGET - SINKS),
         rows[-1][0] < SINKS and rows[-1][1] < TARGET - SINKS]
if not all(facts):
    raise SystemExit(f"changed: {facts} {rows}")
print("\nseen: behind the first compression places are not positions")
PYTHON
