"""A server that is told to end: texts become complete within a limit, nothing new is begun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import httpx2
import openai
import pytest
from support.command_line import invoke
from support.serving.running_server import write_served_model

import mansard
from mansard.serving.server import listen

LONG = {"model": "tiny", "prompt": [9], "max_tokens": 60, "stream": True, "temperature": 0}


def slowed(server, monkeypatch, seconds):
    """Let every decode step take that long."""
    advance = server.engine.methods.advance
    monkeypatch.setattr(
        server.engine.methods, "advance", lambda *args: (time.sleep(seconds), advance(*args))[1]
    )


def test_running_texts_become_complete(another_server, monkeypatch):
    with another_server(drain_seconds=20) as other:
        slowed(other, monkeypatch, 0.002)
        client = other.client()
        stream = iter(client.completions.create(**LONG, extra_body={"ignore_eos": True}))
        next(stream)
        idle = httpx2.Client(base_url=other.url)
        assert idle.get("/health").status_code == 200
        stopping = threading.Thread(target=other.stop)
        stopping.start()
        chunks = list(stream)
        assert chunks[-1].choices[0].finish_reason == "length"
        stopping.join(20)
        with pytest.raises((httpx2.ConnectError, httpx2.RemoteProtocolError, httpx2.ReadError)):
            idle.get("/health")
        idle.close()
        client.close()


def test_texts_past_the_limit_end_with_an_error(another_server, monkeypatch):
    with another_server(drain_seconds=0.1) as other:
        slowed(other, monkeypatch, 0.1)
        with other.client() as client:
            stream = iter(client.completions.create(**LONG, extra_body={"ignore_eos": True}))
            next(stream)
            began = time.monotonic()
            threading.Thread(target=other.stop).start()
            with pytest.raises(openai.APIError, match="the server is shutting down"):
                list(stream)
            assert time.monotonic() - began < 5


def test_idle_connections_are_kept_longer_than_clients_keep_them(server, client):
    """A server that closes one just when its client sends a request gives that an error of the connection."""
    pool = client._client._transport._pool
    assert server.server.config.timeout_keep_alive >= 5 * pool._keepalive_expiry


def test_nothing_is_begun_while_the_server_ends(another_server):
    with another_server() as other, httpx2.Client(base_url=other.url) as http:
        other.service.draining = True
        response = http.post("/v1/completions", json={"model": "tiny", "prompt": [9]})
        assert response.status_code == 503 and response.json()["error"]["code"] == "shutting_down"
        assert int(response.headers["retry-after"]) >= 1 and response.headers["connection"] == "close"
        health = http.get("/health")
        assert health.status_code == 503 and health.json()["status"] == "shutting down"


def test_an_address_that_is_taken_is_one_line(tmp_path):
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        told = invoke("serve", tmp_path, "--port", port)
        assert told.exit_code == 1
        assert f"cannot listen at 127.0.0.1 port {port}: Address already in use" in told.stderr
    with pytest.raises(mansard.InputError, match=r"cannot listen at nowhere\.invalid port 1"):
        listen("nowhere.invalid", 1)


def test_the_command_ends_in_order_on_sigterm(tmp_path):
    folder = write_served_model(tmp_path / "tiny-0.6B", num_hidden_layers=1, max_position_embeddings=512)
    command = [sys.executable, "-m", "mansard", "serve", str(folder), "--device", "cpu", "--port", "0"]
    options = ["--sequences", "1", "--context", "512", "--no-logprobs", "--log-level", "warning"]
    environment = {**os.environ, "MANSARD_API_KEY": "secret"}
    with subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, env=environment, text=True
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[-1]
            with openai.OpenAI(base_url=address, api_key="secret", max_retries=0) as client:
                wanted = {**LONG, "model": "tiny-0.6B", "max_tokens": 300}
                stream = iter(client.completions.create(**wanted, extra_body={"ignore_eos": True}))
                next(stream)
                process.send_signal(signal.SIGTERM)
                assert list(stream)[-1].choices[0].finish_reason == "length"
            assert process.wait(30) == 0
        finally:
            process.kill()
