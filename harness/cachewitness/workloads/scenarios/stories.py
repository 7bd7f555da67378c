"""Hand-written scenarios: each a story in one line, with its source.

Lengths are multiples of the layout's unit, plus or minus a few tokens, so the same scenario runs on
a made-up layout and on a published model's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cachewitness.core.trace_format import Trace
from cachewitness.workloads.scenarios.large import (
    long_answer,
    long_prompt,
    many_images,
    many_requests,
)
from cachewitness.workloads.scenarios.shape import Script, Shape, image
from cachewitness.workloads.scenarios.tiers import (
    cold_then_from_tier,
    engines_share_a_tier,
    last_block_is_taken,
    load_fails_at_once,
    loaded_alone,
    loads_fill_the_pool,
    loads_take_time,
    long_chunks_from_tier,
    reset_while_one_waits,
    second_tier,
    tail_here_rest_there,
)


@dataclass(frozen=True)
class Scenario:
    """A story that becomes a trace on any layout that it applies to."""

    name: str
    story: str
    source: str
    write: Callable[[Script, Shape], int]
    kinds: tuple[str, ...] = ()
    levels: tuple[str, ...] = ("manager", "scheduler")
    tiered: bool = False
    slow: bool = False
    needs: tuple[str, ...] = ()
    engines: int = 1
    options: tuple[str, ...] = ()
    """What the trace's options have to name."""
    full_alone: bool = False
    """A large one that a run without `--full` leaves out."""

    def applies(self, shape: Shape) -> bool:
        """Whether the layout has the kinds of groups, the level, the options and the second tier
        that it is about.
        """
        if not all(shape.options.get(name) for name in self.options):
            return False
        if (
            (self.tiered and not shape.tier_pages)
            or (self.slow and not shape.tier_delay)
            or self.engines > shape.engines
        ):
            return False
        return shape.level in self.levels and all(shape.has(kind) for kind in self.kinds)

    def trace(self, shape: Shape) -> Trace:
        """Return the story as a trace on the layout."""
        script = Script(shape, self.name, self.story, self.source)
        script.needs += self.needs
        return script.trace(self.write(script, shape))


def exact_replay(s: Script, shape: Shape) -> int:
    """Replay prompts whose lengths lie on, before and behind a boundary."""
    u = shape.unit
    for index, length in enumerate((6 * u - 1, 6 * u, 6 * u + 1, u + 1, max(u - 1, 1))):
        text = f"doc{index}"
        s.serve(f"a{index}", f"{text}:{length}", chunk=2 * u, decode=2)
        s.serve(f"b{index}", f"{text}:{length}", chunk=3 * u, decode=2)
        s.serve(f"c{index}", f"{text}:{length} more:{u + 3}", chunk=2 * u)
    return 0


def siblings_in_a_block(s: Script, shape: Shape) -> int:
    """Let several requests share a prefix that ends inside a block."""
    u = shape.unit
    for name in ("a", "b", "c"):
        s.serve(name, f"sys:{4 * u + u // 2} {name}:{2 * u + 3}", chunk=2 * u, decode=3)
    return 0


def siblings_at_a_block(s: Script, shape: Shape) -> int:
    """Let several requests share a prefix that ends exactly at, one before and one behind a
    block.
    """
    u = shape.unit
    for shared in (4 * u - 1, 4 * u, 4 * u + 1):
        for name in ("a", "b", "c"):
            s.serve(f"{name}{shared}", f"sys{shared}:{shared} {name}:{u + 5}", chunk=u, decode=2)
    return 0


def siblings_in_one_step(s: Script, shape: Shape) -> int:
    """Let two requests with the same prefix be scheduled in the same step, then a third."""
    u = shape.unit
    s.submit("a", f"sys:{3 * u} a:{u}")
    s.submit("b", f"sys:{3 * u} b:{u}")
    for _ in range(6):
        s.step(("a", 2 * u), ("b", 2 * u))
    s.submit("c", f"sys:{3 * u} c:{u}")
    for _ in range(4):
        s.step(("a", 1), ("b", 1), ("c", 4 * u))
    for r in ("a", "b", "c"):
        s.finish(r)
    return 0


