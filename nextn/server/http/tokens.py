"""/tokenize and /detokenize in SGLang's form, and vLLM's /tokenizer_info. They turn text or messages into
token ids, and token ids into text."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import Field, WithJsonSchema

from nextn.config import model_folder
from nextn.server.answers.service import Service
from nextn.server.prompts.chat import render
from nextn.server.protocol.body import Body, ListOf
from nextn.server.protocol.chat import ChatMessages
from nextn.server.protocol.errors import bad_request
from nextn.server.protocol.fields import TOKENS_SCHEMA, prompts
from nextn.tokenizer import folder
from nextn.tokenizer.token_bytes import TokenBytes

# Limits of one request. They keep the answer, and the memory for making it, below 200 MB.
MOST_CHARACTERS, MOST_TEXTS = 2**20, 2**14
MOST_TOKENS = 2**18  # token ids of one /detokenize request
OF_MESSAGES = ChatMessages.model_fields.keys() - {"messages"}


class TokenizeRequest(ChatMessages):
    model: str | None = None
    prompt: Annotated[str | ListOf[str], Field(description="alternative to messages")] | None = None
    messages: ListOf[dict[str, Any]] = Field(default_factory=list)
    add_special_tokens: Annotated[
        bool, Field(description="add the special tokens that the checkpoint puts around a prompt")
    ] = True
    return_token_strs: Annotated[bool, Field(description="add token_strs: the text of each token")] = False

    def check(self) -> None:
        super().check()
        if (self.prompt is None) == (not self.messages):
            raise bad_request("give either a prompt or messages", "prompt")
        if self.prompt is not None:
            given = self.model_dump(include=set(OF_MESSAGES), exclude_defaults=True)
            for name in given:
                raise bad_request(f"{name} can only be used with messages, not with a prompt", name)
        check_size(self.texts(), self.prompt_field)

    @property
    def prompt_field(self) -> str:
        return "messages" if self.prompt is None else "prompt"

    def texts(self) -> list[str]:
        if self.prompt is None:
            return self.contents()
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt


class DetokenizeRequest(Body):
    model: str | None = None
    tokens: Annotated[Any, WithJsonSchema(TOKENS_SCHEMA)]  # checked by `prompts`
    skip_special_tokens: bool = True

    def check(self) -> None:
        super().check()
        count = sum(map(len, self.lists()))
        if count > MOST_TOKENS:
            rule = f"{MOST_TOKENS} are allowed in one request; send them in several"
            raise bad_request(f"tokens has {count} token ids; {rule}", "tokens")

    def lists(self) -> list[list[int]]:
        many: list[list[int]] = []
        for tokens in prompts(self.tokens, "tokens"):
            if isinstance(tokens, str):
                raise bad_request("tokens must be a list of token ids or a list of such lists", "tokens")
            many.append(tokens)
        return many


class Tokens(msgspec.Struct):
    """The answer to /tokenize. For a list of prompts, all fields except max_model_len are lists."""

    tokens: Sequence[int | list[int]]
    count: int | list[int]
    max_model_len: int
    token_strs: Sequence[str | list[str]] | UnsetType = UNSET


class Text(msgspec.Struct):
    """The answer to /detokenize. `prompt` is vLLM's name for `text`."""

    text: str | list[str]
    prompt: str | list[str]


async def tokenize(service: Service, request: TokenizeRequest) -> Tokens:
    length = service.open(request.model).context_length
    encoder, names = service.encoder, service.tokenizer.token_names
    if request.prompt is None:
        text = await encoder.run(render, request, service.tokenizer)
        many = await encoder.encode([text], add_special_tokens=False)
    else:
        many = await encoder.encode(request.texts(), request.add_special_tokens)
    counts = [len(tokens) for tokens in many]
    answer = Tokens(many, counts, length)
    if request.return_token_strs:
        answer.token_strs = await encoder.run(lambda: [[names[t] for t in tokens] for tokens in many])
    if not isinstance(request.prompt, list):
        answer.tokens, answer.count = many[0], counts[0]
        if answer.token_strs:
            answer.token_strs = answer.token_strs[0]
    return answer


def check_size(texts: Sequence[str], name: str) -> None:
    """Raises ApiError (400) if there are too many texts or characters for one request. A text may be longer
    than the context."""
    if len(texts) > MOST_TEXTS:
        raise bad_request(f"{name} has {len(texts)} texts; {MOST_TEXTS} are allowed in one request", name)
    count = sum(map(len, texts))
    if count > MOST_CHARACTERS:
        rule = f"{MOST_CHARACTERS} are allowed in one request; send them in several"
        raise bad_request(f"{name} has {count} characters; {rule}", name)


async def detokenize(service: Service, request: DetokenizeRequest) -> Text:
    vocabulary = service.open(request.model).vocab_size
    many = request.lists()
    for tokens in many:
        wrong = next((token for token in tokens if not 0 <= token < vocabulary), None)
        if wrong is not None:
            message = f"tokens: token id {wrong} is outside the vocabulary 0..{vocabulary - 1}"
            raise bad_request(message, "tokens")
    table = service.tokenizer.token_bytes(request.skip_special_tokens)
    texts = await service.encoder.run(lambda: [text_of(tokens, table) for tokens in many])
    answer = texts if isinstance(request.tokens[0], list) else texts[0]
    return Text(answer, answer)


def text_of(tokens: Sequence[int], table: TokenBytes) -> str:
    """Like `Tokenizer.decode`, which would hold up all other threads."""
    return b"".join([table[token] for token in tokens]).decode(errors="replace")


async def tokenizer_info(service: Service) -> dict[str, object]:
    """The answer to /tokenizer_info, as in vLLM: tokenizer_config.json, with special tokens as text and the
    chat template that is in use."""
    file = model_folder(service.config.model_path) / folder.CONFIG
    info = await asyncio.to_thread(folder.read_config, file)
    template = service.tokenizer.chat_template
    sources = {} if template is None else template.sources
    templates: object = [{"name": name, "template": text} for name, text in sources.items()]
    if sources.keys() <= {"default"}:
        templates = sources.get("default")
    return {"tokenizer_class": None, **info, **service.tokenizer.special_tokens, "chat_template": templates}
