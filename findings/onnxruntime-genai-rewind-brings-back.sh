#!/usr/bin/env bash
# In onnxruntime-genai the token behind `rewind_to(n)` comes back: it is put in again before the model is asked.
#
# Package     onnxruntime-genai 0.18.0 (onnxruntime 1.32.0; a Llama of two layers with random weights, made here by its own builder)
# Surprise    After `rewind_to(n)` the sequence has n tokens. The next `generate_next_token()` adds two: first the token that stood at n and
#             was to be thrown away, then one that the model chooses behind it. An answer that is drawn again, at any temperature and
#             seed, begins with the token that was rewound, and a stream that reads `get_next_tokens()` never sees it. `get_logits()`
#             behind a rewind puts it in too and gives the logits behind n + 1 tokens. `append_tokens` after the rewind is right.
# Who         Whoever uses a rewind as a prefix cache of one conversation: branches, retries, rejected drafts, scores of alternatives at a
#             position. The answers look sound, since they go on well from a token that nobody asked for.
# Documented  No; `Generator.rewind_to` has no text beyond its signature.
# Upstream    microsoft/onnxruntime-genai pull request #2555 says that the token is queued for generation to replay it, and would have
#             `get_logits()` replay it as well.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
pip() { "$work/venv/bin/python" -m pip install -qq --disable-pip-version-check "$@"; }
index=()
[[ -n ${TORCH_INDEX:-} ]] && index=(--extra-index-url "$TORCH_INDEX")
pip "${index[@]}" torch==2.13.0
pip onnxruntime-genai==0.18.0 onnxruntime==1.32.0 onnx==1.23.2 onnx_ir==1.1.0 transformers==5.23.0
cd "$work"
export HOME=$work HF_HUB_OFFLINE=1
"$work/venv/bin/python" - >"$work/log" 2>&1 <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

letters = sorted(pre_tokenizers.ByteLevel.alphabet())
plain = Tokenizer(models.BPE({letter: n for n, letter in enumerate([*letters, "<pad>", "<bos>", "<eos>"])}, []))
plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
PreTrainedTokenizerFast(tokenizer_object=plain, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>").save_pretrained("model")
torch.manual_seed(0)
config = LlamaConfig(vocab_size=272, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
                     head_dim=32, max_position_embeddings=2048, pad_token_id=256, bos_token_id=257, eos_token_id=258, tie_word_embeddings=False)
model = LlamaForCausalLM(config).float().eval()
with torch.no_grad():
    for weight in model.parameters():
        if weight.dim() >= 2:
            weight.normal_(0, 0.15)
model.save_pretrained("model")
PYTHON
"$work/venv/bin/python" -m onnxruntime_genai.models.builder -i model -o onnx -p fp32 -e cpu -c cache >>"$work/log" 2>&1 || { tail -5 "$work/log" >&2; exit 1; }
"$work/venv/bin/python" - 2>>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
import numpy
import onnxruntime_genai as og

model = og.Model("onnx")
PROMPT = numpy.random.default_rng(0).integers(0, 250, 60).astype(numpy.int32)


def fed(tokens, **options):
    settings = og.GeneratorParams(model)
    settings.set_search_options(max_length=200, **({"do_sample": False} | options))
    generator = og.Generator(model, settings)
    generator.append_tokens(tokens)
    return generator


def tokens(generator):
    return [int(token) for token in generator.get_sequence(0)]


def chosen(prompt):
    generator = fed(prompt)
    generator.generate_next_token()
    return tokens(generator)[-1]


def logits(generator):
    return numpy.array(generator.get_logits()).reshape(-1, 272)[-1]


print("onnxruntime-genai", og.__version__)
print("expected: behind rewind_to(n) the next call adds one token, which the model chooses behind the first n\n")
print("rewind to   calls   tokens added   the first one: added, stood there, chosen by the model")
added = {}
for n in (60, 50, 40):
    generator = fed(PROMPT)
    for _ in range(3):
        generator.generate_next_token()
    stood = tokens(generator)[n]
    generator.rewind_to(n)
    assert generator.token_count() == n
    generator.generate_next_token()
    added[n] = tokens(generator)[n:], stood, chosen(PROMPT[:n])
    print(f"{n:9}   {1:5}   {len(added[n][0]):12}   {added[n][0][0]}, {stood}, {added[n][2]}")
same = 0
for seed in range(20):
    generator = fed(PROMPT, do_sample=True, temperature=2.0, top_k=200, random_seed=seed)
    generator.generate_next_token()
    first = tokens(generator)[60]
    generator.rewind_to(60)
    generator.generate_next_token()
    same += tokens(generator)[60] == first
print(f"\ndrawn again at temperature 2 with 20 seeds: the same first token {same} times")
generator = fed(PROMPT)
generator.rewind_to(50)
behind, at = logits(generator), {n: logits(fed(PROMPT[:n])) for n in (50, 51)}
off = {n: float(abs(behind - at[n]).max()) for n in at}
print(f"logits behind rewind_to(50): {off[50]:.1e} from those of 50 tokens, {off[51]:.1e} from those of 51; the sequence has {generator.token_count()}")
generator = fed(PROMPT)
generator.rewind_to(40)
generator.append_tokens(PROMPT[::-1][:20].copy())
right = abs(logits(generator) - logits(fed(numpy.concatenate([PROMPT[:40], PROMPT[::-1][:20]])))).max()
print(f"append_tokens behind a rewind: {right:.1e} from the same tokens without one")
facts = [all(len(new) == 2 and new[0] == stood for new, stood, _ in added.values()), any(stood != choice for _, stood, choice in added.values()),
         same == 20, off[51] < 1e-3 < off[50], right < 1e-3]
if not all(facts):
    raise SystemExit(f"changed: {facts}")
print("\nseen: the rewound token is put back, and what follows is generated behind it")
PYTHON
