"""What a server did, in the text form of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mansard.language.batch_engine import BatchEngine
from mansard.language.text_request import TextRequest

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_INTERVALS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_RATES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)


class Metrics:
    """Counts requests; what the engine counts is read from it when somebody asks."""

    def __init__(self, engine: BatchEngine) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_EngineCollector(engine))
        registry = self.registry
        self._requests = Counter(
            "mansard_requests", "HTTP requests for text, by status; 499: the client went away.",
            ["endpoint", "status"], registry=registry,
        )  # fmt: skip
        self._errors = Counter(
            "mansard_request_errors", "Requests that ended with an error.", ["code"], registry=registry
        )
        self._queue = Histogram(
            "mansard_queue_seconds", "Waiting for a cache.", buckets=_SECONDS, registry=registry
        )
        self._first = Histogram(
            "mansard_time_to_first_token_seconds", "From a request to its first token.",
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self._interval = Histogram(
            "mansard_time_per_token_seconds", "Mean time between the tokens of a text.",
            buckets=_INTERVALS, registry=registry,
        )  # fmt: skip
        self._rate = Histogram(
            "mansard_tokens_per_second", "Tokens a second of a text, after its first.",
            buckets=_RATES, registry=registry,
        )  # fmt: skip
        self._whole = Histogram(
            "mansard_text_seconds", "From a request to the last token of a text.",
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self._texts, self._busy = 0, 0.0

    def count_request(self, endpoint: str, status: int) -> None:
        """A request was answered."""
        self._requests.labels(endpoint, str(status)).inc()

    def count_error(self, code: str | None) -> None:
        """A request ended with an error, maybe after its answer had begun."""
        self._errors.labels(code or "other").inc()

    def count_text(self, request: TextRequest) -> None:
        """A text is over, complete or not."""
        times = request.times
        if times.begun:
            self._queue.observe(times.begun - times.submitted)
        if not times.first_token:
            return
        self._first.observe(times.first_token - times.submitted)
        self._whole.observe(times.last_token - times.submitted)
        self._texts, self._busy = self._texts + 1, self._busy + times.last_token - times.begun
        if (seconds := times.last_token - times.first_token) > 0 and request.generated > 1:
            self._interval.observe(seconds / (request.generated - 1))
            self._rate.observe((request.generated - 1) / seconds)

    @property
    def mean_text_seconds(self) -> float:
        """How long a text held its cache so far, on average; 1 before there was one."""
        return self._busy / self._texts if self._texts else 1.0

    def text(self) -> bytes:
        """All metrics."""
        return generate_latest(self.registry)


class _EngineCollector(Collector):
    """What the engine has done and does now."""

    def __init__(self, engine: BatchEngine) -> None:
        self._engine = engine

    def collect(self) -> Iterable[Metric]:
        """The current values."""
        engine, stats = self._engine, self._engine.stats
        for name, help_, number in (
            ("mansard_requests_waiting", "Texts that wait for a cache.", engine.waiting),
            ("mansard_requests_running", "Texts that are being generated.", engine.active),
            (
                "mansard_caches",
                "Caches of the model: texts generated at a time.",
                engine.description.sequences,
            ),
            ("mansard_cache_positions", "Positions of all caches.", engine.positions),
            ("mansard_cache_positions_in_use", "Positions in use, of all caches.", engine.positions_in_use),
        ):
            yield GaugeMetricFamily(name, help_, value=number)
        counts: tuple[tuple[str, str, float], ...] = (
            ("mansard_prompt_tokens", "Tokens of prompts that were read.", stats.prompt_tokens),
            ("mansard_prompt_tokens_reused", "Tokens of prompts that a cache held.", stats.reused_tokens),
            ("mansard_generated_tokens", "Tokens generated.", stats.generated_tokens),
            (
                "mansard_preemptions",
                "Texts that gave their pages to others and began again.",
                stats.preempted,
            ),
            ("mansard_prompt_seconds", "Time spent reading prompts.", stats.prompt_seconds),
            ("mansard_decode_steps", "Decode steps.", stats.steps),
            ("mansard_decode_seconds", "Time spent in decode steps.", stats.step_seconds),
        )
        for name, help_, count in counts:
            yield CounterMetricFamily(name, help_, value=count)
