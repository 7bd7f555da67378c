#!/usr/bin/env bash
# In onnxruntime-genai a rewind that is refused, since a hybrid's states cannot be rewound, has rewound the tokens and the keys all the same.
#
# Package     onnxruntime-genai 0.18.0 (onnxruntime 1.32.0; a Qwen3.5 of three layers with random weights, made here by its own builder)
# Surprise    `rewind_to(n)` raises where a model has recurrent states and there is no snapshot at n. By then the sequence, positions and
#             keys are cut to n tokens (`Generator::RewindToLength` rewinds the sequence first, `DecoderOnly_State::RewindTo` the states
#             last), and the states are those of all. `token_count()` says n. What is appended afterwards is behind a text that
#             nobody wrote. A second call of the same `rewind_to(n)` is not refused any more, since n is the length: it returns.
# Who         Whoever tries to rewind and goes on as before where that is not possible, or tries again.
# Documented  No. The message says that a snapshot is needed, and not that the generator is of no use any more. `rewind_to(0)` mends it.
# Upstream    No report known.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck source=lib/onnxruntime_genai.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/onnxruntime_genai.sh"
onnxruntime_genai "$work" onnxruntime-genai==0.18.0 qwen3_5
"$work/venv/bin/python" - 2>>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
from onnxruntime_genai_model import Asked

asked = Asked()
text, more = asked.tokens[:60], asked.tokens[60:90]
print("onnxruntime-genai", asked.og.__version__)
print("expected: a generator whose rewind was refused is as it was: 60 tokens, and 30 more go behind them\n")


def refused(generator):
    try:
        generator.rewind_to(20)
    except RuntimeError as error:
        return "snapshot" in str(error)
    return False


generator = asked.generator(text)
first, held, second = refused(generator), generator.token_count(), refused(generator)
print(f"rewind_to(20) is refused: {first}; token_count() is {held} behind it; the same call again is refused: {second}")
generator.append_tokens(more)
off = {60: asked.off(generator, asked.joined(text, more)), 20: asked.off(generator, asked.joined(text[:20], more))}
print(f"30 tokens more: logits are {off[60]:.1e} from those of 60 + 30 tokens, {off[20]:.1e} from those of 20 + 30")
generator.rewind_to(0)
generator.append_tokens(more)
mended = asked.off(generator, more)
print(f"rewind_to(0), 30 tokens: {mended:.1e} from those of a new generator")
if (first, held, second) != (True, 20, False) or min(off.values()) < 0.01 or mended > 1e-4:
    raise SystemExit(f"changed: {first} {held} {second} {off} {mended}")
print("\nseen: tokens and keys are rewound, states are not")
PYTHON
