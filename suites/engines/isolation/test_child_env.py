"""An engine's process gets the settings of its system and no secret of whoever runs the harness,
unless it is named.
"""

from __future__ import annotations

import json
import os
import sys

import pytest

from cachewitness.cli import invoke
from cachewitness.engines.isolation import child_env
from cachewitness.engines.isolation.process import Process
from cachewitness.engines.registry import parse

SECRET = {
    "HF_TOKEN": "hf_1",
    "GITHUB_TOKEN": "gh_1",
    "OPENAI_API_KEY": "sk-1",
    "AWS_SECRET_ACCESS_KEY": "a",
    "AWS_ACCESS_KEY_ID": "b",
    "AZURE_CLIENT_SECRET": "c",
    "PGPASSWORD": "d",
    "db_password": "e",
    "SSH_AUTH_SOCK": "agent.sock",
    "HTTPS_PROXY": "http://user:word@proxy:3128",
    "PIP_INDEX_URL": "https://__token__:abc@index/simple",
}
PLAIN = {
    "PATH": "/bin",
    "HOME": "/home/a",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_MAX_TOKENS": "7",
    "KEYBOARD": "de",
    "CUDA_VISIBLE_DEVICES": "0",
    "HF_HOME": "/models",
    "HTTP_PROXY": "http://proxy:3128",
    "no_proxy": "localhost",
    "EXPECTED_AVERAGE_SEQ_LENGTH": "8192",
}
TELLS = """
import json, os
print(json.dumps(dict(os.environ)), file=os.fdopen(int(os.environ["CACHEWITNESS_ANSWERS"]), "w"))
"""


def child_environment(monkeypatch: pytest.MonkeyPatch, *named: str, **more: str) -> dict[str, str]:
    """Return the environment that a child of ours finds."""
    for name, value in (SECRET | PLAIN | more).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", os.defpath)
    process = Process([sys.executable, "-c", TELLS], named=named)
    try:
        found: dict[str, str] = json.loads(process.ask(b"", 30))
    finally:
        process.kill()
    return found


def test_what_looks_like_a_secret_is_told_from_what_does_not() -> None:
    assert {
        name for name, value in SECRET.items() if not child_env.looks_secret(name, value)
    } == set()
    assert {name for name, value in PLAIN.items() if child_env.looks_secret(name, value)} == set()


def test_a_child_gets_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    found = child_environment(monkeypatch)
    assert SECRET.keys().isdisjoint(found)
    assert PLAIN.keys() <= found.keys()


def test_what_is_named_is_passed_on_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the user, or by the option of an engine that names the variable of its key."""
    found = child_environment(
        monkeypatch, "OPENAI_API_KEY", CACHEWITNESS_PASS="HF_TOKEN, PGPASSWORD,,nothing"
    )
    assert SECRET.keys() & found.keys() == {"OPENAI_API_KEY", "HF_TOKEN", "PGPASSWORD"}
    spec = parse("openai-server:url=http://127.0.0.1:1,key=MY_KEY")
    assert spec.isolated(parse("jsonl:command=true").isolation).isolation.named == ("MY_KEY",)  # type: ignore[arg-type, union-attr]


def test_the_doctor_names_what_is_withheld_and_tells_no_value(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MY_TOKEN", "very-secret")
    for command in (["doctor", "reference"], ["doctor", "reference", "--json"]):
        assert invoke(command) == 0
        printed = "".join(capsys.readouterr())
        assert "MY_TOKEN" in printed and "very-secret" not in printed
    monkeypatch.setenv("CACHEWITNESS_PASS", "MY_TOKEN")
    assert invoke(["doctor", "reference"]) == 0
    assert "MY_TOKEN" not in capsys.readouterr().out