def multi_turn(s: Script, shape: Shape) -> int:
    """Hold several conversations in turn over a pool that a dense cache fills: the hit rate
    collapses late.
    """
    u = shape.unit
    talkers = 4
    turns = 5
    prompts = {t: f"sys:{2 * u} hello{t}:{u + 3}" for t in range(talkers)}
    for turn in range(turns):
        for talker in range(talkers):
            r = f"t{talker}.{turn}"
            s.serve(r, prompts[talker], chunk=u, decode=2 * u)
            prompts[talker] += f" @{r}:{2 * u} more{talker}.{turn}:{u // 2 + turn}"
    longest = 3 * u + 3 + turns * (3 * u)
    return shape.pages(longest) * 2


def whole_answers(s: Script, shape: Shape) -> int:
    """Hold conversations as a chat client does: each prompt is the last one, the whole answer and
    more.
    """
    u = shape.unit
    talkers = 3
    turns = 4
    prompts = {t: f"sys:{2 * u} hello{t}:{u + 3}" for t in range(talkers)}
    for turn in range(turns):
        for talker in range(talkers):
            r = f"t{talker}.{turn}"
            answer = s.converse(r, prompts[talker], u + turn)
            prompts[talker] += f" {answer} more{talker}.{turn}:{u // 2 + turn + 1}"
    return shape.pages(3 * u + 3 + turns * (3 * u)) * (talkers + 1)


def template_moves(s: Script, shape: Shape) -> int:
    """Hold a conversation whose template ends each prompt in tokens that the next prompt has not:
    it goes on behind an earlier place.
    """
    u = shape.unit
    prompt = f"sys:{2 * u} hello:{u + 3}"
    for turn in range(4):
        r = f"t{turn}"
        answer = s.converse(r, f"{prompt} header{turn}:{u // 2 + 1}", u + turn)
        prompt += f" {answer} more{turn}:{u // 2 + turn + 1}"
    return shape.pages(3 * u + 3 + 4 * (3 * u)) * 2


def preempt_and_resume(s: Script, shape: Shape) -> int:
    """Preempt a request in its prefill and in its decode; what it generated is computed again or
    hit.
    """
    u = shape.unit
    s.submit("a", f"doc:{5 * u + 3}")
    s.submit("b", f"doc:{3 * u} b:{u}")
    s.step(("a", 2 * u), ("b", 2 * u))
    s.step(("a", 2 * u), ("b", 2 * u))
    s.preempt("a")
    s.decode(2, "b")
    s.prefill("a", 2 * u)
    s.decode(u + 2, "a", "b")
    s.preempt("a")
    s.prefill("a", 3 * u)
    s.decode(2, "a", "b")
    s.finish("a")
    s.finish("b")
    s.serve("c", f"doc:{5 * u + 3}", chunk=2 * u)
    return 0


def abort_and_retry(s: Script, shape: Shape) -> int:
    """Abort a request between two chunks and between two tokens, then send it again."""
    u = shape.unit
    s.submit("a", f"doc:{5 * u + 1}")
    s.step(("a", 2 * u))
    s.abort("a")
    s.submit("b", f"doc:{5 * u + 1}")
    s.prefill("b", 2 * u)
    s.decode(3, "b")
    s.abort("b")
    s.serve("c", f"doc:{5 * u + 1}", chunk=4 * u, decode=2)
    return 0


def prompt_logprobs(s: Script, shape: Shape) -> int:
    """Ask for the log-probabilities of a prompt that is cached, also of one that lost its pages and
    of one that the second tier alone has.
    """
    u = shape.unit
    text = f"doc:{4 * u + 3}"
    s.serve("a", text, chunk=2 * u, decode=2)
    s.serve("b", text, chunk=3 * u, decode=2, prompt_logprobs=True)
    s.serve("c", f"{text} more:{u}", chunk=4 * u)
    s.submit("d", text, prompt_logprobs=True)
    s.step(("d", 3 * u))
    s.preempt("d")
    s.prefill("d", 2 * u)
    s.finish("d")
    for r, wanted in (("e", True), ("f", False)) if shape.tier_pages else ():
        for _ in range(shape.tier_delay + 2):
            s.step()
        s.reset(tier="local")
        s.serve(r, text, chunk=4 * u, prompt_logprobs=wanted)
    return 0


