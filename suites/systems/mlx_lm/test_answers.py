"""mlx-lm's batch and prompt cache: what is right passes, every seeded fault is found, and so is
what mlx-lm does wrong.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from msgspec.structs import replace

from cachewitness._util.data import fixtures
from cachewitness._util.errors import EngineMissing, UsageError
from cachewitness.core.events import Answer
from cachewitness.core.trace_format import Finish, GroupSpec, Layout, Op, Submit, Trace
from cachewitness.engines.registry import EngineSpec, parse
from cachewitness.parity.answers.compare import runs
from cachewitness.systems.mlx_lm.architectures import ARCHITECTURES, COMMON, VOCABULARY
from cachewitness.systems.mlx_lm.kind import configurations
from cachewitness.workloads.answer_stories import write
from cachewitness_faults.mlx_lm.cache_faults import FAULTS
from suites.support.parameters import constant

installed = pytest.mark.skipif(not find_spec("mlx_lm"), reason="needs mlx-lm; ci/stage_mlx.sh")

PADDED = (
    *("jamba", "nemotron_h", "mamba", "olmo_hybrid", "bailing_moe_linear", "rwkv7"),
    *("recurrent_gemma", "baichuan_m1"),
)
"""Those whose answers depend on their company in a batch, cache or not
(docs/systems/mlx_lm-notes.md); one request at a time they can be judged.
"""


def engine(**options: str) -> EngineSpec:
    """Return the engine in this process."""
    return parse("mlx-lm:" + ",".join(f"{name}={value}" for name, value in options.items()))


def trace(*ops: Op, **options: object) -> Trace:
    """Return a trace of these operations on the first configuration's layout."""
    header = write(configurations()[0].shape("answers"), "idle", 0).header
    return Trace(replace(header, name="test", options=options), list(ops))


def asked(r: str, prompt: str) -> list[Op]:
    """Ask and wait."""
    return [Submit(r=r, prompt=prompt, generate=3), Finish(r)]


GROWN = [
    *asked("a", "doc:30"),
    *asked("b", "doc:30 more:9"),
    *asked("c", "doc:30 @a:3 else:5"),
    *asked("d", "doc:16 other:40"),
    *asked("e", "again:9"),
    *asked("f", "again:9"),
]
"""Behind a system's part, behind a prompt but its last token, behind an answer, a longer text cut
where it can be, and the same prompt again."""
TOGETHER = [
    Submit(r="a", prompt="doc:30", generate=3),
    Submit(r="b", prompt="other:9", generate=5),
    Finish("a"),
    Finish("b"),
]


@installed
@pytest.mark.parametrize("model", ARCHITECTURES)
def test_an_architecture_is_resumed_rightly(model: str) -> None:
    """Restored tokens, chunks, company in the batch where it is right; no finding."""
    again = [replace(op, r=f"{op.r}2") for op in TOGETHER]
    slots = {"concurrency": "1"} if model in PADDED else {}
    chunked = trace(*GROWN, chunk=7, files=True)
    for of in (trace(*GROWN), chunked, trace(*TOGETHER, *again)):
        result = runs(of, engine(model=model, **slots))
        assert result.findings == [] and result.activity.hits and result.activity.hit_tokens
        assert not [tally.crashed for tally in result.tallies if tally.crashed]


@installed
@pytest.mark.parametrize("model", ARCHITECTURES)
def test_no_parameter_of_a_model_is_constant(model: str) -> None:
    from mlx.utils import tree_flatten

    from cachewitness.systems.mlx_lm.server import model_of

    parameters = tree_flatten(model_of(model).parameters())
    assert constant((name, of.flatten().tolist()) for name, of in parameters) == []


@installed
@pytest.mark.parametrize("model", PADDED)
def test_a_model_whose_uncached_answers_depend_on_their_company_is_a_finding(model: str) -> None:
    """The noise floor is what a batch does to shorter prompts: beyond what float32 rounds, which
    no cache has to do with.
    """
    result = runs(trace(*GROWN), engine(model=model))
    (finding,) = result.findings
    assert (finding.anomaly, finding.cause) == ("baseline-differs", "batch")
    assert not [tally.unjudged for tally in result.tallies if tally.unjudged]


WINDOWED = ("mlx-window-merged-from-its-front", "mlx-part-of-a-window-lost")
LONG = [*asked("a", "doc:70"), *asked("b", "doc:70 more:9")]
"""A prompt longer than a window and a chunk, and one that goes on behind it."""


@installed
@pytest.mark.parametrize("fault", WINDOWED)
@pytest.mark.parametrize("model", ["gemma3_text", "qwen3_next"])
def test_a_window_that_is_merged_from_its_front_is_found_where_there_is_one(
    model: str, fault: str
) -> None:
    """A batch takes the entries in front of a cursor; without windows nothing is changed."""
    wrong = runs(trace(*LONG, chunk=64), engine(model=model, mutant=fault)).findings
    windows = model == "gemma3_text"
    assert [finding.anomaly for finding in wrong] == (["answer-differs"] if windows else [])
    assert runs(trace(*LONG, chunk=64), engine(model=model)).findings == []


TRIMMED, IN_FILES = "mlx-trimmed-one-token-short", "mlx-file-counts-what-a-window-has"
PARTED = [
    *asked("a", "doc:20"),
    *asked("b", "doc:15 more:9"),
    *asked("c", "wide:40"),
    *asked("d", "wide:35 other:9"),
]
"""Prompts that part from a kept text, which is shorter than a window, and from a longer one."""


