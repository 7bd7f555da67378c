#!/usr/bin/env bash
# x-transformers caches by default what it cannot resume: with shifted tokens or data-dependent ALiBi cached generation is another model's.
#
# Package     x-transformers 2.31.10, torch 2.13.0 (decoders of two layers with random weights)
# Surprise    `generate` uses the cache of keys and values by default, unless the network's `can_cache_kv` is false, which is how one that
#             cannot be cached (`attn_selective`) says so. It stays true with `shift_tokens=1`, where half of a layer's channels are those of
#             the token before: behind a cache a layer sees the last token alone, and what is shifted in is zero. It stays true with
#             `attn_data_dependent_alibi` (the forgetting transformer), whose decays are summed over the tokens that are given, so those of
#             cached tokens are missing. Logits are off by up to what they are large, and nothing raises; rotary, xPos, ALiBi and relative
#             positions are exact.
# Who         Whoever samples from such a model, or compares it by its answers: a loss of training says nothing of it.
# Documented  No.
# Upstream    lucidrains/x-transformers issues #219, #311 and #322 are about caches in other settings; of these options no report known.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
pip() { "$work/venv/bin/python" -m pip install -qq --disable-pip-version-check "$@"; }
index=()
[[ -n ${TORCH_INDEX:-} ]] && index=(--extra-index-url "$TORCH_INDEX")
pip "${index[@]}" torch==2.13.0
pip x-transformers==2.31.10
cd "$work"
HOME=$work "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
from importlib.metadata import version

import torch
from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

torch.set_num_threads(1)
PROMPT, WHOLE = 12, 32
RIGHT = {
    "rotary": {"rotary_pos_emb": True},
    "xPos": {"rotary_xpos": True},
    "ALiBi": {"alibi_pos_bias": True, "alibi_num_heads": 2},
    "relative": {"rel_pos_bias": True},
    "selective": {"attn_selective": True},
}
WRONG = {
    "shifted tokens": {"shift_tokens": 1},
    "ALiBi by data": {"attn_data_dependent_alibi": True},
}


def network(options):
    torch.manual_seed(0)
    layers = Decoder(dim=32, depth=2, heads=2, attn_dim_head=16, **options)
    model = TransformerWrapper(num_tokens=64, max_seq_len=64, attn_layers=layers).eval()
    for weight in model.parameters():
        if weight.dim() >= 2:
            torch.nn.init.normal_(weight, 0, 0.2)
    return model


@torch.no_grad()
def compared(model):
    """Largest difference of logits behind a cache from those without one, how large they are, and whether greedy answers are equal."""
    text = torch.randint(0, 64, (2, WHOLE))
    plain = model(text)
    assert torch.allclose(model(text[:, :PROMPT]), plain[:, :PROMPT], atol=1e-4)  # tokens do not see later ones
    logits, cache = model(text[:, :PROMPT], return_intermediates=True)
    off = 0.0
    for tokens in range(PROMPT + 1, WHOLE + 1):
        logits, new = model(text[:, :tokens], return_intermediates=True, cache=cache if model.can_cache_kv else None)
        cache = new
        off = max(off, (logits[:, -1] - plain[:, tokens - 1]).abs().max().item())
    sampler = AutoregressiveWrapper(model)
    cached, uncached = (sampler.generate(text[:, :PROMPT], 20, temperature=0.0, cache_kv=given) for given in (True, False))
    return off, plain.abs().max().item(), torch.equal(cached, uncached)


print("x-transformers", version("x-transformers"), "torch", torch.__version__)
print("expected: where can_cache_kv is true, a cache changes nothing but rounding\n")
print("options             can_cache_kv   logits off by   largest logit   greedy answers of generate()")
seen = {}
for name, options in (RIGHT | WRONG).items():
    model = network(options)
    off, large, equal = compared(model)
    seen[name] = model.can_cache_kv, off, equal
    print(f"{name:20}{model.can_cache_kv!s:15}{off:<16.1g}{large:<16.2g}{'equal' if equal else 'differ'}")
facts = [all(seen[name][1] < 1e-3 and seen[name][2] for name in RIGHT), all(seen[name][0] and seen[name][1] > 0.05 for name in WRONG),
         not seen["selective"][0], not seen["shifted tokens"][2]]
if not all(facts):
    raise SystemExit(f"changed: {facts} {seen}")
print("\nseen: two options say that they can be cached, and are other models with a cache")
PYTHON
