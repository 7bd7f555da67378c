"""`cachewitness serve`: an engine that answers prompts, behind an OpenAI-compatible server on
this machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cachewitness._util import output
from cachewitness.cli.json_option import json_option
from cachewitness.cli.options import policy_option, release_option

if TYPE_CHECKING:
    from cachewitness.parity.scores.server import LocalServer

PORT = 8000


@click.command()
@click.option(
    "--engine",
    default="toy",
    show_default=True,
    metavar="NAME[:KEY=VALUE,…]",
    help="The engine that answers the prompts.",
)
@policy_option
@release_option
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=PORT,
    show_default=True,
    help="The port of 127.0.0.1 to listen on; 0 for any that is free.",
)
@click.option(
    "--tier",
    is_flag=True,
    help="Put a second tier behind the engine's cache; lmcache has one without being told.",
)
@click.option("--no-cache", is_flag=True, help="Turn prefix caching off, for `score --cold-url`.")
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="Where it computes.",
)
@click.option(
    "--dtype", default="", metavar="NAME", help="The precision; default: the checkpoint's."
)
@click.option(
    "--checkpoint", default="", metavar="DIR", help="The model; default: the engine's own."
)
@json_option("serving")
def serve(
    engine: str,
    policy: str,
    release: str | None,
    port: int,
    tier: bool,
    no_cache: bool,
    as_json: bool,
    **opening: Any,
) -> int:
    """Answer completions at http://127.0.0.1:PORT until Ctrl-C.

    POST /v1/completions and /reset_prefix_cache[?reset_external=true]; GET /health, /v1/models,
    /version and /metrics.
    """
    from cachewitness._util.errors import UsageError
    from cachewitness.cli.options import answerer_of
    from cachewitness.engines import policy as policies
    from cachewitness.engines.answers import Opening
    from cachewitness.parity.scores.server import LocalServer

    if tier and no_cache:
        raise UsageError(
            "--tier: there is no second tier without a cache; leave --no-cache or --tier out"
        )
    spec, prompts = answerer_of(engine, policy, release)
    tier = tier or (policies.get(policy).tensors.tiered and not no_cache)
    chosen = Opening(caching=not no_cache, tier=tier, policy=policy, **opening)
    backend = prompts.open(spec.options, chosen)
    try:
        server = LocalServer(backend, model=spec.kind.name, port=port)
    except OSError as error:
        backend.close()
        raise UsageError(
            f"--port: {port} cannot be listened on ({error.strerror}); name another, or 0 for any"
        ) from None
    cache = (
        "without a cache" if no_cache else "with a second tier" if tier else "without a second tier"
    )
    description = f"{spec.text}, policy {policy}, {cache}"
    try:
        _until_ctrl_c(server, description, spec.text if as_json else "")
    finally:
        backend.close()
    return 0


def _until_ctrl_c(server: LocalServer, description: str, engine: str) -> None:
    """Serve until somebody ends it, which is how a server ends; say where, in a document of one
    line if an engine is named.
    """
    import threading

    with server:
        try:
            if engine:
                import msgspec

                from cachewitness.cli.documents import Serving

                output.echo(msgspec.json.encode(Serving(url=server.url, engine=engine)))
            else:
                output.echo(f"serving at {server.url} ({description}); Ctrl-C ends it")
            threading.Event().wait()
        except KeyboardInterrupt:
            message = f"stopped after {server.dispatcher.requests:,} requests"
            click.echo(message, err=True) if engine else output.echo(message)
