"""A server of a small language model, in a thread of the test's process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time

import openai

from mansard.serving.options import ServerOptions
from mansard.serving.server import Server
from support.decoders.checkpoints import write_decoder
from support.decoders.tokenizers_of_tests import CHAT, byte_level


def write_served_model(folder, **changed):
    """The folder of a checkpoint with a tokenizer and a chat template."""
    sizes = {"vocab_size": byte_level().get_vocab_size(), "max_position_embeddings": 128, **changed}
    write_decoder(folder, "llama", **sizes)
    byte_level().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT, "bos_token": "<s>"}))
    return folder


class Running:
    """A server that listens; `stop` ends it as a signal does."""

    def __init__(self, lm, **options):
        self.lm = lm
        self.listens = threading.Event()
        self.server = Server(
            lm,
            ServerOptions(**{"name": "tiny", **options}),
            port=0,
            log_level="critical",
            ready=lambda _: self.listens.set(),
        )
        self.thread = threading.Thread(target=lambda: asyncio.run(self.server.serve()))
        self.thread.start()
        assert self.listens.wait(20)

    @property
    def url(self):
        return self.server.address

    @property
    def service(self):
        return self.server.service

    @property
    def engine(self):
        return self.server.service.engine

    def client(self, kind=openai.OpenAI, **options):
        """The official client."""
        given = {"api_key": "none", "max_retries": 0, "timeout": 60, **options}
        return kind(base_url=f"{self.url}/v1", **given)

    def wait_idle(self):
        """Wait until no text is being generated, nor waits."""
        end = time.monotonic() + 30
        while self.engine.active or self.engine.waiting or self.service._running:
            assert time.monotonic() < end
            time.sleep(0.002)

    def stop(self):
        """End the server, as SIGTERM does, and wait for it."""
        self.server.should_exit = True
        self.thread.join(60)
        assert not self.thread.is_alive()
        self.service.close()


@contextlib.contextmanager
def running(lm, **options):
    """A server for the duration of a block."""
    server = Running(lm, **options)
    try:
        yield server
    finally:
        server.stop()
