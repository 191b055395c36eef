"""`LanguageModel`: generates text with a compiled decoder."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import AsyncIterator, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.api.model import Model
from mansard.arguments import shown
from mansard.errors import ImportModelError, InputError
from mansard.language.batch_engine import BatchEngine
from mansard.language.compilation import compile_routing, routed_experts
from mansard.language.description import Description
from mansard.language.experts import Counts, ExpertPlacement, choice_counts
from mansard.language.explanation import LanguageModelExplanation, explain
from mansard.language.generation import Sampling, Settings, Token, TokenTexts, restricts
from mansard.language.methods import takes_sequences, unrestricted
from mansard.language.prompts import prompt_piece
from mansard.language.speculation.opening import open_speculation, window_length
from mansard.language.speculation.speculation import Steps, Target
from mansard.language.speculation.stats import SpeculationStats
from mansard.language.speculation.trace import CallTrace
from mansard.language.step_pace import StepPace
from mansard.language.stop_texts import checked_stop
from mansard.language.text_request import TextRequest
from mansard.language.text_steps import TextSteps
from mansard.language.tokenizer import Tokenizer
from mansard.language.tokenizer.saved import ASSET, tokenizer_from_bytes, tokenizer_to_bytes
from mansard.runtime.calls.limits import checked_int
from mansard.runtime.calls.pending_call import PendingCall
from mansard.runtime.memory.ledger import MemoryLedger
from mansard.runtime.session import Session


@dataclass
class GenerationStats:
    """Of the last generation: tokens of the prompt, how many of them the cache still held, new tokens, and
    seconds until the first of these and until the last; with a draft, what speculation achieved."""

    prompt: int = 0
    reused: int = 0
    generated: int = 0
    first_token: float = 0.0
    total: float = 0.0
    speculation: SpeculationStats | None = None

    @property
    def decode_rate(self) -> float:
        """New tokens a second after the first."""
        seconds = self.total - self.first_token
        return (self.generated - 1) / seconds if self.generated > 1 and seconds > 0 else 0.0


class LanguageModel:
    """A decoder on its devices. Of a model for one sequence, one text is generated at a time, and a new one
    ends the one before; a model for several advances as many texts with every step (`engine`).

    The cache of keys and values stays on the devices. A prompt that begins like the text before, as the next
    turn of a conversation does, is computed from where it differs.

    A ``draft``, a smaller model or ``"ngram"``, proposes tokens that this model verifies
    (`mansard.language.speculation`); it is closed with this model.
    """

    def __init__(
        self, model: Model, tokenizer: Tokenizer | None = None, draft: LanguageModel | str | None = None
    ) -> None:
        self.model, self._tokenizer = model, tokenizer
        self.checkpoint: Path | None = None
        """What it was compiled from, if that was done by `load_lm`."""
        self.description = Description.from_info(model.plan.info)
        self.stats = GenerationStats()
        self._prefill, self._decode = model.method("prefill"), model.method("decode")
        self._unrestricted = unrestricted(model)
        self._lock, self._tokenizer_lock = threading.Lock(), threading.Lock()
        self._cached: list[int] = []
        """The tokens whose keys and values the cache holds."""
        self._stands = 0
        """The positions that have been computed, by steps whose tokens nobody has read as well."""
        self._sequence = 0
        self._engine: BatchEngine | None = None
        self.trace: CallTrace | None = None
        """Records the calls of generation on their devices, where it is set."""
        self.draft = draft if isinstance(draft, LanguageModel) else None
        self.speculation = None if draft is None else open_speculation(self, draft)

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer; None for a model without one, and for one of an artifact where the package
        ``tokenizers`` is not installed."""
        try:
            return self._opened_tokenizer()
        except ImportModelError:
            return None

    def engine(self) -> BatchEngine:
        """What generates several texts at a time, started on first use. Several threads may use it."""
        with self._lock:
            if self._engine is None:
                self._engine = BatchEngine(self.model, self.tokenizer)
            return self._engine

    def generate(
        self,
        prompt: str | Sequence[int],
        max_new_tokens: int = 256,
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        seed: int = 0,
        stop_at_end: bool = True,
        stop: str | Sequence[str] = (),
        speculate: bool | int | None = None,
    ) -> Iterator[Token]:
        """Generate tokens after a prompt: text, or token numbers. Each is yielded as soon as it is known.

        Ends after ``max_new_tokens``, at a token that ends texts (unless ``stop_at_end`` is false), before a
        text of ``stop``, or where the context is full. `Sampling` tells what the other arguments mean.
        A model with a draft speculates, in windows of as many proposals as pay or of ``speculate`` (False:
        not at all). Raises InputError for a prompt that is empty or does not fit the context, and when
        another generation has begun in the meantime.
        """
        return iter(
            self._begin(
                prompt,
                max_new_tokens,
                Sampling(temperature, top_k, top_p, min_p, repetition_penalty, seed),
                stop_at_end,
                stop,
                speculate,
            )
        )

    async def generate_async(
        self,
        prompt: str | Sequence[int],
        max_new_tokens: int = 256,
        *,
        stop_at_end: bool = True,
        stop: str | Sequence[str] = (),
        speculate: bool | int | None = None,
        **sampling: Any,
    ) -> AsyncIterator[Token]:
        """`generate`, without blocking the event loop; ``sampling`` are arguments of `Sampling`."""
        tokens = self._begin(prompt, max_new_tokens, Sampling(**sampling), stop_at_end, stop, speculate)
        if isinstance(tokens, TextRequest):
            async for token in tokens:
                yield token
            return
        import asyncio  # loaded already: an event loop runs

        step: asyncio.Future[Token | None] | None = None
        try:
            while True:
                step = asyncio.ensure_future(asyncio.to_thread(next, tokens, None))
                if (following := await asyncio.shield(step)) is None:
                    return
                yield following
        finally:
            if step is not None and not step.done():  # cancelled: the generator is in its step
                await asyncio.wait([step])
            tokens.close()

    def _begin(
        self,
        prompt: str | Sequence[int],
        max_new_tokens: int,
        sampling: Sampling,
        stop_at_end: bool,
        stop: str | Sequence[str],
        speculate: bool | int | None,
    ) -> TextRequest | Generator[Token, None, None]:
        ids = self._ids(prompt)
        count = checked_int("max_new_tokens", max_new_tokens)
        if count < 1:
            raise InputError(f"max_new_tokens={count}: at least one token has to be generated")
        window = window_length(self.speculation, speculate)
        stop = checked_stop(stop)
        if stop:
            self.need_tokenizer()
        if self.description.sequences > 1:
            return self.engine().submit(ids, count, sampling, stop_at_end=stop_at_end, stop=stop)
        return self._generate(ids, count, sampling, stop_at_end, stop, window)

    def text(self, prompt: str | Sequence[int], max_new_tokens: int = 256, **options: Any) -> str:
        """The whole text that `generate` yields. Raises InputError for a model without a tokenizer."""
        self.need_tokenizer()
        return "".join(token.text for token in self.generate(prompt, max_new_tokens, **options))

    def logits(self, prompt: str | Sequence[int]) -> npt.NDArray[np.float32]:
        """Logits of the token after each token of a prompt, (tokens, vocabulary) f32.

        Raises InputError for a model for several sequences, whose places are the engine's.
        """
        if self.description.sequences > 1:
            raise InputError("logits are those of a model for one sequence (load_lm(…, sequences=1))")
        ids = self._ids(prompt)
        with self._lock:
            self._sequence += 1
            self._cached = []
            parts = []
            for start in range(0, len(ids), self.description.chunk):
                part = ids[start : start + self.description.chunk]
                logits = self.model(tokens=np.array([part], np.int64), positions=np.array([start], np.int64))
                parts.append(logits[0])
            self._cached, self._stands = ids, len(ids)
        return np.concatenate(parts)

    def encode(self, text: str) -> list[int]:
        """The token numbers of a text."""
        return self.need_tokenizer().encode(text)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the compiled model, with its tokenizer, to one file for `mansard.load_lm`."""
        tokenizer = self._tokenizer
        assets = None if tokenizer is None else {ASSET: tokenizer_to_bytes(tokenizer)}
        self.model.save(path, assets=assets)

    def explain(self) -> LanguageModelExplanation:
        """What each device has of the model, and why each dispatch of a decode step runs where it does."""
        return explain(self.model)

    def expert_counts(self, prompt: str | Sequence[int]) -> Counts:
        """How often the tokens of a text choose each expert, (layers with experts, experts), for ``load_lm(…,
        expert_counts=…)``. Compiles and runs a model for it, on the devices of this one.

        Raises InputError for an artifact, whose checkpoint is not known, CompileError without experts.
        """
        if self.checkpoint is None:
            raise InputError("experts are counted by a model that was opened from its checkpoint")
        ids = self._ids(prompt)
        chunk = min(self.description.chunk, len(ids))
        devices = [device.name for device in self.model.plan.devices]
        choices: list[list[npt.NDArray[Any]]] = []
        with compile_routing(self.checkpoint, devices, self.description.context, chunk) as routing:
            for start in range(0, len(ids), chunk):
                part = np.array([ids[start : start + chunk]], np.int64)
                rows = routing(tokens=part, positions=np.array([start], np.int64))
                choices.append(list(rows) if isinstance(rows, tuple) else [rows])
        layers = [np.concatenate(rows) for rows in zip(*choices, strict=True)]
        return choice_counts(layers, routed_experts(self.checkpoint))

    def expert_hits(self, prompt: str | Sequence[int]) -> float:
        """The share of a text's choices that are experts on ``expert_device``. Raises InputError for a model
        whose experts are not divided, and as `expert_counts`."""
        placement = ExpertPlacement.from_info(self.model.plan.info)
        if placement is None:
            raise InputError("the experts of this model are not divided (load_lm(…, expert_device=…))")
        return placement.share(self.expert_counts(prompt))

    def memory(self) -> MemoryLedger:
        """The memory that the model holds, by use and device."""
        methods = [self.model, self._prefill, self._decode]
        if self._unrestricted is not self._decode:
            methods.append(self._unrestricted)
        if self.description.proposals:
            methods.append(self.model.method("verify"))
        rows = [row for each in methods for row in each.memory()]
        return MemoryLedger(rows if self.draft is None else [*rows, *self.draft.memory()])

    def device_names(self) -> set[str]:
        """The devices that generation runs on."""
        return {slot.name for each in (self._prefill, self._decode) for slot in each.bind().slots}

    def interrupt(self) -> None:
        """End the text that is being generated with an error, and forget what the cache holds."""
        with self._lock:
            self._sequence += 1
            self._cached = []

    def close(self) -> None:
        """Free the model's memory. Texts that are being generated end with an error."""
        if self._engine is not None:
            self._engine.close()
        with self._lock:
            self._sequence += 1
            self.model.close()
        if self.draft is not None:
            self.draft.close()

    def __enter__(self) -> LanguageModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Generation ----------------------------------------------------------------------------------

    def _generate(
        self,
        ids: list[int],
        count: int,
        sampling: Sampling,
        stop_at_end: bool,
        stop: Sequence[str],
        window: int | None,
    ) -> Generator[Token, None, None]:
        began = time.perf_counter()
        stats = GenerationStats(prompt=len(ids))
        speculation = self.speculation if window != 0 else None
        with self._lock:
            self._sequence += 1
            sequence = self._sequence
            self.stats = stats
            settings = sampling.rows(sequence)
            if speculation is not None:
                stats.speculation = speculation.begin(ids, settings, window, self.trace)
            prompt = self._read(ids, sampling, settings, stats)
        count = min(count, self.description.context - len(ids) + 1)
        single = functools.partial(self._steps, sequence, settings)
        steps: Steps
        if speculation is None:
            steps = following = single(len(ids), count - 1)
            chosen = self._first(sequence, ids, prompt, following)
        else:
            chosen = self._first(sequence, ids, prompt)
            verify = functools.partial(self._verify, sequence, settings)
            target = Target(verify, single, functools.partial(self._settle, sequence))
            ends = self.description.end_tokens if stop_at_end else ()
            steps = speculation.steps(target, [*ids, chosen], count - 1, ends)
        stats.first_token = time.perf_counter() - began
        try:
            texts = TokenTexts(self.tokenizer, ids, stop)
            while True:
                stats.generated += 1
                stats.total = time.perf_counter() - began
                ended = stop_at_end and chosen in self.description.end_tokens
                yield texts.token(chosen, ended=ended, last=stats.generated == count)
                step = None if ended or texts.stopped else next(steps, None)
                if step is None:
                    return
                if self._sequence == sequence:
                    self._cached.append(chosen)
                chosen = int(step[0])
        finally:
            steps.close()

    @functools.cached_property
    def _pace(self) -> StepPace:
        return StepPace(takes_sequences(self._decode))

    def _steps(self, sequence: int, settings: Settings, position: int, count: int) -> TextSteps:
        """Decode steps from a position on, at most ``count``, as far as the context reaches."""
        session = (self._decode if restricts(settings) else self._unrestricted).bind()
        submit = functools.partial(self._submit, session, sequence, settings)
        positions = range(position, min(position + count, self.description.context))
        return TextSteps(submit, positions, self._pace, self.trace)

    def _verify(self, sequence: int, settings: Settings, window: Sequence[int], position: int) -> PendingCall:
        """Submit proposals behind the token at a position. Where the sequence then stands, the call tells."""
        inputs = {"tokens": np.array([window]), "positions": np.array([position])}
        return self._submit(self.model.method("verify").bind(), sequence, settings, [inputs], -1)[0]

    def _submit(
        self,
        session: Session,
        sequence: int,
        settings: Settings,
        inputs: Sequence[Mapping[str, Any]],
        stands: int,
    ) -> list[PendingCall]:
        """Submit calls together, behind which the sequence ``stands`` at a position."""
        chosen = {"settings": settings[0], "draws": settings[1]}
        with self._lock:
            if self._sequence != sequence:
                raise InputError("another text was begun with this model, which ended the one before")
            self._stands = stands
            prepared = [session.signature.prepare((), {**each, **chosen}) for each in inputs]
            if self.trace is not None:
                return [session.begin(each, profile=True) for each in prepared]
            return session.begin_all(prepared)

    def _settle(self, sequence: int, position: int) -> None:
        """No call of a text is in flight, and the cache has what stands before a position."""
        if self._sequence == sequence:
            self._stands = position

    def _first(
        self, sequence: int, ids: list[int], prompt: PendingCall, following: TextSteps | None = None
    ) -> int:
        """The token behind the prompt; the first steps after it are submitted before it is known."""
        try:
            if following is not None:
                following.begin(others=1)
            chosen = int(prompt.result()[0][0])
        except BaseException:
            if following is not None:
                following.close()
            prompt.cancel()
            raise
        with self._lock:
            if self._sequence == sequence:
                self._cached = list(ids)
        return chosen

    def _read(
        self, ids: list[int], sampling: Sampling, settings: Settings, stats: GenerationStats
    ) -> PendingCall:
        """Bring the prompt into the cache; the call that reads its last piece, and gives the first token
        after it."""
        start = 0 if sampling.repetition_penalty != 1.0 else self._common_prefix(ids)
        stats.reused = start
        self._cached = self._cached[:start]
        session = self._prefill.bind()
        while True:
            part = ids[start : start + self.description.chunk]
            tokens, last = prompt_piece(part, self._prefill.inputs)
            inputs = {
                "tokens": tokens,
                "positions": np.array([start], np.int64),
                "last": last,
                "settings": settings[0],
                "draws": settings[1],
            }
            call = session.begin(session.signature.prepare((), inputs))
            start += len(part)
            self._stands = start
            if start == len(ids):
                return call
            call.result()
            self._cached += part

    def _common_prefix(self, ids: list[int]) -> int:
        """Tokens of the prompt that the cache holds; the last one is computed again, for its logits. None of
        them where the model would have to go back."""
        shared = 0
        for cached, wanted in zip(self._cached, ids[:-1], strict=False):
            if cached != wanted:
                break
            shared += 1
        return shared if self.description.rewinds or shared == self._stands else 0

    def _ids(self, prompt: str | Sequence[int]) -> list[int]:
        if isinstance(prompt, str):
            ids = self.encode(prompt)
        else:
            try:
                ids = [int(token) for token in np.asarray(prompt).reshape(-1)]
            except (TypeError, ValueError):
                raise InputError(f"a prompt is text or token numbers, not {shown(prompt)}") from None
        if not ids:
            raise InputError("the prompt is empty: it needs at least one token")
        if len(ids) > self.description.context:
            raise InputError(
                f"the prompt has {len(ids)} tokens; the cache holds {self.description.context} "
                "(load_lm(…, context=…))"
            )
        self.description.check_tokens(ids)
        return ids

    def need_tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises InputError for a model without one, ImportModelError where the package
        ``tokenizers`` is not installed."""
        tokenizer = self._opened_tokenizer()
        if tokenizer is None:
            raise InputError(
                "the model has no tokenizer: give load_lm the folder of one (tokenizer=…), "
                "or use token numbers"
            )
        return tokenizer

    def _opened_tokenizer(self) -> Tokenizer | None:
        """The tokenizer, read from the artifact the first time."""
        with self._tokenizer_lock:
            if self._tokenizer is None and ASSET in self.model.assets:
                self._tokenizer = tokenizer_from_bytes(
                    self.model.asset(ASSET), f"the tokenizer of {self.model.plan.name!r}"
                )
            return self._tokenizer
