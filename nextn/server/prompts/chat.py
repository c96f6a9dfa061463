"""From a chat's messages to its prompt, and to the way its answer will be read."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nextn.constraint import Constraint
from nextn.server.parsers import reasoning
from nextn.server.parsers.answer import Reading
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
CONTINUED = "\ue000continued\ue000"  # private characters: in no message
RESERVED = ("messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template")


class ChatPrompt(NamedTuple):
    text: str
    reading: Reading
    constraint: Constraint | None = None  # if not what the request says: for a call, or after reasoning


def chat_prompt(request: ChatRequest, tokenizer: Tokenizer, config: ServerConfig) -> ChatPrompt:
    """Raises ApiError."""
    calls = bool(request.tools) and request.tool_choice != "none"
    if calls and config.tool_call_parser is None:
        raise bad_request(
            "tools are not supported by this server: it was started without --tool-call-parser", "tools"
        )
    text = render(request, tokenizer)
    reading = Reading(
        config.tool_call_parser if calls else None,
        stream_reasoning=request.stream_reasoning,
        echo=echoed(request),
        functions=functions_of(request) if calls else {},
    )
    if config.reasoning_parser is not None and request.separate_reasoning:
        reading = with_reasoning(reading, config.reasoning_parser, beginning(request, text))
    constraint = forced_calls(request, reading, config.constrained_json_any_whitespace) or after_reasoning(
        request, reading
    )
    if constraint is not None:  # it begins at </think>, so nothing else ends the reasoning
        reading = dataclasses.replace(reading, call_ends_reasoning=False)
    return ChatPrompt(text, reading, constraint or strict_calls(request, reading))


def functions_of(request: ChatRequest) -> dict[str, Any]:
    """The parameters of each function."""
    functions = [tool["function"] for tool in request.tools or []]
    return {function["name"]: function.get("parameters") for function in functions}


def with_reasoning(reading: Reading, parser: str, prompt: str) -> Reading:
    return dataclasses.replace(
        reading,
        reasoning=reasoning.begins_inside(parser, prompt),
        opens=reasoning.may_open(parser, prompt),
        call_ends_reasoning=reasoning.PARSERS[parser].call_ends,
    )


def is_small(request: ChatMessages) -> bool:
    """Can its prompt be rendered without a thread?"""
    few = not request.tools and not request.chat_template_kwargs and len(request.messages) < MANY_MESSAGES
    return few and sum(map(len, request.contents())) < LONG_TEXT


def echoed(request: ChatRequest) -> str:
    """As vLLM: the last message, if the answer is in its role."""
    last = request.messages[-1]
    if not request.echo or (request.generation_prompt and last["role"] != "assistant"):
        return ""
    return plain_content(last.get("content"), "messages[-1].content") or ""


def forced_calls(request: ChatRequest, reading: Reading, any_whitespace: bool) -> Constraint | None:
    """The grammar of the call that tool_choice asks for. Raises ApiError if the request has another
    grammar."""
    choice = request.tool_choice
    if choice in ("none", "auto") or reading.tool_parser is None:
        return None
    if request.constraint is not None:
        raise bad_request("tool_choice: an answer cannot be a call and follow another grammar", "tool_choice")
    tools = request.tools or []
    if isinstance(choice, NamedTool):
        tools = [tool for tool in tools if tool["function"]["name"] == choice.function.name]
    thought: Thought | None = "closed" if reading.reasoning else "whole" if reading.opens else None
    return call_grammar(reading.tool_parser, tools, request.parallel_tool_calls, thought, any_whitespace)


def strict_calls(request: ChatRequest, reading: Reading) -> Constraint | None:
    """The grammar of strict functions, where the model decides whether to call. None with another grammar."""
    if reading.tool_parser is None or request.constraint is not None:
        return None
    return strict_grammar(reading.tool_parser, request.tools or [])


def after_reasoning(request: ChatRequest, reading: Reading) -> Constraint | None:
    """The constraint of the content, if the answer begins with reasoning, which is free text."""
    constraint = request.constraint if reading.reasoning else None
    return constraint and dataclasses.replace(constraint, after=reasoning.CLOSE)


def render(request: ChatMessages, tokenizer: Tokenizer) -> str:
    """The prompt. Raises ApiError."""
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
    """chat_template_kwargs, to which reasoning_effort is added under the names that templates know, as in
    SGLang. What is already there stays."""
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
    """The prompt up to the end of the final message, which the answer goes on with. Raises ValueError."""
    before, mark, _ = text.rpartition(CONTINUED)
    if not mark or not before.endswith(final.lstrip()):
        raise ValueError(
            "continue_final_message: the chat template does not keep the final message as it is, so nothing "
            "can go on with it"
        )
    return before


def beginning(request: ChatRequest, text: str) -> str:
    """A text that ends with the prompt's last reasoning mark. If the answer goes on with a message, it is the
    last of the two marks in that message."""
    if request.continue_final_message:
        content = plain_content(request.messages[-1].get("content"), "messages[-1].content") or ""
        marks = {content.rfind(mark): mark for mark in reasoning.MARKERS if mark in content}
        if marks:
            return marks[max(marks)]
    return text
