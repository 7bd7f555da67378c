#!/usr/bin/env bash
# AIPerf replays a conversation of a Bailian trace with its history twice and more: each turn's whole prompt is sent behind the turns before it.
#
# Package     aiperf 0.13.0 (its loader of Bailian traces and its sessions)
# Surprise    Each request of a Bailian trace is whole: its length and its hash ids are those of the prompt that the server saw, with the turns
#             before. AIPerf makes conversations of the requests by `parent_chat_id`, and its sessions treat the prompts as what a user
#             adds, since the loader names no other context mode: turn 3 is sent as prompt 1, answer, prompt 2, answer, prompt 3. Lengths
#             grow with the square of the turns. And two requests with the same parent (an answer that was asked for again) are turns one
#             after the other, so the second has the first, and its answer, in front of it.
# Who         Hit rates, lengths and latencies of a replay of conversations, which are those of another load than the trace's.
# Documented  No: requests are "linked via chat_id / parent_chat_id", and the manual's example has a second turn that is shorter than the first.
# Upstream    ai-dynamo/aiperf pull request #1393 (open) would send each request as it is; #14184 of ai-dynamo/dynamo describes it elsewhere.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
pip() { "$work/venv/bin/python" -m pip install -qq --disable-pip-version-check "$@"; }
pip numpy==2.4.6 orjson==3.13.0 pydantic==2.14.4 pydantic-settings==2.16.3 ruamel.yaml==0.19.1 jinja2==3.1.6 pyyaml==6.0.4 cyclopts==5.5.2 \
    msgspec==0.23.0 aiohttp==3.14.5 aiofiles==25.1.0 psutil==7.2.2 pillow==13.0.0 ffmpeg-python==0.2.0
pip --no-deps aiperf==0.13.0 2>/dev/null # what the modules import is installed above; the rest of its requirements is 500 MB
cd "$work"
HOME=$work "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
from importlib.metadata import version

from aiperf.common.models import Conversation, Text, Turn
from aiperf.dataset.loader.bailian_trace import BailianTraceDatasetLoader
from aiperf.dataset.loader.models import BailianTrace
from aiperf.workers.session_manager import UserSessionManager

BLOCK, ANSWER = 16, "answer"


def request(number, parent, turn, blocks):
    return BailianTrace.model_validate({"chat_id": number, "parent_chat_id": parent, "timestamp": float(number), "input_length": BLOCK * len(blocks),
                                        "output_length": BLOCK, "type": "text", "turn": turn, "hash_ids": blocks})


def sent(trace):
    """What each turn of the only conversation sends, with a block's id for its text and one block for an answer."""
    loader = object.__new__(BailianTraceDatasetLoader)  # its constructor wants a whole benchmark
    ((name, turns),) = loader._group_traces(trace).items()
    conversation = Conversation(session_id=name, context_mode=loader._infer_context_mode(turns))
    for one in turns:
        conversation.turns.append(Turn(texts=[Text(contents=[" ".join(map(str, one.hash_ids))])]))
    sessions = UserSessionManager()
    sessions.set_default_context_mode(loader.get_default_context_mode())
    session = sessions.create_and_store("session", conversation, len(turns))
    prompts = []
    for at in range(len(turns)):
        session.advance_turn(at)
        prompts.append(" ".join(turn.texts[0].contents[0] for turn in session.turn_list).split())
        if session.should_store_response():
            session.store_response(Turn(role="assistant", texts=[Text(contents=[ANSWER])]))
    return turns, prompts


print("aiperf", version("aiperf"))
print("expected: each request is sent with the blocks that the trace gives it\n")
print("three turns, of which each prompt has the one before in front")
longer = [request(1, -1, 1, [0, 1]), request(2, 1, 2, [0, 1, 2, 3]), request(3, 2, 3, [0, 1, 2, 3, 4, 5])]
lengths = []
for one, prompt in zip(*sent(longer)):
    lengths.append((len(one.hash_ids), len(prompt)))
    print(f"  turn {one.turn}: {len(one.hash_ids)} blocks in the trace, {len(prompt)} sent: {' '.join(prompt)}")
print("\ntwo requests behind one parent")
both = [request(1, -1, 1, [0, 1]), request(2, 1, 2, [0, 1, 2]), request(3, 1, 2, [0, 1, 3])]
behind = []
for one, prompt in zip(*sent(both)):
    behind.append((one.chat_id, len(prompt)))
    print(f"  chat {one.chat_id} of parent {one.parent_chat_id}: {' '.join(prompt)}")
if lengths != [(2, 2), (4, 7), (6, 14)] or behind != [(1, 2), (2, 6), (3, 10)]:
    raise SystemExit(f"changed: {lengths} {behind}")
print("\nseen: whole prompts are added to each other as if each were what is new in it")
PYTHON
