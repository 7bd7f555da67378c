"""Every reader of a file or a body that somebody else made, with good ones to begin with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from cachewitness._util import data
from cachewitness._util.errors import UsageError
from cachewitness.cli import invoke
from cachewitness.cli.report import _page_of
from cachewitness.core import validate
from cachewitness.core.driving import judge
from cachewitness.core.result import Result
from cachewitness.engines import interpreters
from cachewitness.engines.answers import BackendError
from cachewitness.engines.registry import parse
from cachewitness.engines.server_errors import WORDS_MAX, error_text
from cachewitness.parity.scores import completion, tasks
from cachewitness.parity.scores.answer_store import AnswerStore
from cachewitness.plan.config import read as config
from cachewitness.report import expected
from cachewitness.report.html import page
from cachewitness.sessions.campaign import file as fleet
from cachewitness.sessions.run import store as folders
from cachewitness.sessions.run.judging import judged
from cachewitness.systems.lmcache.reference import log
from cachewitness.systems.openai_server.completion import PartialAnswer, Unreadable, part_of
from cachewitness.toy.problems import fixture
from cachewitness.vectors import store as vectors
from cachewitness.workloads import layouts
from cachewitness_reference.toy_model.config import ModelError
from cachewitness_reference.toy_model.tokenizer import Tokenizer, as_hugging_face, vocabulary
from suites.support import page_reports, score_reports
from suites.support.mangled import HTML

REFUSED = (UsageError, Unreadable, BackendError, ModelError)
"""What a reader raises for what does not fit: one line that says what, and where."""
FIXTURES = data.fixtures()
LINES_MAX, REPLAYED_PAGES_MAX = 80, 10_000
"""How much of a good file is taken: a short one is changed where it matters sooner."""


@dataclass(frozen=True)
class Reader:
    """A reader: what is handed to it, good ones, and under which name; it raises one of REFUSED
    for a bad one.
    """

    read: Callable[[Path], object]
    good: Callable[[], list[bytes]]
    name: str
    before: Callable[[bytes], bytes] = bytes
    """What an attacker does to a changed file so that it gets further, such as to write its sum
    anew."""


def _short(folder: Path, pattern: str, most: int = 6, lines: int = LINES_MAX) -> list[bytes]:
    """Return the first lines of the smallest files of a folder."""
    files = sorted(folder.rglob(pattern), key=lambda path: (path.stat().st_size, path))[:most]
    return [b"\n".join(path.read_bytes().split(b"\n")[:lines]) for path in files]


def _histories() -> list[bytes]:
    """Return histories as the references record them, with and without a fault, and short ones
    of the checkers.
    """
    return _short(FIXTURES / "histories" / "legal", "*.jsonl") + _short(
        FIXTURES / "histories" / "anomalous", "*.jsonl"
    )


def _judged(path: Path) -> None:
    """Read a history and judge it, and draw it if it is one: no text of it is markup on the
    page.
    """
    header, events = validate.events(path)
    kept = [*events]
    result = judge(header, iter(kept))
    _sound(result)
    inert(page.of_history(header, kept, path.name, result))


def _replayed(path: Path) -> None:
    """Run a trace on the reference, which is right whatever it is asked."""
    trace = validate.load_trace(path)
    if trace.header.pages <= REPLAYED_PAGES_MAX:
        result, _ = judged(trace, parse("reference"))
        _sound(result)
        assert not result.findings, result.findings


def _sound(result: Result) -> None:
    """Say so if a checker crashed; not if it says that it cannot judge such numbers."""
    crashed = [tally.crashed for tally in result.tallies if tally.crashed]
    assert not crashed, crashed


def inert(drawn: bytes) -> None:
    """Say so if a text of a file is markup on a page; what a script element holds is data, in
    which < is escaped.
    """
    assert HTML.encode() not in drawn, "markup of the file is on the page"
    assert drawn.count(b"</script>") == drawn.count(b"<script"), (
        "a text of the file ends a script element"
    )


def _engines(path: Path) -> None:
    interpreters.interpreters(path, ("sample", "vllm"))


def _reported(path: Path) -> None:
    inert(_page_of(path.parent))


def _layout(path: Path) -> None:
    layouts.load(path)
    if layouts.has_model(path):
        layouts.model(path)


def _rehashed(content: bytes) -> bytes:
    """Return a file of vectors with the hash and the count of what is in it now, if it has any."""
    try:
        raw = json.loads(content)
        raw["_info"]["hash"] = vectors.content_hash(raw["flags"], raw["vectors"])
        raw["_info"]["count"] = len(raw["vectors"])
        return json.dumps(raw).encode()
    except (ValueError, RecursionError, TypeError, KeyError, LookupError):
        return content


def _vectors() -> list[bytes]:
    """Return a file of every policy, of its first vectors alone."""
    found = []
    for path in sorted(
        (FIXTURES / "vectors").glob("*/*.json"), key=lambda path: path.stat().st_size
    )[:6]:
        raw = json.loads(path.read_bytes())
        raw["vectors"] = raw["vectors"][:3]
        found.append(_rehashed(json.dumps(raw).encode()))
    return found


def _config() -> list[bytes]:
    from suites.support import model_configs

    published = [value for value in vars(model_configs).values() if isinstance(value, dict)]
    flat = [
        one for value in published for one in ([value] if "model_type" in value else value.values())
    ]
    return [json.dumps(one).encode() for one in flat if isinstance(one, dict)][:12]


def _completion(path: Path) -> None:
    """Read a body as three clients do: of the answers level, of a score, and as the words of an
    error.
    """
    content = path.read_bytes()
    words = error_text(content)
    assert len(words) <= WORDS_MAX and words.isprintable()
    try:
        completion.read(msgspec.json.decode(content), "1")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, *REFUSED):
        pass
    PartialAnswer().take(part_of(content))


def _completions() -> list[bytes]:
    usage = {
        "prompt_tokens": 5,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    logprobs = {
        "tokens": ["token_id:7", "token_id:8"],
        "token_logprobs": [-0.5, None],
        "content": None,
    }
    choice = {"index": 0, "text": "ab", "logprobs": logprobs, "finish_reason": "length"}
    other = {
        "index": 0,
        "logprobs": {"content": [{"id": 7, "logprob": -0.5}]},
        "finish_reason": None,
    }
    bodies: list[Any] = [
        {"id": "a", "model": "m", "choices": [choice], "usage": usage},
        {"model": "m", "choices": [other], "timings": {"cache_n": 3}},
        {"error": {"message": "no room", "code": 400}},
    ]
    return [json.dumps(body).encode() for body in bodies]


def _answers(path: Path) -> None:
    kept = path.with_name("answers-hit.jsonl")
    kept.write_bytes(path.read_bytes())
    AnswerStore(path.parent, "hit")


def _stored_answers() -> list[bytes]:
    lines = [
        {"versions": {"model": "toy"}},
        {
            "answer": {"id": "1", "text": "42", "restored": {"all": 3}},
            "prompt_hash": "ab",
            "salt": "s",
        },
    ]
    return [b"".join(json.dumps(line).encode() + b"\n" for line in lines)]


def _problems(path: Path) -> None:
    contexts, _, problems = path.read_bytes().partition(b"\n\n")
    (path.parent / "contexts.jsonl").write_bytes(contexts)
    (path.parent / "problems.jsonl").write_bytes(problems)
    fixture.load(path.parent)


def _two_files() -> list[bytes]:
    """Return the contexts, and behind a blank line some problems of the first of them."""
    contexts, problems = (
        (FIXTURES / "gsm8k_format" / name).read_bytes()
        for name in ("contexts.jsonl", "problems.jsonl")
    )
    return [b"\n\n".join([contexts.split(b"\n")[0], b"\n".join(problems.split(b"\n")[:5])])]


@cache
def _reports() -> list[bytes]:
    """Return the report of a run that fails, as `run` writes it."""
    command = [
        "run",
        "--engine",
        "reference:mutant=hit-is-maximum-over-groups",
        "--layout",
        "full-mamba",
        "--suite",
        "invariants",
    ]
    with TemporaryDirectory() as folder, redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        assert invoke([*command, "--jobs", "1", "--report", folder]) == 1
        return [
            (Path(folder) / folders.REPORT).read_bytes(),
            msgspec.json.encode(score_reports.report([score_reports.changed()])),
            *(
                msgspec.json.encode(made())
                for made in (page_reports.hunt, page_reports.consumed, page_reports.campaign)
            ),
        ]


def _checkpoint(path: Path) -> None:
    """Read a small checkpoint of which one file is another one: which, its first line says; the
    sums are written anew.
    """
    from cachewitness_reference.toy_model import checkpoint

    folder = path.parent / "files"
    name, _, content = path.read_bytes().partition(b"\n")
    whole = dict(_checkpoint_files())
    whole[name.decode(errors="replace")] = content
    folder.mkdir(exist_ok=True)
    for file, held in whole.items():
        if (
            "/" not in file
            and "\0" not in file
            and file not in ("", ".", "..", checkpoint.SUMS)
            and len(file) < 100
        ):
            (folder / file).write_bytes(held)
    sums = "".join(
        f"{hashlib.sha256(held).hexdigest()}  {file}\n"
        for file, held in whole.items()
        if file != checkpoint.SUMS
    )
    (folder / checkpoint.SUMS).write_bytes(
        whole.get(checkpoint.SUMS) or sums.encode("utf-8", "replace")
    )
    checkpoint.load(folder)
    Tokenizer.load(folder / checkpoint.TOKENIZER).encode("a 12 é")


@cache
def _checkpoint_files() -> dict[str, bytes]:
    """Return the files of a checkpoint of one small layer, but for the sums."""
    import safetensors.torch

    from cachewitness_reference.toy_model import checkpoint
    from cachewitness_reference.toy_model.config import to_dict
    from cachewitness_reference.toy_model.weights import random_weights
    from suites.support.toy_models import model

    config = model("full_attention")
    words = as_hugging_face(vocabulary(["a"]))
    return {
        checkpoint.CONFIG: json.dumps(to_dict(config)).encode(),
        checkpoint.TOKENIZER: json.dumps(words).encode(),
        checkpoint.WEIGHTS: safetensors.torch.save(random_weights(config, 1)),
    }


def _checkpoints() -> list[bytes]:
    from cachewitness_reference.toy_model import checkpoint

    files = _checkpoint_files()
    sums = b"".join(
        f"{hashlib.sha256(held).hexdigest()}  {name}\n".encode() for name, held in files.items()
    )
    return [name.encode() + b"\n" + held for name, held in {**files, checkpoint.SUMS: sums}.items()]


READERS = {
    "traces": Reader(
        validate.load_trace, lambda: _short(FIXTURES / "traces", "*.jsonl"), "t.jsonl"
    ),
    "replays": Reader(_replayed, lambda: _short(FIXTURES / "traces", "*.jsonl", 12), "r.jsonl"),
    "histories": Reader(_judged, _histories, "h.jsonl"),
    "vectors": Reader(vectors.load, _vectors, "v.json", _rehashed),
    "layouts": Reader(
        _layout, lambda: _short(FIXTURES / "layouts", "*.toml", 40, 10_000), "l.toml"
    ),
    "configurations": Reader(config.model, _config, "config.json"),
    "expected": Reader(expected.load, lambda: _short(FIXTURES / "expected", "*.txt"), "e.txt"),
    "engines.toml": Reader(
        _engines,
        lambda: [b'[sample]\npython = "/bin/sh"\n\n[vllm]\npython = "sh"\n'],
        "engines.toml",
    ),
    "campaigns": Reader(fleet.load, lambda: [CAMPAIGN], "c.toml"),
    "reports": Reader(_reported, _reports, "report.json"),
    "answers": Reader(_answers, _stored_answers, "a.jsonl"),
    "questions": Reader(
        tasks._file, lambda: [b'{"question":"1+1?","answer":"It is 2.\\n#### 2"}\n' * 2], "q.jsonl"
    ),
    "problems": Reader(_problems, _two_files, "p.txt"),
    "logs": Reader(log.block_size_in, lambda: [LOG], "vllm.log"),
    "completions": Reader(_completion, _completions, "body.json"),
}
if find_spec("torch") is not None:
    READERS["checkpoints"] = Reader(_checkpoint, _checkpoints, "checkpoint")
CAMPAIGN = b"""
name = "nightly"
seeds = [0, 1]
suites = ["invariants"]

[[engines]]
engine = "reference"
layouts = ["full-mamba"]

[budget]
traces = 50
"""
LOG = (
    b"INFO 11-02 interface.py:670] Setting attention block size to 784 tokens to ensure that"
    b" attention page size is >= mamba page size.\nINFO 11-02 something else\n"
)


def verdict(reader: Reader, content: bytes, folder: Path) -> str:
    """Hand a file to a reader and return what it says of it, empty if it takes it; all else it
    raises is our fault.
    """
    path = folder / reader.name
    path.write_bytes(content)
    try:
        reader.read(path)
    except REFUSED as error:
        return str(error) or "refused"
    return ""
