"""Three stand-ins for inference servers on this machine, and a router in front of them, for the scripts that look at a router.

The stand-ins answer at once, or after 0.3 s if a prompt says "wait", and give back which of them was asked and with what body.
"""  # noqa: E501

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Worker(BaseHTTPRequestHandler):
    """A stand-in for an inference server."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        """Say nothing of requests."""

    def answer(self, value):
        """Send a value as JSON."""
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(BrokenPipeError):
            self.wfile.write(body)

    def do_GET(self):
        """Answer what a router asks to know whether this is a healthy server, and of which model."""  # noqa: E501
        models = {"object": "list", "data": [{"id": "m", "object": "model", "max_model_len": 4096}]}
        self.answer(
            models
            if "models" in self.path
            else {"status": "ok", "model_path": "m", "is_generation": True}
        )

    def do_POST(self):
        """Answer a request for a completion of any kind."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])) or b"{}")
        if "wait" in json.dumps(body):
            time.sleep(0.3)
        choice = {
            "index": 0,
            "text": "",
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": ""},
        }
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        answer = {
            "id": "x",
            "object": "text_completion",
            "created": 0,
            "model": "m",
            "choices": [choice],
            "usage": usage,
        }
        self.answer(
            answer
            | {
                "text": "",
                "meta_info": {"id": "x"},
                "worker": self.server.server_port,
                "asked": body,
            }
        )


def free_port():
    """Return a port of this machine that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


def post(port, path, body):
    """Send a value as JSON, and return the answer's."""
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", data=json.dumps(body).encode(), headers=headers
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.loads(answer.read())


@contextlib.contextmanager
def routed(package, *options, workers=3):
    """Yield (the router's port, {a worker's port: its name}); the router is ended behind it."""
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Worker) for _ in range(workers)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    port, names = free_port(), {server.server_port: "ABC"[n] for n, server in enumerate(servers)}
    command = [
        sys.executable,
        "-m",
        f"{package}.launch_router",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        *options,
    ]
    command += [
        "--prometheus-port",
        str(free_port()),
        "--worker-urls",
        *(f"http://127.0.0.1:{worker}" for worker in names),
    ]
    log_path = Path(f"{package}.log")
    with log_path.open("w") as log:
        router = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        for _ in range(120):
            with contextlib.suppress(OSError):
                post(
                    port,
                    "/v1/completions",
                    {"model": "m", "prompt": "are you there", "max_tokens": 1},
                )
                break
            if router.poll() is not None:
                raise SystemExit(f"the router of {package} ended: {log_path.read_text()[-500:]}")
            time.sleep(0.5)
        else:
            raise SystemExit(
                f"the router of {package} answers nothing: {log_path.read_text()[-500:]}"
            )
        yield port, names
    finally:
        router.terminate()
        try:
            router.wait(timeout=20)
        except subprocess.TimeoutExpired:
            router.kill()
            router.wait()
        for server in servers:
            server.shutdown()
