"""Scenarios with a second tier: content that the device lost is loaded at once, after some
steps, or not at all.
"""

from __future__ import annotations

from cachewitness.workloads.scenarios.shape import Script, Shape

_ENOUGH = 14
"""Steps in which a request that never runs is found."""


def second_tier(s: Script, shape: Shape) -> int:
    """Lose a prefix on the device, by reset and for want of room, and bring it back; then lose
    it in the second tier too.
    """
    u = shape.unit
    s.serve("a", f"doc:{4 * u + 1}", chunk=2 * u, decode=3)
    s.reset(tier="local")
    s.serve("b", f"doc:{4 * u + 1}", chunk=2 * u, decode=2)
    for index in range(3):
        s.serve(f"fill{index}", f"fill{index}:{4 * u + 1}", chunk=2 * u)
    s.submit("c", f"doc:{4 * u} c:{u}")
    s.submit("d", f"doc:{2 * u} d:{u + 3}")
    for _ in range(8):
        s.step(("c", 2 * u), ("d", 2 * u))
    s.preempt("c")
    s.reset(running=True, tier="local")
    s.prefill("c", 2 * u)
    s.finish("c")
    s.finish("d")
    s.reset(tier="cpu")
    s.serve("e", f"doc:{4 * u + 1} e:{u}", chunk=2 * u)
    s.reset()
    s.serve("f", f"doc:{4 * u + 1}", chunk=2 * u)
    return shape.pages(5 * u + 9) * 2


def loaded_alone(s: Script, shape: Shape) -> int:
    """Load a prefix into a pool that holds the request with its drafts, and nobody beside it."""
    u = shape.unit
    text = f"doc:{3 * u + 1}"
    s.serve("a", text, chunk=4 * u)
    for _ in range(shape.tier_delay + 2):
        s.step()
    s.reset(running=True, tier="local")
    s.submit("b", text)
    for _ in range(_ENOUGH):
        s.step(("b", 4 * u))
    s.finish("b")
    return shape.pages(3 * u + 1) + 1


def cold_then_from_tier(s: Script, shape: Shape) -> int:
    """Ask several questions cold, lose what the device has but not the second tier, and ask the
    same again.
    """
    u = shape.unit
    for run in ("cold", "again"):
        for index, length in enumerate((2 * u + 3, 3 * u, 3 * u + 1, 4 * u - 1)):
            s.serve(f"{run}{index}", f"question{index}:{length}", chunk=2 * u, decode=2)
        if run == "cold":
            s.reset(tier="local")
    return shape.pages(4 * u) * 2


def long_chunks_from_tier(s: Script, shape: Shape) -> int:
    """Compute a prompt in chunks of several blocks, lose it on the device, and let siblings leave
    it at boundaries inside chunks, where no state was kept, and at their ends.
    """
    u = shape.unit
    s.serve("a", f"doc:{7 * u + 1}", chunk=3 * u, decode=2)
    for _ in range(shape.tier_delay + 2):
        s.step()
    s.reset(tier="local")
    for index, shared in enumerate((2 * u, 3 * u, 5 * u)):
        s.serve(f"b{index}", f"doc:{shared} b{index}:{u + 2}", chunk=3 * u)
    return 0


def tail_here_rest_there(s: Script, shape: Shape) -> int:
    """Ask for a long prefix that the second tier has, of which the device has a tail inside the
    first block.
    """
    u = shape.unit
    s.serve("a", f"doc:{3 * u - 3}", chunk=2 * u)
    for _ in range(shape.tier_delay + 2):
        s.step()
    s.reset(tier="local")
    s.serve("b", f"doc:{u // 2 + 1}", chunk=u)
    s.serve("c", f"doc:{3 * u - 3}", chunk=2 * u, decode=2)
    s.serve("d", f"doc:{2 * u + 1} d:{u}", chunk=2 * u)
    return shape.pages(4 * u) * 2


def load_fails_at_once(s: Script, shape: Shape) -> int:
    """Let a load fail in the step that asks for it; then ask for the same prefix again."""
    u = shape.unit
    s.serve("a", f"doc:{3 * u + 1}", chunk=4 * u)
    for _ in range(shape.tier_delay + 2):
        s.step()
    s.reset(tier="local")
    s.submit("b", f"doc:{3 * u + 1}")
    s.step(("b", 4 * u), fail=[0])
    s.serve("c", f"doc:{3 * u + 1} c:1", chunk=4 * u, decode=2)
    s.abort("b")
    return shape.pages(4 * u) * 3


