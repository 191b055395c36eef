"""A language model on several machines: each replica of a Ray Serve deployment is a whole server.

Ray routes requests to the replica with the fewest in flight, and replaces those whose engine has stopped.
Within a replica, requests are batched continuously. README.md says how to start it.
"""

from __future__ import annotations

from typing import Any

from ray import serve
from starlette.applications import Starlette

from mansard.language import load_lm
from mansard.serving.application import create_app
from mansard.serving.options import ServerOptions
from mansard.serving.service import TextService


@serve.deployment
@serve.ingress()
class LanguageModelServer:
    """One replica: a model on the devices of its machine, and OpenAI's API over it."""

    def __init__(self, artifact: str, name: str, tokenizer: str | None, devices: list[str] | None) -> None:
        lm = load_lm(artifact, tokenizer=tokenizer, devices=devices)
        self.service = TextService(lm, ServerOptions(name=name))

    def __serve_build_asgi_app__(self) -> Starlette:
        """Ray asks for the application when the replica starts."""
        return create_app(self.service)

    def check_health(self) -> None:
        """Ray replaces a replica whose check raises."""
        if not self.service.engine.running:
            raise RuntimeError("the engine has stopped")


def build_app(arguments: dict[str, Any]) -> serve.Application:
    """For `serve run deployment:build_app artifact=… name=…`.

    Up to ``in_flight`` requests, 32 by default, are with a replica at a time; the others wait in Ray, which
    can give them to any replica.
    """
    options = {
        "num_replicas": int(arguments.get("replicas", 1)),
        "max_ongoing_requests": int(arguments.get("in_flight", 32)),
        "ray_actor_options": {"num_cpus": float(arguments.get("cpus", 1))},
    }
    devices = arguments.get("devices")
    return LanguageModelServer.options(**options).bind(
        str(arguments["artifact"]),
        str(arguments["name"]),
        arguments.get("tokenizer"),
        devices.split(",") if devices else None,
    )
