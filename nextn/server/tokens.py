"""/tokenize and /detokenize, as SGLang words them: text or messages to token ids, and back; and vLLM's
/tokenizer_info."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import Field, WithJsonSchema

from nextn.config import model_folder
from nextn.server.body import Body
from nextn.server.chat_prompt import render
from nextn.server.chat_protocol import ChatMessages
from nextn.server.errors import bad_request
from nextn.server.prompts import TOKENS_SCHEMA, prompts
from nextn.server.service import Service
from nextn.tokenizer import folder


class TokenizeRequest(ChatMessages):
    model: str | None = None
    prompt: Annotated[str | list[str], Field(description="or messages")] | None = None
    messages: list[dict[str, Any]] = Field(default_factory=list)
    add_special_tokens: Annotated[
        bool, Field(description="those that the checkpoint puts around a prompt; not for messages")
    ] = True
    return_token_strs: Annotated[bool, Field(description="with token_strs: what each token is called")] = (
        False
    )

    def check(self) -> None:
        super().check()
        if (self.prompt is None) == (not self.messages):
            raise bad_request("give either a prompt or messages", "prompt")


class DetokenizeRequest(Body):
    model: str | None = None
    tokens: Annotated[Any, WithJsonSchema(TOKENS_SCHEMA)]  # checked by `prompts`
    skip_special_tokens: bool = True


class Tokens(msgspec.Struct):
    """Lists of them for a list of prompts."""

    tokens: Sequence[int | list[int]]
    count: int | list[int]
    max_model_len: int
    token_strs: Sequence[str | list[str]] | UnsetType = UNSET


class Text(msgspec.Struct):
    """`prompt` is vLLM's name of the same."""

    text: str | list[str]
    prompt: str | list[str]


async def tokenize(service: Service, request: TokenizeRequest) -> Tokens:
    length = service.open(request.model).context_length
    if request.prompt is None:
        many = await service.encode([render(request, service.tokenizer)], add_special_tokens=False)
    else:
        texts = [request.prompt] if isinstance(request.prompt, str) else request.prompt
        many = await service.encode(texts, request.add_special_tokens)
    told = [len(tokens) for tokens in many]
    names = service.tokenizer.token_names
    strings = [[names[token] for token in tokens] for tokens in many] if request.return_token_strs else None
    if isinstance(request.prompt, list):
        return Tokens(many, told, length, UNSET if strings is None else strings)
    return Tokens(many[0], told[0], length, UNSET if strings is None else strings[0])


async def detokenize(service: Service, request: DetokenizeRequest) -> Text:
    vocabulary = service.open(request.model).vocab_size
    many: list[list[int]] = []
    for tokens in prompts(request.tokens, "tokens"):
        if isinstance(tokens, str):
            raise bad_request("tokens must be a list of token ids or a list of such lists", "tokens")
        wrong = [token for token in tokens if not 0 <= token < vocabulary]
        if wrong:
            message = f"tokens: token id {wrong[0]} is outside the vocabulary 0..{vocabulary - 1}"
            raise bad_request(message, "tokens")
        many.append(tokens)
    skip = request.skip_special_tokens
    texts = await asyncio.to_thread(lambda: [service.tokenizer.decode(tokens, skip) for tokens in many])
    told = texts if isinstance(request.tokens[0], list) else texts[0]
    return Text(told, told)


async def tokenizer_info(service: Service) -> dict[str, object]:
    """As vLLM: what tokenizer_config.json says, special tokens as text, and the chat template in force."""
    file = model_folder(service.config.model_path) / folder.CONFIG
    info = await asyncio.to_thread(folder.read_config, file)
    template = service.tokenizer.chat_template
    sources = {} if template is None else template.sources
    told: object = [{"name": name, "template": text} for name, text in sources.items()]
    if sources.keys() <= {"default"}:
        told = sources.get("default")
    return {"tokenizer_class": None, **info, **service.tokenizer.special_tokens, "chat_template": told}