def withdrawn(s: Script, shape: Shape) -> int:
    """Withdraw a scheduled request before it runs; another with the same prompt must not hit
    what was never written.
    """
    u = shape.unit
    s.submit("low", f"doc:{4 * u + 1}")
    s.submit("high", f"other:{2 * u}")
    s.step(("low", 2 * u), ("high", 2 * u))
    s.step(("low", 2 * u), ("high", 1), withdraw=("low",))
    s.submit("next", f"doc:{4 * u + 1} next:{u}")
    s.prefill("next", 4 * u)
    s.prefill("low", 4 * u)
    for r in ("low", "high", "next"):
        s.finish(r)
    return 0


def one_group_evicted(s: Script, shape: Shape) -> int:
    """Let pressure evict the snapshots or window blocks of a prefix while its attention blocks
    stay.
    """
    u = shape.unit
    s.serve("a", f"doc:{6 * u + 1}", chunk=2 * u)
    for index in range(6):
        s.serve(f"fill{index}", f"fill{index}:{u + 1}", chunk=u)
        s.serve(f"probe{index}", f"doc:{6 * u + 1} probe{index}:3", chunk=2 * u)
    return shape.pages(6 * u + 1) + shape.pages(3 * u)


def reset_with_running(s: Script, shape: Shape) -> int:
    """Reset the cache while requests run, without and with preempting them, and send the prompt
    again.
    """
    u = shape.unit
    s.submit("a", f"doc:{4 * u + 1}")
    s.prefill("a", 2 * u)
    s.reset()
    s.serve("b", f"doc:{4 * u + 1}", chunk=2 * u)
    s.reset(running=True)
    s.prefill("a", 2 * u)
    s.serve("c", f"doc:{4 * u + 1}", chunk=2 * u)
    s.finish("a")
    s.reset()
    s.serve("d", f"doc:{4 * u + 1}", chunk=2 * u)
    return 0


def new_weights(s: Script, shape: Shape) -> int:
    """Load new weights between two requests with the same prompt, one of them running."""
    u = shape.unit
    s.serve("a", f"doc:{4 * u + 1}", chunk=2 * u)
    s.submit("b", f"doc:{4 * u + 1} b:{u}")
    s.step(("b", 2 * u))
    s.update_weights(1)
    s.prefill("b", 2 * u)
    s.finish("b")
    s.serve("c", f"doc:{4 * u + 1}", chunk=2 * u)
    return 0


def new_adapter(s: Script, shape: Shape) -> int:
    """Load an adapter anew, under its old name, between two requests with the same prompt."""
    u = shape.unit
    s.serve("plain", f"doc:{3 * u + 1}", chunk=2 * u)
    s.serve("a", f"doc:{3 * u + 1}", chunk=2 * u, adapter="tuned")
    s.serve("b", f"doc:{3 * u + 1}", chunk=2 * u, adapter="tuned")
    s.update_weights(1, "tuned")
    s.serve("c", f"doc:{3 * u + 1}", chunk=2 * u, adapter="tuned")
    s.serve("again", f"doc:{3 * u + 1}", chunk=2 * u)
    return 0


def identities(s: Script, shape: Shape) -> int:
    """Send the same tokens under different salts, adapters and images, twice each; an image counts
    from where it begins.

    At last under a salt that has the name of an adapter.
    """
    u = shape.unit
    for again in ("", "'"):
        s.serve(f"plain{again}", f"doc:{4 * u + 1}", chunk=2 * u)
        s.serve(f"salt1{again}", f"doc:{4 * u + 1}", chunk=2 * u, salt="one")
        s.serve(f"salt2{again}", f"doc:{4 * u + 1}", chunk=2 * u, salt="two")
        s.serve(f"tuned{again}", f"doc:{4 * u + 1}", chunk=2 * u, adapter="tuned")
        for picture in ("cat", "dog"):
            items = image(2 * u, u, picture)
            s.serve(
                f"{picture}{again}", f"doc:{2 * u} <image>:{u} ask:{u + 1}", chunk=u, media=items
            )
    s.serve("alike", f"doc:{4 * u + 1}", chunk=2 * u, salt="tuned")
    return 0


