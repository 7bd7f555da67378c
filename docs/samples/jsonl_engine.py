"""A sample: a paged pool without prefix caching; it answers as docs/reference/protocol.md says."""

import json
import os
import re

CAPABILITIES = ["abort", "adapter", "media", "preempt", "reset", "salt", "update_weights"]


class Pool:
    def __init__(self, trace):
        (group,) = trace["layout"]["groups"]
        if group["kind"] != "full" or trace["options"] or trace["level"] != "manager":
            raise ValueError("this engine has one group, of full attention, and no options")
        self.size, self.pages = group["block_size"], trace["pages"]
        self.free, self.step, self.texts, self.live = list(range(trace["pages"])), 0, {}, {}
        self.header = {
            "engine": "jsonl sample",
            "level": "manager",
            "pools": [{"id": 0, "pages": trace["pages"]}],
            "groups": [{"id": 0, "kind": "full", "block_size": self.size}],
            "rules": {"caching": False},
            "capabilities": CAPABILITIES,
            "not_applicable": {"no-fabricated-snapshots": "no recurrent group"},
        }

    def apply(self, op):
        self.events, kind, r = [], op["op"], op.get("r")
        if kind == "submit":
            tokens, stream = [], op.get("stream") or f"@{r}"
            for text, start, count in re.findall(r"(\S+?)(?:\[(\d+)\])?:(\d+)", op["prompt"]):
                tokens += [self.token(text, int(start or 0) + i) for i in range(int(count))]
            named = {name: op[name] for name in ("salt", "adapter", "media") if name in op}
            self.say("submit", r=r, tokens=tokens, **named)
            request = {"r": r, "tokens": tokens, "prompt": len(tokens), "stream": stream}
            self.live[r] = {**request, "pages": []}
        elif kind == "step":
            self.run([entry for entry in op["run"] if entry[0] in self.live])
        elif kind in ("finish", "abort") and r in self.live:
            self.say(kind, r=r)
            self.release(self.live.pop(r))
        elif kind in ("preempt", "reset", "update_weights"):
            everybody = op.get("running") or kind == "update_weights"
            gone = [r] if kind == "preempt" else list(self.live) if everybody else []
            for request in [self.live[name] for name in gone if self.live[name]["pages"]]:
                self.say("preempt", r=request["r"])
                self.release(request)
            if kind != "preempt":
                self.say("reset", ok=True)
            if kind == "update_weights":
                self.say("version", weights=op["version"], adapter=op.get("adapter", ""))
        self.say("counts", pool=0, free=len(self.free), held=self.pages - len(self.free), cached=0)
        return self.events

    def run(self, asked):
        self.step, runs = self.step + 1, []
        for request, count in [(self.live[r], count) for r, count in asked]:
            start = request["computed"] if request["pages"] else 0
            stop = min(start + count, len(request["tokens"]))
            new = -(-stop // self.size) - len(request["pages"])
            if stop > start and new <= len(self.free):
                pages, self.free = self.free[:new], self.free[new:]
                request["pages"], request["computed"] = request["pages"] + pages, stop
                self.say("acquire", pool=0, group=0, pages=pages, holder=request["r"])
                run = {"r": request["r"], "start": start, "stop": stop}
                runs.append({**run, "tables": [request["pages"]]})
        self.say("step_begin", asked=asked, runs=runs)
        self.say("step_end")
        for request in [self.live[run["r"]] for run in runs]:
            if request["computed"] == len(request["tokens"]):
                token = self.token(request["stream"], len(request["tokens"]) - request["prompt"])
                request["tokens"].append(token)
                self.say("accept", r=request["r"], upto=len(request["tokens"]), tokens=[token])

    def release(self, request):
        self.say("release", pool=0, group=0, pages=request["pages"], holder=request["r"])
        self.free, request["pages"] = self.free + request["pages"], []

    def say(self, event, **fields):
        self.events.append({"e": event, "step": self.step, **fields})

    def token(self, text, position):
        return (self.texts.setdefault(text, len(self.texts) + 1) << 16) + position


def answer(pools, question):
    try:
        if question["do"] == "open":
            pools[:] = [Pool(question["trace"])]
            return {"is": "opened", "header": pools[0].header}
        if question["do"] == "apply":
            return {"is": "happened", "events": pools[0].apply(question["op"])}
        return {"is": "closed"}
    except ValueError as error:
        return {"is": "refused", "message": str(error)}


LAYOUTS = [{"name": "full-16", "groups": [{"kind": "full", "block_size": 16}]}]
READY = {"is": "ready", "protocol": "cachewitness.engine", "version": 2, "levels": ["manager"]}
ASKED, ANSWERS = (int(os.environ[f"CACHEWITNESS_{name}"]) for name in ("ASKED", "ANSWERS"))

with os.fdopen(ASKED) as questions, os.fdopen(ANSWERS, "w") as answers:
    print(json.dumps({**READY, "layouts": LAYOUTS}), file=answers, flush=True)
    pools = []
    for question in map(json.loads, questions):
        print(json.dumps(answer(pools, question)), file=answers, flush=True)
