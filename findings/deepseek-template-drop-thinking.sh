#!/usr/bin/env bash
# In DeepSeek-V3.2's chat template `drop_thinking=False` drops the thinking, and a prompt's own last token changes with the next turn.
#
# Package     mlx-lm 0.32.2 (`mlx_lm.chat_templates.deepseek_v32`); the copies in SGLang 0.5.23 and lmdeploy 0.18.0 do the same
# Surprise    `encode_messages(..., drop_thinking=True)` is what removes the thinking of turns gone by. With `False` the text is the
#             same: thinking is written behind the last user message alone, whatever the argument. And the tag that ends a prompt
#             (`<think>`) is `</think>` once another user message follows, so the next prompt does not even contain this one: it
#             parts from it at its last token. Behind a round of tools it parts at the first question of that round.
# Who         Whoever expects a prefix cache to serve the next turn. Attention loses the answer and one token. A recurrent state that is
#             kept at a prompt's end, and only there, is never met again; nothing of the conversation is.
# Documented  That thinking is dropped by default, yes; that `False` keeps nothing, no.
# Upstream    No report known.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -qq --disable-pip-version-check transformers==5.23.0
"$work/venv/bin/python" -m pip install -qq --disable-pip-version-check --no-deps mlx-lm==0.32.2
cd "$work"
HOME=$work "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
import importlib.util, os
from importlib.metadata import distribution

found = distribution("mlx-lm")  # the template's file alone: the package itself would import MLX
spec = importlib.util.spec_from_file_location("template", found.locate_file("mlx_lm/chat_templates/deepseek_v32.py"))
template = importlib.util.module_from_spec(spec)
spec.loader.exec_module(template)


def prompt(messages, drop):
    return template.encode_messages(messages, thinking_mode="thinking", drop_thinking=drop)


def user(text):
    return {"role": "user", "content": text}


def assistant(text, thinking, **more):
    return {"role": "assistant", "content": text, "reasoning_content": thinking, **more}


call = {"type": "function", "function": {"name": "price", "arguments": '{"of": "apple"}'}}
first = [{"role": "system", "content": "You are a clerk."}, user("Price of an apple?")]
plain = first + [assistant("Three coins.", "An apple is 3."), user("And of two?")]
in_tools = first + [assistant("", "I look it up.", tool_calls=[call]), {"role": "tool", "content": "3"}]
behind_tools = in_tools + [assistant("Three coins.", "It says 3."), user("And of two?")]

print("mlx-lm", found.version)
print("expected: drop_thinking=False keeps the thinking, and then each prompt begins with the one before and its answer\n")
kept = {}
for drop in (True, False):
    one, two = prompt(first, drop), prompt(plain, drop)
    tools, behind = prompt(in_tools, drop), prompt(behind_tools, drop)
    kept[drop] = (two, behind)
    print(f"drop_thinking={drop}\n  prompt        {one!r}\n  next prompt   {two!r}")
    part = len(os.path.commonprefix([one, two]))
    print(f"  they part at  {one[part - 13:]!r} and {two[part - 13:part + 8]!r}")
    part_tools = len(os.path.commonprefix([tools, behind]))
    print(f"  inside a round of tools the prompt is extended: {tools.startswith(one)}; behind it {len(tools) - part_tools} of "
          f"{len(tools)} characters are other ones, and the thinking is in it: {'I look it up' in behind}")
    if "An apple is 3" in two or "I look it up" in behind or two.startswith(one) or not tools.startswith(one):
        raise SystemExit(f"changed: with drop_thinking={drop} the thinking is kept, or the next prompt extends the last")
if kept[True] != kept[False]:
    raise SystemExit("changed: drop_thinking makes a difference now")
print("\nseen: the argument makes no difference, and no prompt is a prefix of the next turn's")
PYTHON
