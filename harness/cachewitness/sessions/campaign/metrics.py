"""How far a campaign is, in Prometheus' text format: in a file that a collector reads, or on a
port that it asks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cachewitness._util import files
from cachewitness._util.errors import UsageError
from cachewitness.sessions.campaign.driver import CampaignProgress

PREFIX = "cachewitness_campaign"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def text(progress: CampaignProgress, name: str) -> str:
    """Return the metrics of a campaign; those that only grow end in `_total`."""
    values: dict[str, tuple[str, float | None]] = {
        "units": ("units of work in all", progress.units),
        "units_done": ("units of work that are done", progress.done),
        "units_given_up": ("units of work that were given up", progress.given_up),
        "workers": ("workers that run", progress.workers),
        "workers_lost_total": ("workers that ended before the campaign", progress.lost),
        "traces_total": ("traces that ran", progress.traces),
        "operations_total": ("operations that were carried out", progress.operations),
        "findings_total": ("findings that were met", progress.findings),
        "finding_classes": ("classes of findings that were met", len(progress.classes)),
        "marks": ("marks that were reached", len(progress.marks)),
        "seconds": ("seconds since this driver began", progress.seconds),
        "seconds_left": ("seconds that the rest will take, as far as that is known", progress.left),
    }
    escaped = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    lines = []
    for metric, (meaning, value) in values.items():
        if value is not None:
            kind = "counter" if metric.endswith("_total") else "gauge"
            full = f"{PREFIX}_{metric}"
            lines += [
                f"# HELP {full} {meaning}",
                f"# TYPE {full} {kind}",
                f'{full}{{campaign="{escaped}"}} {value:g}',
            ]
    return "\n".join(lines) + "\n"


@contextmanager
def exporter(where: str | None, name: str) -> Iterator[Callable[[CampaignProgress], None]]:
    """Yield what to call with how far a campaign is; `where` is a file, a port, or None.

    Raises UsageError if the file cannot be written or the port is taken.
    """
    if where is None:
        yield lambda progress: None
    elif where.isdecimal():
        with _served(int(where), name) as tell:
            yield tell
    else:
        path = Path(where)
        yield lambda progress: files.write(path, [text(progress, name).encode()])


@contextmanager
def _served(port: int, name: str) -> Iterator[Callable[[CampaignProgress], None]]:
    latest = [text(CampaignProgress(), name).encode()]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(latest[0])))
            self.end_headers()
            self.wfile.write(latest[0])

        def log_message(self, format: str, *args: object) -> None:
            pass

    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except (OSError, OverflowError) as error:
        raise UsageError(f"--metrics: port {port} cannot be served ({error})") from None
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()

    def tell(progress: CampaignProgress) -> None:
        latest[0] = text(progress, name).encode()

    try:
        yield tell
    finally:
        server.shutdown()
        server.server_close()
