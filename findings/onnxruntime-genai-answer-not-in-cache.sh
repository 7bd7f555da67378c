#!/usr/bin/env bash
# In onnxruntime-genai the last token of an answer that is cut short is not in the cache when the next turn is appended: nothing reads it.
#
# Package     onnxruntime-genai 0.18.0 (onnxruntime 1.32.0; a Qwen3.5 of three layers with random weights, made here by its own builder)
# Surprise    `generate_next_token()` adds a token to the sequence and leaves it to the next call to compute it. `append_tokens` computes
#             what is appended and no more, at the positions behind that token, so in its place there are no keys, values or states. A
#             `get_logits()` in between computes it, and so all is right. Nothing is raised, as long as past and present share a buffer
#             (what the builder writes into a configuration); in buffers that grow `append_tokens` raises. `snapshot_state()` at
#             that place takes down the length with the token and the states without it: what is appended behind a rewind to it is wrong.
#             An answer that ends by itself is right: its end-of-text token is not in the sequence at all, so the next turn is read
#             without it.
# Who         Whoever has a conversation with one Generator and ends an answer himself, at a number of tokens, at a stop string or
#             because somebody interrupted it: the next turn is read without the last word. Answers look sound.
# Documented  No. The example `model-chat.py` (August 2026) appends the next turn straight behind an answer that was interrupted.
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
prompt, turn = asked.tokens[:60], asked.tokens[60:90]
print("onnxruntime-genai", asked.og.__version__)
print("expected: behind a prompt, an answer and a next turn the logits are those of the three as one text\n")


def answered(tokens, **options):
    generator = asked.generator(prompt, **options)
    for _ in range(tokens):
        generator.generate_next_token()
    return generator, asked.joined(generator.get_sequence(0))


print("what comes behind an answer                 logits off   with an answer of")
seen = {}
for tokens in (1, 4):
    generator, text = answered(tokens)
    generator.append_tokens(turn)
    seen["append", tokens] = asked.off(generator, asked.joined(text, turn))
    print(f"{'append_tokens(turn)':42}  {seen['append', tokens]:10.1e}   {tokens:17}   wrong")
generator, text = answered(4)
generator.get_logits()
generator.append_tokens(turn)
seen["logits"] = asked.off(generator, asked.joined(text, turn))
print(f"{'get_logits(), append_tokens(turn)':42}  {seen['logits']:10.1e}   {4:17}   right")
generator, text = answered(4)
generator.snapshot_state()
generator.get_logits()
generator.append_tokens(turn)
generator.rewind_to(len(text))
generator.append_tokens(turn)
seen["snapshot"] = asked.off(generator, asked.joined(text, turn))
print(f"{'snapshot_state(), ..., rewind_to it, append':42}  {seen['snapshot']:10.1e}   {4:17}   wrong")
generator, text = answered(4)
only_the_end = asked.numpy.array(generator.get_logits())
only_the_end[...] = -100
only_the_end[..., 258] = 100
generator.set_logits(only_the_end)
generator.generate_next_token()
assert generator.is_done() and generator.token_count() == len(text)
generator.append_tokens(turn)
seen["ended"] = asked.off(generator, asked.joined(text, turn))
print(f"{'append_tokens(turn) behind its own end':42}  {seen['ended']:10.1e}   {4:17}   right, without the end-of-text token")
generator, _ = answered(4, past_present_share_buffer=False)
try:
    generator.append_tokens(turn)
    raised = "nothing"
except RuntimeError as error:
    raised = "RuntimeError" if "total_sequence_length must equal past_sequence_length" in str(error) else str(error)
print(f"\nwithout a shared buffer append_tokens raises: {raised}")
wrong = [seen["append", 1], seen["append", 4], seen["snapshot"]]
if min(wrong) < 0.01 or max(seen["logits"], seen["ended"]) > 1e-4 or raised != "RuntimeError":
    raise SystemExit(f"changed: {seen}, raised {raised}")
print("seen: the last token of such an answer is in the sequence, and not in the cache")
PYTHON