def images_in_turn(s: Script, shape: Shape) -> int:
    """Show images where the encoder's cache holds one alone: one image in two prompts at a time,
    then others one after the other.
    """
    u = shape.unit
    length = int(shape.options["encoder_budget"])
    at = 2 * u - length // 2  # a chunk ends within the image
    prompts = {r: f"{r}:{at} <image>:{length} {r}:{u}" for r in ("a", "b", "c", "d")}
    for r in ("a", "b"):
        s.submit(r, prompts[r], media=image(at, length, "cat"))
    s.step(("a", 2 * u), ("b", 2 * u))
    s.serve("c", prompts["c"], chunk=2 * u, media=image(at, length, "dog"))
    for r in ("a", "b"):
        s.decode(3, r)
        s.finish(r)
    s.serve("d", prompts["d"], chunk=2 * u, decode=4, media=image(at, length, "owl"))
    return 0


def images_side_by_side(s: Script, shape: Shape) -> int:
    """Show images without a token between them, each as long as the encoder's cache: the next one
    has room when all tokens of the one before it are computed, and not before.
    """
    u = shape.unit
    length = int(shape.options["encoder_budget"])
    at = u - length // 2
    shown = [*image(at, length, "cat"), *image(at + length, length, "dog")]
    for r, behind in (("a", u), ("b", 1)):
        s.serve(
            r, f"{r}:{at} <image>:{2 * length} {r}:{behind}", chunk=2 * u, decode=3, media=shown
        )
    return 0


def long_decode(s: Script, shape: Shape) -> int:
    """Decode across several blocks and windows, then continue from what was generated."""
    u = shape.unit
    length = 2 * max(u, shape.window) + u + 1
    s.serve("a", f"doc:{2 * u + 1}", chunk=u, decode=length)
    s.serve("b", f"doc:{2 * u + 1} @a:{length - 2} b:{u}", chunk=2 * u, decode=3)
    return 0


def long_chunks(s: Script, shape: Shape) -> int:
    """Prefill in chunks that span several blocks: only the end of a chunk has a state; its
    siblings must not find others.
    """
    u = shape.unit
    s.serve("a", f"doc:{6 * u + 5}", chunk=3 * u + 1, decode=1)
    for index, shared in enumerate((u, 2 * u, 3 * u, 4 * u, 5 * u)):
        s.serve(f"b{index}", f"doc:{shared} b{index}:{u + 2}", chunk=4 * u)
    return 0


def crowded(s: Script, shape: Shape) -> int:
    """Run several requests at once over a pool that cannot hold them all, prefixes shared in
    part.
    """
    u = shape.unit
    names = [f"r{index}" for index in range(5)]
    for index, name in enumerate(names):
        s.submit(name, f"sys:{2 * u} kind{index % 2}:{u + 1} {name}:{u + index}")
    for _ in range(8):
        s.step(*((name, 2 * u) for name in names))
    for name in names[:2]:
        s.finish(name)
    for _ in range(8):
        s.step(*((name, 2 * u) for name in names[2:]))
    for name in names[2:]:
        s.finish(name)
    s.serve("last", f"sys:{2 * u} kind0:{u + 1} last:{u}", chunk=2 * u)
    return shape.pages(6 * u) * 3 // 2


def generated_and_shared(s: Script, shape: Shape) -> int:
    """Decode across many blocks, then let siblings leave the generated text at, before and
    behind a block.
    """
    u = shape.unit
    s.serve("a", f"doc:{2 * u + 1}", chunk=u, decode=5 * u)
    for index, shared in enumerate((u - 2, 2 * u - 1, 2 * u, 3 * u - 1)):
        s.serve(f"b{index}", f"doc:{2 * u + 1} @a:{shared} b{index}:{u + 1}", chunk=4 * u, decode=u)
    return 0


def outgrown(s: Script, shape: Shape) -> int:
    """Decode two requests until the pool runs out; the younger waits, or gives tokens back, and
    goes on when the other ends.
    """
    u = shape.unit
    s.submit("a", f"a:{3 * u - 1}")
    s.submit("b", f"b:{2 * u - 2}")
    s.decode(3 * u, "a", "b")
    s.finish("a")
    s.decode(4, "b")
    s.finish("b")
    return shape.pages(5 * u)


SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        "loads-take-time",
        "a prefix comes back while others run; who waits for it is aborted, and a load and a store"
        " fail",
        "LMCache/LMCache#5248, #4991; sgl-project/sglang#22811",
        loads_take_time,
        levels=("scheduler",),
        slow=True,
    ),
    Scenario(
        "loads-fill-the-pool",
        "requests are loaded whose prefixes leave no room for what the first of them lacks",
        "vllm-project/vllm#57104",
        loads_fill_the_pool,
        levels=("scheduler",),
        slow=True,
    ),
    Scenario(
        "exact-replay",
        "the same prompt again, and once more with a longer question, at lengths around a boundary",
        "zoo of public reports: hits are capped at n − 1 tokens (vLLM v1/core/kv_cache_manager.py)",
        exact_replay,
    ),
    Scenario(
        "siblings-in-a-block",
        "three requests share a prefix that ends inside a block",
        "vllm-project/vllm#37898 (shared-prefix boundary), #45238",
        siblings_in_a_block,
    ),
    Scenario(
        "siblings-at-a-block",
        "three requests share a prefix that ends at, one before and one behind a boundary",
        "vllm-project/vllm#37898, #48402",
        siblings_at_a_block,
    ),
    Scenario(
        "siblings-in-one-step",
        "two requests with one prefix are scheduled in the same step",
        "vllm-project/vllm#29387 (hit on a state of the same step)",
        siblings_in_one_step,
    ),
    Scenario(
        "generated-and-shared",
        "what one request generated, drafts verified on the way, is the prefix of others",
        "vllm-project/vllm#53912 (drafts and recurrent states), #45845",
        generated_and_shared,
        levels=("scheduler",),
    ),
    Scenario(
        "second-tier",
        "a prefix is lost on the device and comes back from the second tier, until it is lost"
        " there too",
        "vllm-project/vllm#57727; LMCache/LMCache#4247",
        second_tier,
        levels=("scheduler",),
        tiered=True,
    ),
    Scenario(
        "loaded-alone",
        "a prefix is loaded into a pool that holds the request with its drafts, and nobody beside",
        "vllm-project/vllm#46694",
        loaded_alone,
        levels=("scheduler",),
        tiered=True,
        slow=True,
        options=("num_speculative_tokens",),
    ),
    Scenario(
        "long-chunks-from-tier",
        "chunks span several blocks, and siblings leave the prompt at boundaries inside them when"
        " only the second tier has it",
        "vllm-project/vllm#51358",
        long_chunks_from_tier,
        tiered=True,
    ),
    Scenario(
        "cold-then-from-tier",
        "the same questions cold, and again from the second tier after a reset of the device's"
        " cache alone",
        "LMCache documentation, Hybrid Attention Models, Verifying Correctness",
        cold_then_from_tier,
        levels=("scheduler",),
        tiered=True,
    ),
    Scenario(
        "tail-here-rest-there",
        "the device has a tail inside a block, and the second tier a longer prefix; both together"
        " are not a prefix",
        "vllm-project/vllm#46384",
        tail_here_rest_there,
        levels=("scheduler",),
        tiered=True,
    ),
    Scenario(
        "load-fails-at-once",
        "a load fails in the step that asks for it, and the same prefix is asked for again",
        "vllm-project/vllm#26813",
        load_fails_at_once,
        levels=("scheduler",),
        tiered=True,
        slow=True,
    ),
    Scenario(
        "reset-while-one-waits",
        "the second tier is reset while a request waits that was told what it could load from"
        " there",
        "vllm-project/vllm#57727",
        reset_while_one_waits,
        levels=("scheduler",),
        tiered=True,
    ),
    Scenario(
        "last-block-is-taken",
        "drafts complete a block of a request that ends, and its pages are others' in the next"
        " step",
        "vllm-project/vllm#48596",
        last_block_is_taken,
        levels=("scheduler",),
        tiered=True,
        options=("num_speculative_tokens",),
    ),
    Scenario(
        "engines-share-a-tier",
        "engines with other attention backends or kernel block sizes ask one second tier the same;"
        " each finds its own",
        "LMCache documentation, Hybrid Attention Models, Caveats",
        engines_share_a_tier,
        levels=("scheduler",),
        tiered=True,
        needs=("kernels",),
        engines=2,
    ),
    Scenario(
        "multi-turn",
        "conversations take turns; dense snapshots fill the pool and live prefixes are evicted",
        "vllm-project/vllm#45845",
        multi_turn,
    ),
    Scenario(
        "preempt-and-resume",
        "a request loses its pages in prefill and in decode, and comes back",
        "vllm-project/vllm#31583; zoo group E",
        preempt_and_resume,
    ),
    Scenario(
        "abort-and-retry",
        "a client goes away and asks again",
        "vllm-project/vllm#43569",
        abort_and_retry,
    ),
    Scenario(
        "prompt-logprobs",
        "who asks for log-probabilities of its prompt restores none of it; others restore what it"
        " computed",
        "vllm-project/vllm v1/request.py, get_skip_reading_prefix_cache",
        prompt_logprobs,
        needs=("prompt_logprobs",),
    ),
    Scenario(
        "withdrawn",
        "a request is scheduled and taken back in the same step; its keys were never written",
        "vllm-project/vllm#57580, #43569",
        withdrawn,
        levels=("manager",),
        needs=("withdraw",),
    ),
    Scenario(
        "one-group-evicted",
        "attention blocks of a prefix stay, its snapshots or window blocks go",
        "vllm-project/vllm#43090, LMCache/LMCache#4247",
        one_group_evicted,
    ),
    Scenario(
        "reset-with-running",
        "the cache is reset while requests run",
        "vllm-project/vllm#34382",
        reset_with_running,
    ),
    Scenario(
        "new-weights",
        "weights change between two identical prompts",
        "InternLM/lmdeploy#4917",
        new_weights,
    ),
    Scenario(
        "new-adapter",
        "an adapter is loaded anew in place, between two identical prompts",
        "vllm-project/vllm#42125, #48352",
        new_adapter,
    ),
    Scenario(
        "identities",
        "the same tokens under other salts, adapters and images",
        "vllm-project/vllm#3263, #36622, #53194",
        identities,
    ),
    Scenario(
        "images-in-turn",
        "images one after the other, where the encoder's cache holds one alone",
        "vllm-project/vllm, `v1/core/encoder_cache_manager.py`",
        images_in_turn,
        levels=("scheduler",),
        options=("encoder_budget",),
    ),
    Scenario(
        "images-side-by-side",
        "two images without a token between them, where the encoder's cache holds one alone and a"
        " drafter reads a token ahead",
        "vllm-project/vllm-ascend#17195",
        images_side_by_side,
        levels=("scheduler",),
        options=("encoder_budget", "use_eagle"),
    ),
    Scenario(
        "long-decode",
        "decode crosses blocks and windows; the next turn continues from it",
        "vllm-project/vllm#45845 (in decode a snapshot falls at every block)",
        long_decode,
    ),
    Scenario(
        "long-chunks",
        "chunks span several blocks, siblings leave at every boundary inside them",
        "vllm-project/vllm#53084, ModelEngine-Group/unified-cache-management#1130",
        long_chunks,
    ),
    Scenario(
        "crowded",
        "more requests than the pool can hold at once",
        "vllm-project/vllm#10507 (allocation evicts what was just matched)",
        crowded,
    ),
    Scenario(
        "outgrown",
        "two requests decode until the pool has no room for both",
        "OpenVINO GenAI 2026.4, partial preemption of a hybrid; vllm-project/vllm#31583",
        outgrown,
        levels=("scheduler",),
    ),
    Scenario(
        "whole-answers",
        "conversations in which each prompt is the last one, the whole answer and more",
        "ggml-org/llama.cpp tools/server: a slot goes on from the end of its last request",
        whole_answers,
    ),
    Scenario(
        "template-moves",
        "a conversation whose prompts end in a header that the next prompt has not",
        "chat templates that take the thinking of earlier turns out, as Qwen3's",
        template_moves,
    ),
)


LARGE: tuple[Scenario, ...] = (
    Scenario(
        "many-requests",
        "1,000 requests under names that differ in one letter, over pages that are reused 64 times"
        " and more",
        "vllm-project/vllm#30931, #44701 (adapters, salts)",
        many_requests,
    ),
    Scenario(
        "long-prompt",
        "a prompt of 4,096 tokens, and others that differ from it far behind its beginning",
        "sgl-project/sglang#34870 (parts of a prompt that are not in its key)",
        long_prompt,
    ),
    Scenario(
        "many-images",
        "1,000 images of one length behind the same tokens, and none of them is evicted",
        "LMCache/LMCache#4086 (names cut to 16 bits)",
        many_images,
    ),
    Scenario(
        "long-answer",
        "two answers of 1,000 tokens, both requests preempted behind them, and one answer quoted",
        "vllm-project/vllm#45845, #31583",
        long_answer,
    ),
)
"""Scenarios that are an order of magnitude larger; a suite runs each once, on one configuration."""
