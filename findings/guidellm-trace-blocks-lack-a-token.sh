#!/usr/bin/env bash
# Where a tokenizer begins texts with a token of its own, GuideLLM replays a trace with one shared cache block less than the trace says.
#
# Package     guidellm 0.8.1, transformers 5.23.0, tokenizers 0.23.3 (a tokenizer of bytes, with and without a first token, made here)
# Surprise    A trace names the blocks of each prompt by hash ids, and prompts with equal ids in front share those blocks. GuideLLM encodes
#             a text for each block, which with such a tokenizer (Llama, Mistral, Gemma) begins with the first token, cuts it to the block's
#             size, and leaves the first tokens out when it decodes. So a prompt of k blocks is k - 1 tokens short of its length, and two
#             prompts that share k blocks share k - 1 tokens less: with k > 1 the last shared block of an engine is not full any more.
# Who         Hit rates that are measured by a replay: for the trace's own block size each prefix loses a block, and the usage that is
#             reported differs from the trace's.
# Documented  The other way round: "Generated prompts match the prompt token count of the row".
# Upstream    No report known.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
pip() { "$work/venv/bin/python" -m pip install -qq --disable-pip-version-check "$@"; }
index=()
[[ -n ${TORCH_INDEX:-} ]] && index=(--extra-index-url "$TORCH_INDEX")
pip "${index[@]}" torch==2.13.0
pip guidellm==0.8.1 transformers==5.23.0 tokenizers==0.23.3
cd "$work"
HOME=$work HF_HUB_OFFLINE=1 "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
from importlib.metadata import version

from faker import Faker
from guidellm.data.deserializers.trace_mooncake import MooncakeTraceFormat
from guidellm.schemas.data.deserializers import MooncakeTraceFormatArgs
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

BLOCK = 64
ROWS = [{"timestamp": float(at), "input_length": 4 * BLOCK, "output_length": 8, "hash_ids": [0, 1, 2, 3 + at]} for at in range(2)]


def tokenizer(first):
    """A token for each byte, so that a text has the same tokens wherever it stands."""
    plain = Tokenizer(models.BPE({letter: at for at, letter in enumerate([*sorted(pre_tokenizers.ByteLevel.alphabet()), "<s>"])}, []))
    plain.pre_tokenizer, plain.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    if first:
        plain.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", plain.token_to_id("<s>"))])
    return PreTrainedTokenizerFast(tokenizer_object=plain, bos_token="<s>")


print("guidellm", version("guidellm"), "transformers", version("transformers"))
print(f"expected: two prompts of {4 * BLOCK} tokens, of which the first {3 * BLOCK} are equal, as the server encodes them\n")
print(f"tokenizer           tokens of the prompts   equal ones in front   blocks of {BLOCK} that are hit")
seen = {}
for name, first in (("no first token", False), ("a first token", True)):
    server, words = tokenizer(first), Faker()
    words.seed_instance(0)
    arguments = MooncakeTraceFormatArgs(kind="mooncake", source={"kind": "in_memory_dict_list", "data": ROWS}, hash_id_block_size=BLOCK)
    trace = MooncakeTraceFormat(arguments, None)
    prompts = [server.encode(trace.create_prompt(row, server, words)) for row in ROWS]
    equal = next(at for at, (one, other) in enumerate(zip(*prompts)) if one != other)
    seen[name] = *(len(prompt) for prompt in prompts), equal
    print(f"{name:20}{seen[name][0]}, {seen[name][1]:<19}{equal:<22}{equal // BLOCK}")
if seen["no first token"][:2] != (256, 256) or seen["a first token"][:2] != (253, 253) or not seen["a first token"][2] < 192 <= seen["no first token"][2]:
    raise SystemExit(f"changed: {seen}")
print("\nseen: each block but the first is a token short")
PYTHON
