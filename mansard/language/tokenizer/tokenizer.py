"""`Tokenizer`: a vocabulary with what generating text needs to know about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mansard.arguments import shown
from mansard.errors import InputError
from mansard.language.tokenizer.chat_template import render_chat
from mansard.language.tokenizer.stream import TextStream

if TYPE_CHECKING:
    import tokenizers

Message = Mapping[str, Any]
"""``role`` ("system", "user", "assistant"), ``content``, and whatever else a template reads."""


class Tokenizer:
    """Text to token ids and back.

    ``eos_ids`` are the tokens that end a text or a turn. ``special`` names special tokens by their part:
    ``{"bos_token": "<s>"}``. ``source`` is what errors call it. Methods may be called from several threads.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        eos_ids: Iterable[int] = (),
        special: Mapping[str, str] | None = None,
        chat_template: str | None = None,
        source: str = "the tokenizer",
    ) -> None:
        self._backend = backend
        self.eos_ids = tuple(eos_ids)
        self.special = dict(special or {})
        self.chat_template = chat_template
        self.source = source

    def to_json(self) -> str:
        """The vocabulary and how it is applied, as the text of a ``tokenizer.json``."""
        return str(self._backend.to_str())

    @property
    def vocabulary(self) -> int:
        """Number of tokens; a model may have more rows in its embedding."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    @property
    def bos_id(self) -> int | None:
        """The token that begins a text, if there is one."""
        return self.token_id(self.special["bos_token"]) if "bos_token" in self.special else None

    def encode(self, text: str, *, special_tokens: bool = True) -> list[int]:
        """The tokens of a text. With ``special_tokens`` those are added that the model expects around a text,
        mostly one at its start; prompts of `apply_chat_template` have theirs already.

        Names of special tokens within the text become those tokens.
        """
        if not isinstance(text, str):
            raise InputError(f"a text is a str, not a {type(text).__name__}: {shown(text)}")
        try:
            encoded = self._backend.encode(text, add_special_tokens=special_tokens)
        except (
            UnicodeEncodeError,
            TypeError,
        ) as error:  # TypeError: what the bindings make of a lone surrogate
            raise InputError(f"the text {shown(text)} is not valid Unicode: {error}") from error
        return list(encoded.ids)

    def decode(self, ids: Iterable[int], *, special_tokens: bool = False) -> str:
        """The text of tokens, with ``special_tokens`` including theirs. Bytes that are no UTF-8 are U+FFFD;
        ids beyond the vocabulary, which models can choose, have none."""
        return str(self._backend.decode(_numbers(ids), skip_special_tokens=not special_tokens))

    def stream(self, context: Sequence[int] = ()) -> TextStream:
        """Decodes tokens one by one; ``context`` are those before, such as the prompt's."""
        return TextStream(self.decode, _numbers(context))

    def token_id(self, token: str) -> int | None:
        """The id of a token by its name in the vocabulary, None for an unknown one."""
        number: int | None = self._backend.token_to_id(token)
        return number

    def token(self, number: int) -> str | None:
        """The name of a token in the vocabulary, None for an unknown one."""
        name: str | None = self._backend.id_to_token(*_numbers([number]))
        return name

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt for messages, by the model's template; ``add_generation_prompt`` begins the answer.

        ``tools`` are JSON schemas of functions; other keywords reach the template (``enable_thinking=True``).
        Raises InputError for a model without a template and for messages that the template refuses.
        """
        if self.chat_template is None:
            raise InputError(f"{self.source} has no chat template; encode() takes any text")
        if isinstance(messages, str | Mapping) or not all(isinstance(m, Mapping) for m in messages):
            raise InputError('messages are a list of dicts: [{"role": "user", "content": "Hello"}]')
        given = {
            **self.special,
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **variables,
        }
        return render_chat(self.chat_template, given, self.source)

    def encode_chat(self, messages: Sequence[Message], **options: Any) -> list[int]:
        """The tokens of the prompt that `apply_chat_template` makes."""
        return self.encode(self.apply_chat_template(messages, **options), special_tokens=False)


def _numbers(ids: Iterable[int]) -> list[int]:
    """Token ids as ints; raises InputError for others."""
    try:
        numbers = [number.__index__() for number in ids]
    except (AttributeError, TypeError) as error:
        raise InputError(f"token ids are integers: {error}") from error
    if numbers and not 0 <= min(numbers) <= max(numbers) < 2**32:
        raise InputError(f"{min(numbers)} or {max(numbers)} is not the id of a token")
    return numbers
