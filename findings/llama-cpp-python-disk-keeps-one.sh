#!/usr/bin/env bash
# llama-cpp-python's disk cache forgets what it finds: where prompts share their first token, it keeps one state, however large it is.
#
# Package     llama-cpp-python 0.3.36 (its module of caches; nothing is compiled), diskcache 5.6.3
# Surprise    `LlamaDiskCache` and `LlamaRAMCache` are offered side by side (`--cache_type disk` and `ram` of the server). A look-up gives the
#             state that has the longest beginning in common with the prompt, one token is enough. The one in memory then stays; the one on
#             disk is taken out (`cache.pop`), also where the completion does not use it because the context has more of the prompt itself.
#             A comment there says that putting it back failed. A completion looks once and stores once, and prompts share the token that
#             begins a text, so the cache never has more than one state: of two conversations that take turns, none finds its own.
# Who         Servers of several conversations, and whoever measures or compares the two caches: the disk looks like a cache that does not hit.
# Documented  No.
# Upstream    No report known.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
pip() { "$work/venv/bin/python" -m pip "$@" -qq --disable-pip-version-check; }
pip install diskcache==5.6.3
pip download --no-deps --no-binary llama-cpp-python --dest "$work/source" llama-cpp-python==0.3.36
tar -xzf "$work"/source/*.tar.gz -C "$work" --strip-components 1 --wildcards '*/llama_cpp/llama.py' '*/llama_cpp/llama_cache.py'
cd "$work"
HOME=$work "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
import ast
import importlib.util
import pathlib
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version


def function_of(path, name):
    """Return a function of a class whose module needs the compiled library: its source alone is run."""
    found = next(node for node in ast.walk(ast.parse(pathlib.Path(path).read_text())) if isinstance(node, ast.FunctionDef) and node.name == name)
    found.decorator_list = []
    names = {"Sequence": Sequence}
    exec(compile(ast.Module([found], []), path, "exec"), names)
    return names[name]


longest = function_of("llama_cpp/llama.py", "longest_token_prefix")
sys.modules["llama_cpp"] = package = types.ModuleType("llama_cpp")
sys.modules["llama_cpp.llama"] = package.llama = types.ModuleType("llama_cpp.llama")
sys.modules["llama_cpp.llama_types"] = types.ModuleType("llama_cpp.llama_types")  # types for annotations alone
package.__path__ = []
package.llama.Llama = type("Llama", (), {"longest_token_prefix": staticmethod(longest)})
spec = importlib.util.spec_from_file_location("llama_cpp.llama_cache", "llama_cpp/llama_cache.py")
spec.loader.exec_module(caches := importlib.util.module_from_spec(spec))


@dataclass
class State:
    tokens: list[int]
    llama_state_size: int = 1000


def turns(cache, system, conversations=3, rounds=4):
    """Return the tokens in front that each turn finds, and the states at the end, by the two calls that a completion makes."""
    texts = [[*system, *range(1000 * number, 1000 * number + 10)] for number in range(1, conversations + 1)]
    found = []
    for _ in range(rounds):
        for text in texts:
            try:
                found.append(longest(cache[text].tokens, text))
            except KeyError:
                found.append(0)
            cache[text] = State(list(text))
            text.extend(range(text[-1] + 1, text[-1] + 11))
    states = len(cache.cache) if isinstance(cache, caches.LlamaDiskCache) else len(cache.cache_state)
    return found[conversations:], states


print("llama-cpp-python 0.3.36 diskcache", version("diskcache"))
print("expected: a turn finds all that its conversation had in the turn before; room is for all of it\n")
print("cache   prompts begin with      the later turns find, in tokens           states left")
seen = []
for start, system in (("nothing in common", []), ("one token", [1]), ("a system prompt of 50", list(range(50)))):
    for name, cache in (("RAM", caches.LlamaRAMCache()), ("disk", caches.LlamaDiskCache(cache_dir=f"{len(system)}"))):
        found, states = turns(cache, system)
        seen.append((len(system), name, sorted(set(found)), states))
        print(f"{name:8}{start:24}{' '.join(map(str, found)):42}{states}")
        expected = [len(system) + 10 * turn for turn in (1, 2, 3)]
        # The state in memory is kept of each turn, and on disk of each conversation where nothing is shared.
        if name == "disk" and system:
            right = set(found) == {len(system)} and states == 1
        else:
            right = sorted(set(found)) == expected and states == (12 if name == "RAM" else 3)
        if not right:
            raise SystemExit(f"changed: {seen}")
print("\nseen: on disk every look-up takes away what it finds, and a shared token is enough to find somebody else's")
PYTHON
