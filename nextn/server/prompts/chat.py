"""Turns a chat's messages into its prompt, and decides how to parse its answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nextn.constraint import Constraint
from nextn.server.parsers import reasoning
from nextn.server.parsers.answer import AnswerFormat
from nextn.server.prompts.encoding import LONG_TEXT
from nextn.server.prompts.messages import checked_messages
from nextn.server.prompts.shown import check_shown
from nextn.server.prompts.tool_grammar import Thought, call_grammar, strict_grammar
from nextn.server.protocol.chat import ChatMessages, NamedTool
from nextn.server.protocol.errors import bad_request
from nextn.server.protocol.openai import ChatRequest
from nextn.server_config import ServerConfig
from nextn.tokenizer.chat import plain_content
from nextn.tokenizer.tokenizer import Tokenizer

MANY_MESSAGES = 100
CONTINUED = "\ue000continued\ue000"  # with private characters, which messages do not contain
RESERVED = ("messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template")


class ChatPrompt(NamedTuple):
    text: str
    answer_format: AnswerFormat
    constraint: Constraint | None = None  # replaces the request's: for tool calls, or after reasoning


def chat_prompt(request: ChatRequest, tokenizer: Tokenizer, config: ServerConfig) -> ChatPrompt:
    """Renders the prompt, and chooses parsers and constraint. Raises ApiError (400)."""
    calls = bool(request.tools) and request.tool_choice != "none"
    if calls and config.tool_call_parser is None:
        raise bad_request(
            "tools are not supported by this server: it was started without --tool-call-parser", "tools"
        )
    text = render(request, tokenizer)
    answer_format = AnswerFormat(
        config.tool_call_parser if calls else None,
        stream_reasoning=request.stream_reasoning,
        echo=echoed(request),
        functions=functions_of(request) if calls else {},
    )
    if config.reasoning_parser is not None and request.separate_reasoning:
        answer_format = with_reasoning(answer_format, config.reasoning_parser, beginning(request, text))
    constraint = forced_calls(
        request, answer_format, config.constrained_json_any_whitespace
    ) or after_reasoning(request, answer_format)
    if constraint is not None:  # the grammar begins at </think>, so a call may not end the reasoning
        answer_format = dataclasses.replace(answer_format, call_ends_reasoning=False)
    return ChatPrompt(text, answer_format, constraint or strict_calls(request, answer_format))


def functions_of(request: ChatRequest) -> dict[str, Any]:
    """Function name -> its parameters (a JSON schema, or None)."""
    functions = [tool["function"] for tool in request.tools or []]
    return {function["name"]: function.get("parameters") for function in functions}


def with_reasoning(answer_format: AnswerFormat, parser: str, prompt: str) -> AnswerFormat:
    return dataclasses.replace(
        answer_format,
        reasoning=reasoning.begins_inside(parser, prompt),
        opens=reasoning.may_open(parser, prompt),
        call_ends_reasoning=reasoning.PARSERS[parser].call_ends,
    )


def is_small(request: ChatMessages) -> bool:
    """Whether the prompt can be rendered quickly enough for the event loop."""
    few = not request.tools and not request.chat_template_kwargs and len(request.messages) < MANY_MESSAGES
    return few and sum(map(len, request.contents())) < LONG_TEXT


def echoed(request: ChatRequest) -> str:
    """The text that the content begins with, as in vLLM: the last message, if the answer has the same role.
    Otherwise ""."""
    last = request.messages[-1]
    if not request.echo or (request.generation_prompt and last["role"] != "assistant"):
        return ""
    return plain_content(last.get("content"), "messages[-1].content") or ""


def forced_calls(
    request: ChatRequest, answer_format: AnswerFormat, any_whitespace: bool
) -> Constraint | None:
    """The grammar of the call that tool_choice requires, or None. Raises ApiError (400) if the request has
    another grammar."""
    choice = request.tool_choice
    if choice in ("none", "auto") or answer_format.tool_parser is None:
        return None
    if request.constraint is not None:
        raise bad_request(
            "tool_choice requires a call, so the request cannot have another grammar", "tool_choice"
        )
    tools = request.tools or []
    if isinstance(choice, NamedTool):
        tools = [tool for tool in tools if tool["function"]["name"] == choice.function.name]
    thought: Thought | None = (
        "closed" if answer_format.reasoning else "whole" if answer_format.opens else None
    )
    return call_grammar(
        answer_format.tool_parser, tools, request.parallel_tool_calls, thought, any_whitespace
    )


def strict_calls(request: ChatRequest, answer_format: AnswerFormat) -> Constraint | None:
    """The grammar for strict functions if the model decides whether to call one. None if no function is
    strict, or the request has another grammar."""
    if answer_format.tool_parser is None or request.constraint is not None:
        return None
    return strict_grammar(answer_format.tool_parser, request.tools or [])


def after_reasoning(request: ChatRequest, answer_format: AnswerFormat) -> Constraint | None:
    """The request's constraint, applied only after </think>, if the answer begins with reasoning. Otherwise
    None."""
    constraint = request.constraint if answer_format.reasoning else None
    return constraint and dataclasses.replace(constraint, after=reasoning.CLOSE)


def render(request: ChatMessages, tokenizer: Tokenizer) -> str:
    """Renders the prompt with the chat template. Raises ApiError (400)."""
    template = tokenizer.chat_template
    messages = checked_messages(request.messages, template)
    tools = None if request.tool_choice == "none" else request.tools
    if tools and template is not None and not template.takes_tools:
        raise bad_request(
            "tools: the chat template does not show them to the model; start the server with a "
            "--chat-template that does",
            "tools",
        )
    extra = template_variables(request)
    final = ""

    def rendered(messages: Sequence[Mapping[str, Any]]) -> str:
        return tokenizer.render_chat(messages, request.generation_prompt, tools or None, **extra)

    try:
        final_message = messages[-1:]
        if request.continue_final_message and messages:
            final = plain_content(messages[-1].get("content"), "messages[-1].content") or ""
            final_message = [{**messages[-1], "content": final + CONTINUED}]
        text = rendered([*messages[:-1], *final_message])
        check_shown(messages, rendered)
        return cut_after(text, final) if request.continue_final_message else text
    except ValueError as e:
        raise bad_request(str(e), "messages") from e


def template_variables(request: ChatMessages) -> dict[str, Any]:
    """chat_template_kwargs with reasoning_effort added under the names that templates know, as in SGLang.
    Variables that the client set keep their values. Raises ApiError (400) for reserved names."""
    given = request.chat_template_kwargs
    for name in RESERVED:
        if name in given:
            where = f"chat_template_kwargs.{name}"
            raise bad_request(f"{where} is not supported; leave it out", where)
    if request.reasoning_effort is None:
        return given
    thinks = request.reasoning_effort != "none"
    effort = {"thinking": thinks, "enable_thinking": thinks, "reasoning_effort": request.reasoning_effort}
    return effort | given


def cut_after(text: str, final: str) -> str:
    """The prompt up to the end of the final message, which the answer continues. Raises ValueError if the
    template changed that message."""
    before, mark, _ = text.rpartition(CONTINUED)
    if not mark or not before.endswith(final.lstrip()):
        raise ValueError(
            "continue_final_message: the chat template changes the final message, so the answer cannot "
            "continue it"
        )
    return before


def beginning(request: ChatRequest, text: str) -> str:
    """The text whose end shows whether the answer begins inside reasoning: the prompt. If the answer
    continues a message that has a reasoning mark, it is the last mark in that message."""
    if request.continue_final_message:
        content = plain_content(request.messages[-1].get("content"), "messages[-1].content") or ""
        marks = {content.rfind(mark): mark for mark in reasoning.MARKERS if mark in content}
        if marks:
            return marks[max(marks)]
    return text