def reset_while_one_waits(s: Script, shape: Shape) -> int:
    """Forget the second tier while a request waits for room that was told what it could load
    from there.
    """
    u = shape.unit
    s.serve("a", f"doc:{3 * u + 1}", chunk=u)
    s.reset(tier="local")
    s.submit("large", f"large:{4 * u}")
    s.submit("b", f"doc:{3 * u + 1}")
    s.step(("large", 4 * u), ("b", u))
    s.step(("large", 1), ("b", u))
    s.reset(tier="cpu")
    s.finish("large")
    s.prefill("b", u)
    s.finish("b")
    s.serve("c", f"doc:{3 * u + 1}", chunk=u)
    return shape.pages(4 * u + 1)


def engines_share_a_tier(s: Script, shape: Shape) -> int:
    """Ask the same of engines with other kernels, before and after each has lost what lay on its
    device.

    The first two differ in the size of the kernel's block alone, the third in the backend. At last
    one with the kernels of the first, which is what a shared tier is for, is served what that one
    stored.
    """
    u = shape.unit
    names = ("flash:16", "flash:64", "triton:16")
    for run in ("cold", "again"):
        for index, kernels in enumerate(names):
            s.serve(f"{run}{index}", f"doc:{3 * u + 1}", chunk=u, decode=2, kernels=kernels)
            s.serve(f"{run}{index}more", f"doc:{2 * u} more:{u}", chunk=u, kernels=kernels)
        s.reset(tier="local")
    s.serve("joins", f"doc:{3 * u + 1}", chunk=u, kernels=names[0])
    return shape.pages(4 * u) * 2


def loads_take_time(s: Script, shape: Shape) -> int:
    """Bring a lost prefix back while others run; let one be aborted that waits for it, let a
    load fail, and a store.
    """
    u = shape.unit
    s.serve("a", f"doc:{4 * u + 1}", chunk=2 * u, decode=2)
    s.reset(running=True, tier="local")
    s.submit("b", f"doc:{4 * u + 1}")
    s.submit("c", f"other:{3 * u + 1}")
    s.step(("b", 4 * u))
    s.abort("b")
    s.submit("d", f"doc:{4 * u + 1} d:{u}")
    for _ in range(6):
        s.step(("c", 4 * u), ("d", 4 * u), fail=(1, 5))
    s.prefill("d", 4 * u)
    s.decode(2, "c", "d")
    s.finish("c")
    s.finish("d")
    s.reset(running=True, tier="local")
    for name in ("e", "f"):
        s.submit(name, f"doc:{4 * u} {name}:{u + 1}")
    s.step(("e", 2 * u), ("f", 2 * u))
    s.prefill("f", 2 * u)
    s.decode(2, "e", "f")
    s.finish("e")
    s.finish("f")
    return shape.pages(5 * u + 9) * 2


def last_block_is_taken(s: Script, shape: Shape) -> int:
    """End a request whose last drafts complete a block, and have all of its pages taken in the
    next step; then ask on.
    """
    u = shape.unit
    for index in range(1, 4):
        first = f"a{index}"
        other = f"b{index}"
        asks_on = f"c{index}"
        s.submit(first, f"{first}:{2 * u - 1 - index}")
        s.step((first, 2 * u))
        s.submit(other, f"{other}:{5 * u}")
        s.decode(1, first)
        s.finish(first)
        s.step((other, 5 * u))
        s.decode(2, other)
        s.finish(other)
        s.reset(running=True, tier="local")
        s.serve(asks_on, f"{first}:{2 * u - 1 - index} @{first}:9", chunk=4 * u)
    return shape.pages(5 * u + 1)


def loads_fill_the_pool(s: Script, shape: Shape) -> int:
    """Load three prefixes of which each fits; what the first still lacks is then held by the
    other two.
    """
    u = shape.unit
    known = {"a": 2 * u, "b": 4 * u, "c": 3 * u}
    for name, tokens in known.items():
        s.serve(f"{name}1", f"doc-{name}:{tokens + 1}", chunk=4 * u)
    s.reset(running=True, tier="local")
    for name, tokens in known.items():
        s.submit(f"{name}2", f"doc-{name}:{tokens} {name}2:{4 * u if name == 'a' else u}")
    for _ in range(16):
        s.step(*((f"{name}2", 4 * u) for name in known))
    for name in known:
        s.decode(2, *(f"{other}2" for other in known if other >= name))
        s.finish(f"{name}2")
    return shape.pages(10 * u)
