"""Chat templates: Jinja programs of a model that turn messages into a prompt, run as in ``transformers``."""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mansard.arguments import shown
from mansard.errors import ImportModelError, InputError

if TYPE_CHECKING:
    import jinja2


def render_chat(template: str, variables: Mapping[str, Any], source: str) -> str:
    """The prompt that a template makes of ``variables`` (``messages`` and what else it uses).

    Templates come with models and are not trusted: they run in Jinja's sandbox, over plain data only. Raises
    InputError for data of other types, for messages that the template refuses, and for one that is not valid.
    """
    import jinja2

    try:
        return _compiled(template).render(**{name: _plain(name, value) for name, value in variables.items()})
    except jinja2.TemplateSyntaxError as error:
        raise InputError(
            f"the chat template of {source} is not valid: line {error.lineno}: {error.message}"
        ) from error
    except (jinja2.TemplateError, TypeError, ValueError, KeyError, ArithmeticError, RecursionError) as error:
        raise InputError(f"the chat template of {source} cannot render these messages: {error}") from error


@functools.lru_cache(maxsize=16)
def _compiled(template: str) -> jinja2.Template:
    try:
        import jinja2.ext
        import jinja2.sandbox
    except ImportError as error:
        raise ImportModelError("chat templates need the package jinja2: pip install 'mansard[lm]'") from error
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_generation_tag(), jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(raise_exception=_refuse, strftime_now=_now)
    return environment.from_string(template)


@functools.cache
def _generation_tag() -> type[jinja2.ext.Extension]:
    """``{% generation %}…{% endgeneration %}`` marks answers for training; here it is its content."""
    import jinja2.ext
    import jinja2.nodes

    class GenerationTag(jinja2.ext.Extension):
        tags = {"generation"}  # noqa: RUF012  # as Jinja declares it

        def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return GenerationTag


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes what means something in HTML.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _refuse(message: str) -> None:
    import jinja2

    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def _plain(name: str, value: Any) -> Any:
    """The value out of JSON's types: a template shall get no object whose methods do something."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(name, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(name, item) for item in value]
    raise InputError(
        f"{name} of a chat contains {shown(value)}, a {type(value).__name__}; text, numbers, booleans, None, "
        "lists and dicts can be there"
    )
