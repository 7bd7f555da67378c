#!/usr/bin/env bash
# A conversation's next prompt does not begin with its last one: Mistral's tokenizers move the system prompt and the tools.
#
# Package     mistral-common 1.13.1 (the tokenizers of versions 2, 3 and 7 that it ships)
# Surprise    In versions 2 and 3 the system prompt and the list of tools stand at the *last* user message. With each turn they move
#             behind the conversation so far, so two prompts in a row share two tokens and the turns before. Version 7 keeps the
#             system prompt in front and still moves the tools.
# Who         Whoever expects a prefix cache to serve a chat: the long part that all requests have in common is computed for every
#             turn again, and no two conversations share it. A router that looks at the messages, where the system prompt is
#             first, foresees hits that cannot be.
# Documented  In docstrings of the tokenizers (tools "are encoded in the last user message"); a chat request has the system first.
# Upstream    By design of these formats; no report known that names the cache.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -qq --disable-pip-version-check mistral-common==1.13.1 sentencepiece==0.2.3
cd "$work"
HOME=$work "$work/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

from mistral_common.protocol.instruct.messages import AssistantMessage, SystemMessage, UserMessage
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.instruct.tool_calls import Function, Tool
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

SYSTEM = "You are the clerk of a small shop and answer in one sentence. " * 20
TOOLS = [Tool(function=Function(name=name, description=f"looks up the {name}", parameters={"type": "object", "properties": {"of": {"type": "string"}}}))
         for name in ("price", "stock")]


def shared(one, other):
    return next((n for n, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


def turns(tokenizer, tools):
    messages, prompts = [SystemMessage(content=SYSTEM), UserMessage(content="What do three apples cost?")], []
    for turn in range(4):
        prompts.append(tokenizer.encode_chat_completion(ChatCompletionRequest(messages=messages, tools=tools, model="any")).tokens)
        messages = messages + [AssistantMessage(content=f"They cost {turn} coins."), UserMessage(content=f"And {turn} more?")]
    return prompts


print("mistral-common", version("mistral-common"))
print("expected: each prompt begins with all of the one before, since a turn only adds messages\n")
print("tokenizer  tools   tokens of the prompts      of which the next one shares")
rows = {}
for name in ("v1", "v2", "v3", "v7"):
    for tools in (None, TOOLS):
        if name == "v1" and tools:
            continue
        prompts = turns(getattr(MistralTokenizer, name)(), tools)
        common = [shared(a, b) for a, b in zip(prompts, prompts[1:])]
        rows[name, bool(tools)] = [c == len(p) for c, p in zip(common, prompts)], common
        print(f"{name:10} {'yes' if tools else 'no':6}  {', '.join(map(str, map(len, prompts))):26} {', '.join(map(str, common))}")
kept = {key for key, (whole, _) in rows.items() if all(whole)}
lost = {key for key, (_, common) in rows.items() if common[0] <= 2}
if kept != {("v1", False), ("v7", False)} or lost != {("v2", False), ("v2", True), ("v3", False), ("v3", True)}:
    raise SystemExit(f"changed: next prompts now extend the last ones with {sorted(kept)}, and share nothing with {sorted(lost)}")
print("\nseen: v2 and v3 share the first one or two tokens and the turns before; v7 shares all up to its tools")
PYTHON
