"""Renders chat messages as a prompt, with the checkpoint's own Jinja template, in the same way as
transformers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = Mapping[str, object]


class ChatTemplate:
    """Templates by name. "tool_use", if it exists, renders requests with tools; "default" renders all others.
    `special_tokens` ("bos_token" -> its text, …) are variables in the templates. `words`: all words in the
    templates, such as names of fields. `compared`: strings that the templates compare with, such as roles.

    Templates write the BOS token themselves, so encode the result of `render` without special tokens. Raises
    ValueError for a template that is not valid Jinja.
    """

    def __init__(self, sources: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        try:
            self._templates = {name: ENVIRONMENT.from_string(text) for name, text in sources.items()}
            trees = [ENVIRONMENT.parse(text) for text in sources.values()]
        except (jinja2.TemplateError, RecursionError) as e:
            raise ValueError(f"the chat template is not valid: {e}") from e
        self.sources = dict(sources)
        # before `meta` below, which folds constants in the trees
        self.compared = frozenset[str]().union(*map(compared, trees))
        self._looks_at = frozenset[str]().union(*map(meta.find_undeclared_variables, trees))
        self.words = frozenset(re.findall(r"\w+", " ".join(sources.values())))
        self._special_tokens = dict(special_tokens)

    @property
    def takes_tools(self) -> bool:
        """Whether any of the templates uses `tools`."""
        return "tools" in self._looks_at or "tool_use" in self._templates

    def render(
        self,
        messages: Sequence[Message],
        /,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        **extra: object,
    ) -> str:
        """Returns the prompt as text. `extra` (chat_template_kwargs) is passed to the template.

        Raises ValueError for malformed messages and for messages with parts other than text. If the template
        refuses the messages, the ValueError has the template's own message.
        """
        if "messages" in extra:
            raise ValueError("messages cannot be given among the template's extra variables too")
        variables = {
            **self._special_tokens,
            **extra,
            "messages": plain_messages(messages),
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        template = self._choose(with_tools=tools is not None)
        try:
            return template.render(variables)
        # A template is a program from the checkpoint: on unexpected input it can raise anything.
        except Exception as e:
            raise ValueError(f"the chat template refused the messages: {e}") from e

    def _choose(self, with_tools: bool) -> jinja2.Template:
        for name in ("tool_use", "default") if with_tools else ("default",):
            if name in self._templates:
                return self._templates[name]
        raise ValueError(f"no chat template is named default; there are {', '.join(sorted(self._templates))}")


def compared(tree: nodes.Template) -> Iterator[str]:
    for comparison in tree.find_all(nodes.Compare):
        for side in (comparison.expr, *(operand.expr for operand in comparison.ops)):
            for each in side.items if isinstance(side, (nodes.List, nodes.Tuple)) else [side]:
                if isinstance(each, nodes.Const) and isinstance(each.value, str):
                    yield each.value


def plain_messages(messages: Sequence[Message]) -> list[dict[str, object]]:
    """Returns copies in which every content is one string or None. Text parts are joined by a line break."""
    if not messages:
        raise ValueError("messages is empty; send at least one")
    plain: list[dict[str, object]] = []
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ValueError(f"messages[{i}] must be an object with a role")
        plain.append({**message, "content": plain_content(message.get("content"), f"messages[{i}].content")})
    return plain


def plain_content(content: object, where: str) -> str | None:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, (list, tuple)):
        raise ValueError(f"{where} must be a string or a list of text parts")
    texts: list[str] = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if kind != "text":
            raise ValueError(f"{where}[{i}] is of type {kind!r}; only 'text' parts are supported")
        if not isinstance(part.get("text"), str):
            raise ValueError(f"{where}[{i}].text must be a string")
        texts.append(part["text"])
    return "\n".join(texts)


class GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}`, which marks the assistant's words for training. Its body is
    rendered unchanged."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=lineno)


def raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML and sorts the keys. Models were trained without both."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def environment() -> ImmutableSandboxedEnvironment:
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationBlock]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


ENVIRONMENT = environment()
