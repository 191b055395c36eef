"""What a server is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass

from mansard.language.batch_engine import MAX_WAITING


@dataclass(frozen=True)
class ServerOptions:
    """``name`` is the model's in requests; with ``api_key``, requests of ``/v1`` have to carry it.

    Up to ``max_waiting`` texts wait for a cache; bodies have at most ``max_body`` bytes, and a request asks
    for at most ``max_texts`` texts. When the server is told to end, texts that are being generated have
    ``drain_seconds`` to become complete.
    """

    name: str
    api_key: str | None = None
    max_waiting: int = MAX_WAITING
    max_body: int = 16 << 20
    max_texts: int = 128
    drain_seconds: float = 30.0
