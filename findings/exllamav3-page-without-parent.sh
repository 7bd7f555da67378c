#!/usr/bin/env bash
# exllamav3 takes a page from the middle of one answer for the beginning of a prompt, and a new prompt resumes on its keys and values.
#
# Package     exllamav3 1.6.5 (its generator, jobs, page table and cache; the model and the extension are stand-ins)
# Surprise    A prompt's beginning is also looked for among pages that are not whole: a page without a parent (`prev_hash` None) is one with
#             which a prompt begins, and as many of its tokens as are alike are copied (generator/job.py:1459 to 1491). Two jobs with one
#             prompt of 257 tokens that are queued together share its first page, and when the second one is given its own page for what
#             comes next, the shared one is not computed yet, so that page is linked to nothing (generator/pagetable.py:644). The link is
#             written by a prefill of that page or of the one before; the second job makes neither, as the first one has computed the
#             prompt by then. So its answer lies in a page that says of itself that it begins a text. `CachePage.sub_ref` leaves such
#             pages too: one that gets its contents back while another page has its hash by now loses its link, and keeps its tokens.
# Who         Whoever asks twice for one prompt whose length is one more than whole pages, several samples of one prompt for instance.
#             A later prompt that begins with that answer (its first two tokens are enough) goes on from keys and values that were
#             computed 256 tokens further on, behind another prompt: a wrong answer, without a message. Hybrid models are safe: they
#             copy no beginnings.
# Documented  No.
# Upstream    No report known.
set -euo pipefail
lib=$(cd "$(dirname "${BASH_SOURCE[0]}")/lib" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck source=lib/exllamav3.sh
source "$lib/exllamav3.sh"
exllamav3_generator "$work" exllamav3==1.6.5
cd "$work"
export HOME=$work PYTHONPATH=$lib
"$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
from exllamav3_generator import Engine, enter

print("exllamav3", enter())
print("expected: what a prompt resumes on was computed for the same tokens at the same positions\n")


def resumed(length):
    """Ask twice for one prompt, then with the second answer as a prompt."""
    engine = Engine(pages=16)
    prompt, answer = list(range(1000, 1000 + length)), list(range(6000, 6010))
    engine.submit("first", prompt, range(5000, 5010))
    engine.submit("second", prompt, answer)
    engine.run()
    engine.told.clear()
    engine.submit("third", [prompt[-1], *answer[:9], 7, 8, 9], range(8000, 8003))
    engine.run()
    name, start, stop, wrong = engine.told[0]
    print(f"prompts of {length}   {name} computes [{start},{stop}), {len(wrong)} of the {start} tokens before that have keys and values of another prefix")
    return wrong


wrong = resumed(257)
right = resumed(258)
if not wrong or right:
    raise SystemExit(f"changed: {wrong}, {right}")
print(f"\nseen: behind two prompts of 257 tokens a third one resumes on {len(wrong)} keys and values that were computed behind those")
PYTHON
