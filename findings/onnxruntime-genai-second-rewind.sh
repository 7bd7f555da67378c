#!/usr/bin/env bash
# In onnxruntime-genai two rewinds in turn leave wrong keys and values behind, unless past and present share a buffer.
#
# Package     onnxruntime-genai 0.18.0 (onnxruntime 1.32.0; a Llama of three layers with random weights, made here by its own builder)
# Surprise    With `past_present_share_buffer=False`, `rewind_to(40)` and then `rewind_to(20)` is not `rewind_to(20)`: the second one cuts
#             the tensors of the last forward by the length that the first one wrote down, so the rows of every head but the first are
#             those of other tokens (`DefaultKeyValueCache::RewindPastTensorsTo`). A forward in between makes it right, as does a
#             shared buffer. Nothing is raised, and `token_count()` is right.
# Who         Whoever steps back token by token, or rewinds to a prefix and then, without a token computed, to a shorter one: retries,
#             clients that go away, several branches that are weighed.
# Documented  No; `Generator.rewind_to` has no text beyond its signature.
# Upstream    No report known.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck source=lib/onnxruntime_genai.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/onnxruntime_genai.sh"
onnxruntime_genai "$work" onnxruntime-genai==0.18.0 llama
"$work/venv/bin/python" - 2>>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
from onnxruntime_genai_model import Asked

asked = Asked()
text, more = asked.tokens[:60], asked.tokens[100:130]
print("onnxruntime-genai", asked.og.__version__)
print("expected: behind rewind_to(20) and 30 other tokens the logits are those of the 50 as one text\n")
print("rewinds of 60 tokens   logits off, shared buffer   buffers that grow")
seen = {}
for lengths in ((20,), (40, 20), (21, 20)):
    for shared in (True, False):
        generator = asked.generator(text, past_present_share_buffer=shared)
        for length in lengths:
            generator.rewind_to(length)
        assert generator.token_count() == 20
        generator.append_tokens(more)
        seen[lengths, shared] = asked.off(generator, asked.joined(text[:20], more))
    print(f"{', '.join(map(str, lengths)):20}   {seen[lengths, True]:25.1e}   {seen[lengths, False]:17.1e}")
wrong = {lengths for (lengths, shared), off in seen.items() if off > 0.01 and not shared}
right = [off for (lengths, shared), off in seen.items() if shared or lengths == (20,)]
if wrong != {(40, 20), (21, 20)} or max(right) > 1e-4:
    raise SystemExit(f"changed: {seen}")
print("\nseen: the second rewind in turn is wrong, where buffers grow")
PYTHON