@installed
@pytest.mark.parametrize(
    ("model", "trimmed"), [("qwen3", [8, 8]), ("gemma3_text", [8]), ("lfm2", []), ("plamo2", [])]
)
def test_caches_are_trimmed_that_can_be_and_a_fault_in_that_is_found(
    model: str, trimmed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not states, and no window that has moved: what lay in front of it is lost."""
    from mlx_lm.models import cache

    tokens: list[int] = []
    trim = cache.trim_prompt_cache

    def counted(kept: list[object], count: int) -> object:
        tokens.append(count)
        return trim(kept, count)

    monkeypatch.setattr(cache, "trim_prompt_cache", counted)
    assert runs(trace(*PARTED), engine(model=model)).findings == []
    assert tokens == trimmed
    wrong = runs(trace(*PARTED), engine(model=model, mutant=TRIMMED)).findings
    assert ("answer-differs" in [finding.anomaly for finding in wrong]) == bool(trimmed)


@installed
@pytest.mark.parametrize("model", ["gemma3_text", "qwen3"])
def test_a_window_from_a_file_has_its_positions(model: str) -> None:
    """A fault in that is found where there is a window, and without files there is none."""
    grown = [*asked("a", "doc:30"), *asked("b", "doc:30 @a:3 else:9")]
    wrong = engine(model=model, mutant=IN_FILES)
    assert runs(trace(*grown, files=True), engine(model=model)).findings == []
    assert runs(trace(*grown), wrong).findings == []
    found = [finding.anomaly for finding in runs(trace(*grown, files=True), wrong).findings]
    assert ("answer-differs" in found) == (model == "gemma3_text")


@installed
@pytest.mark.parametrize(
    "fault", [name for name in FAULTS if name not in (*WINDOWED, TRIMMED, IN_FILES)]
)
@pytest.mark.parametrize("model", ["qwen3_next", "falcon_h1"])
def test_a_fault_is_found_and_only_with_the_cache(model: str, fault: str) -> None:
    found = runs(trace(*GROWN), engine(model=model, mutant=fault)).findings
    assert FAULTS[fault].anomaly in [finding.anomaly for finding in found]
    assert runs(trace(*GROWN), engine(model=model, mutant=fault, caching="off")).findings == []


@installed
def test_a_checkpoint_keeps_salts_apart_and_its_faults_are_found(tmp_path: Path) -> None:
    """A folder of the library's own answers as the model that it wrote, behind each salt anew, and
    damaged otherwise.
    """
    checkpoint = str(tiny(tmp_path))
    opened = engine(checkpoint=checkpoint).open(trace().header)
    described = opened.describe()
    opened.close()
    assert described.rules.answering is not None and "salt" in described.capabilities
    assert described.rules.answering.vocabulary == VOCABULARY
    salted = [
        replace(op, salt="other") if isinstance(op, Submit) else op for op in asked("g", "doc:30")
    ]
    result = runs(trace(*GROWN, *salted), engine(checkpoint=checkpoint))
    assert result.findings == [] and result.activity.hits
    damaged = engine(checkpoint=checkpoint, mutant="mlx-resumed-from-another-prompt")
    assert "answer-differs" in [one.anomaly for one in runs(trace(*GROWN), damaged).findings]


@installed
def test_a_salt_finds_nothing_of_another_one(tmp_path: Path) -> None:
    opened = engine(checkpoint=str(tiny(tmp_path))).open(trace().header)
    prompt = list(range(3, 30))
    restored = []
    for number, salt in enumerate(("one", "one", "two")):
        r = f"r{number}"
        opened.apply(Submit(r, "", tokens=prompt, salt=salt, generate=2))
        answers = [event for event in opened.apply(Finish(r)) if isinstance(event, Answer)]
        restored.append(answers[0].restored)
    opened.close()
    assert restored == [0, len(prompt) - 1, 0]


def tiny(folder: Path) -> Path:
    """Write a model with windows as a checkpoint of mlx-lm's."""
    from mlx_lm.utils import save_config, save_model

    from cachewitness.systems.mlx_lm.server import model_of

    name = "gemma3_text"
    save_model(folder, model_of(name))
    save_config({"model_type": name, **COMMON, **ARCHITECTURES[name]}, folder / "config.json")
    return folder


@installed
def test_a_folder_that_is_no_checkpoint_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"checkpoint {tmp_path}: "):
        engine(checkpoint=str(tmp_path)).open(trace(*GROWN).header)
    texts = engine().kind.answers_level.texts
    with pytest.raises(UsageError, match=f"checkpoint {tmp_path}: "):
        texts.tokens({"checkpoint": str(tmp_path)})
    with pytest.raises(UsageError, match="its tiny models know no text"):
        texts.tokens({})


def shown(name: str) -> list[str]:
    """Return what a script of a finding prints."""
    script = fixtures() / "findings" / name
    assert len(script.read_text(encoding="utf-8").splitlines()) < 60
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=300
    )
    return done.stdout.splitlines()


@installed
def test_a_script_shows_what_company_does_to_jamba() -> None:
    off = [float(line.rpartition(" ")[2]) for line in shown("mlx_lm_0_32_jamba_batch.py")]
    assert off[1] > 0.01 and max(off[0], off[2], off[3]) < 1e-4


def test_a_layout_that_does_not_fit_is_refused() -> None:
    of = trace(*GROWN)
    other = replace(of.header, layout=Layout("other", [GroupSpec("full", 16)]))
    with pytest.raises(UsageError, match="layout other does not fit"):
        engine().open(other)


@pytest.mark.parametrize("options", [{"model": "llama"}, {"caching": "maybe"}])
def test_an_option_that_it_has_not_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=r"is one of|is on or off"):
        engine(**options).open(trace(*GROWN).header)


def test_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EngineMissing, match="mlx"):
        engine().open(trace(*GROWN).header)
