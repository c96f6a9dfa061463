"""The fields of a chat's body from which its prompt is made: messages and tools."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, PlainValidator, ValidationError, WithJsonSchema

from nextn.server.protocol.body import (
    Body,
    ListOf,
    first_error,
    json_type,
    parse_object,
    schema_of,
    shortened,
)
from nextn.server.protocol.errors import bad_request

MAX_TOOLS = 1024  # a limit, because each tool is checked separately


class Function(Body):
    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    parameters: Annotated[dict[str, Any], Field(description="a JSON schema")] | None = None
    strict: bool | None = None


class Tool(Body):
    type: Literal["function"] = "function"
    function: Function


class Named(Body):
    model_config = ConfigDict(extra="forbid")

    name: str


class NamedTool(Body):
    type: Literal["function"] = "function"
    function: Named


def without_nulls(value: Any) -> Any:
    """Removes keys with null from nested objects: null means the default."""
    if isinstance(value, dict):
        return {name: without_nulls(each) for name, each in value.items() if each is not None}
    return value


def checked_tools(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Checks the tools and returns them unchanged, because the chat template shows them to the model. Raises
    ApiError (400)."""
    if len(tools) > MAX_TOOLS:
        raise bad_request(f"there are {len(tools)} tools; {MAX_TOOLS} are allowed", "tools")
    for i, tool in enumerate(tools):
        try:
            Tool.model_validate(without_nulls(tool))
        except ValidationError as e:
            raise first_error(e, f"tools[{i}]") from e
    return tools


def checked_choice(choice: Any) -> str | NamedTool:
    if isinstance(choice, str):
        if choice in ("none", "auto", "required"):
            return choice
        rule = "it must be none, auto, required or a function"
        raise bad_request(f"tool_choice is {shortened(choice)}; {rule}", "tool_choice")
    if not isinstance(choice, dict):
        raise bad_request(
            f"tool_choice must be a string or an object, not {json_type(choice)}", "tool_choice"
        )
    return parse_object(choice, NamedTool, "tool_choice")


Tools = Annotated[
    ListOf[dict[str, Any]],
    AfterValidator(checked_tools),
    WithJsonSchema({"type": "array", "items": schema_of(Tool), "maxItems": MAX_TOOLS}),
]
ToolChoice = Annotated[
    str | NamedTool,
    PlainValidator(checked_choice),
    WithJsonSchema(
        {"anyOf": [{"enum": ["none", "auto", "required"]}, schema_of(NamedTool)], "default": "auto"}
    ),
]


class ChatMessages(Body):
    """The fields from which a chat's prompt is made."""

    messages: ListOf[dict[str, Any]]
    tools: Tools | None = None
    tool_choice: ToolChoice = "auto"
    chat_template_kwargs: Annotated[
        dict[str, Any], Field(description="further variables of the chat template")
    ] = Field(default_factory=dict)
    reasoning_effort: (
        Annotated[str | float, Field(description='passed to the chat template; "none": thinking is off')]
        | None
    ) = None
    add_generation_prompt: bool | None = None
    continue_final_message: Annotated[
        bool, Field(description="the answer continues the final message, instead of a new one")
    ] = False

    @property
    def prompt_field(self) -> str:
        return "messages"

    @property
    def generation_prompt(self) -> bool:
        """Whether the prompt ends with the beginning of an answer."""
        return (
            not self.continue_final_message
            if self.add_generation_prompt is None
            else self.add_generation_prompt
        )

    def contents(self) -> list[str]:
        """The texts in the messages."""
        texts = []
        for message in self.messages:
            content = message.get("content")
            for each in content if isinstance(content, list) else [content]:
                text = each.get("text") if isinstance(each, dict) else each
                if isinstance(text, str):
                    texts.append(text)
        return texts

    def check(self) -> None:
        super().check()
        if self.continue_final_message and self.add_generation_prompt:
            raise bad_request(
                "continue_final_message and add_generation_prompt cannot both be true",
                "continue_final_message",
            )
        names = [tool["function"]["name"] for tool in self.tools or ()]
        if isinstance(self.tool_choice, NamedTool):
            if self.tool_choice.function.name not in names:
                name = self.tool_choice.function.name
                raise bad_request(
                    f"tool_choice names {shortened(name)}, which is not among the tools", "tool_choice"
                )
        elif self.tool_choice == "required" and not names:
            raise bad_request("tool_choice is 'required', and there are no tools", "tool_choice")
