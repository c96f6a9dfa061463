"""Request bodies of the OpenAI API: their fields, the fields that are refused, and the conversion into
`SamplingParams`."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, WithJsonSchema

from nextn.constraint import Constraint
from nextn.request import SamplingParams, SpeculativeParams
from nextn.server.protocol.body import Body, ListOf
from nextn.server.protocol.chat import ChatMessages
from nextn.server.protocol.errors import bad_request
from nextn.server.protocol.fields import (
    PROMPT_SCHEMA,
    AnswerId,
    Biases,
    Seed,
    SpeculativeField,
    StopPatterns,
    StopStrings,
    prompts,
)
from nextn.server.protocol.handoff import HandedOff
from nextn.server.protocol.routed import Routed
from nextn.server.protocol.structured import grammar_for

if TYPE_CHECKING:
    from typing_extensions import Self

MAX_CHOICES = 128
MAX_LOGPROBS = 20

# Unsupported field -> values that are accepted besides null, since they ask for nothing. This includes fields
# of other engines.
REFUSED: dict[str, tuple[object, ...]] = {
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "prompt_logprobs": (),
    "logprob_token_ids": ([],),
    "guided_whitespace_pattern": (),
    "add_special_tokens": (True,),
    "bad_words": ([],),
    "allowed_token_ids": ([],),
    "logits_processors": ([],),
    "custom_logit_processor": (),
    "custom_params": ({},),
    "truncate_prompt_tokens": (),
    "lora_path": (),
    "session_params": ({},),
    "return_hidden_states": (False,),
    "cache_salt": ("",),
    "extra_key": ("",),
    "prompt_embeds": (),
    "input_ids": (),
    "vllm_xargs": ({},),
}
REFUSED_IN_COMPLETIONS = REFUSED | {"top_logprobs": (0,)}
REFUSED_IN_CHAT = REFUSED | {
    "functions": ([],), "function_call": ("none", "auto"),
    "modalities": (["text"],), "audio": (),
    "web_search_options": (), "prediction": (), "chat_template": (), "documents": ([],),
    "best_of": (1,),
}  # fmt: skip

# Fields of other endpoints that would change the text -> advice to the client.
OF_GENERATE = {
    "sampling_params": "this is for /generate; send its fields at the top level here",
    "max_new_tokens": "this is for /generate; use max_tokens here",
    "min_new_tokens": "this is for /generate; use min_tokens here",
    "sampling_seed": "this is for /generate; use seed here",
}
NO_COMPLETION = OF_GENERATE | {
    "text": "this is for /generate; use prompt here",
    "messages": "this is for /v1/chat/completions; use prompt here",
    "tools": "this is for /v1/chat/completions",
}
NO_CHAT = OF_GENERATE | {
    "text": "this is for /generate; use messages here",
    "prompt": "this is for /v1/completions; use messages here",
    "suffix": "this is for /v1/completions",
}


class StreamOptions(Body):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class Sampling(Body):
    """Fields that have the same name in OpenAI's and SGLang's APIs. `SamplingParams.check` checks ranges."""

    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: Annotated[int, Field(lt=2**31)] = -1
    min_p: float = 0.0
    stop: StopStrings = Field(default_factory=list)
    stop_regex: StopPatterns = Field(default_factory=list)
    stop_token_ids: ListOf[int] = Field(default_factory=list)
    no_stop_trim: Annotated[
        bool, Field(description="the text keeps the stop string or token that ended it")
    ] = False
    skip_special_tokens: Annotated[bool, Field(description="false: special tokens are in the text")] = True
    spaces_between_special_tokens: Annotated[
        bool, Field(description="no effect: a byte-level tokenizer adds no spaces")
    ] = True
    ignore_eos: bool = False
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Biases = Field(default_factory=dict)
    json_schema: Annotated[
        Any, Field(description="JSON schema of the text: an object, or a string with its JSON")
    ] = None
    regex: Annotated[Any, Field(description="regular expression that matches the whole text")] = None
    ebnf: Annotated[Any, Field(description="grammar of the text in GBNF, the notation of llama.cpp")] = None
    structural_tag: Annotated[
        Any, Field(description="JSON schemas for the parts of the text after trigger strings")
    ] = None

    @property
    def keeps_stop(self) -> bool:
        return self.no_stop_trim

    @cached_property
    def constraint(self) -> Constraint | None:
        """The grammar that the text must match. Raises ApiError (400) that names the field."""
        return grammar_for(self.__dict__)

    def params(self, vocab_size: int, **others: Any) -> SamplingParams:
        """Checked parameters of the first choice. Raises ValueError whose message begins with the field's
        name."""
        params = SamplingParams(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            logit_bias=self.logit_bias,
            constraint=self.constraint,
            ignore_eos=self.ignore_eos,
            stop_token_ids=tuple(self.stop_token_ids),
            **others,
        )
        params.check(vocab_size)
        return params


# Fields that affect only the answer, with values that switch them off: for requests that compute the prompt
OF_ANSWERS: dict[str, Any] = {
    "n": 1, "stop": [], "stop_regex": [], "stop_token_ids": [], "json_schema": None, "regex": None,
    "ebnf": None, "structural_tag": None,
}  # fmt: skip
OF_OPENAI_ANSWERS = OF_ANSWERS | {
    "min_tokens": 0, "response_format": None, "structured_outputs": None, "guided_json": None,
    "guided_regex": None, "guided_choice": None, "guided_grammar": None,
}  # fmt: skip


class CommonRequest(Sampling, Routed, HandedOff):
    """The fields of both OpenAI endpoints."""

    model: str | None = None
    max_tokens: (
        Annotated[int, Field(description="0 with echo, in a completion: return only the prompt")] | None
    ) = None
    max_completion_tokens: Annotated[int, Field(description="newer name of max_tokens")] | None = None
    seed: Seed | None = None
    min_tokens: Annotated[
        int,
        Field(description="minimum number of tokens before an end token, unless a grammar allows no other"),
    ] = 0
    include_stop_str_in_output: Annotated[bool, Field(description="vLLM's name of no_stop_trim")] = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    response_format: Annotated[
        Any, Field(description="type text, json_object, json_schema (always enforced) or structural_tag")
    ] = None
    structured_outputs: Annotated[
        Any, Field(description="as in vLLM: json, regex, choice, grammar, json_object or structural_tag")
    ] = None
    guided_json: Annotated[Any, Field(description="older form of structured_outputs.json")] = None
    guided_regex: Annotated[Any, Field(description="older form of structured_outputs.regex")] = None
    guided_choice: Annotated[Any, Field(description="older form of structured_outputs.choice")] = None
    guided_grammar: Annotated[Any, Field(description="older form of structured_outputs.grammar")] = None
    rid: AnswerId | None = None
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] = 0
    speculative: SpeculativeField = SpeculativeParams()
    return_token_ids: Annotated[
        bool,
        Field(description="add prompt_token_ids, and token_ids of each choice, end token included (vLLM)"),
    ] = False
    return_spec_tokens_details: Annotated[
        bool, Field(description="add statistics of speculation: usage.spec_details, and sglext as in SGLang")
    ] = False

    def check(self) -> None:
        super().check()
        if self.max_tokens is not None and self.limit != self.max_tokens:
            raise bad_request(
                f"max_tokens is {self.max_tokens} and max_completion_tokens is {self.limit}; they mean "
                "the same, so leave one of them out",
                "max_tokens",
            )
        if self.stream_options is not None and not self.stream:
            raise bad_request("stream_options is only allowed when stream is true", "stream_options")

    @property
    def keeps_stop(self) -> bool:
        return self.no_stop_trim or self.include_stop_str_in_output

    @property
    def limit_field(self) -> str:
        """The name of the field with the maximum number of tokens, as the client sent it."""
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def candidates(self) -> int:
        """Number of texts that are generated for each prompt. The answer has n of them."""
        return self.n

    @property
    def echoes(self) -> bool:
        """Whether the answer begins with the prompt."""
        return False

    @property
    def tops(self) -> int | None:
        """Number of most likely tokens that accompany each log-probability. None: no log-probabilities."""
        return None

    @property
    def returns_draft_steps(self) -> bool:
        """Whether the answer has the drafts of each step."""
        return False

    @property
    def choices(self) -> int:
        return self.n

    def prompt_only(self) -> Self:
        return self.model_copy(update=OF_OPENAI_ANSWERS)

    def sampling(self, max_tokens: int, seed: int, vocab_size: int) -> SamplingParams:
        """Checked parameters of the first choice. Raises ApiError (400) that names the field."""
        # best_of compares candidates by their log-probabilities, even if the client did not request these.
        compared = 0 if self.candidates > self.n else None
        if max_tokens == 0 and not self.echoes and not self.prefill_only:
            name = self.limit_field
            raise bad_request(f"{name} is 0; it must be at least 1, or 0 in a completion with echo", name)
        try:
            return self.params(
                vocab_size,
                max_tokens=max_tokens,
                min_tokens=self.min_tokens,
                seed=seed % 2**64,
                speculative=self.speculative,
                logprobs=compared if self.tops is None else self.tops,
                prompt_logprobs=self.tops if self.echoes else None,
                draft_steps=self.returns_draft_steps,
            )
        except ValueError as e:
            message = str(e).replace("max_tokens", self.limit_field)
            raise bad_request(message, message.partition(" ")[0]) from e


class CompletionRequest(CommonRequest):
    refused, elsewhere = REFUSED_IN_COMPLETIONS, NO_COMPLETION

    # Checked by `prompts`, because pydantic's errors for a union name all its branches.
    prompt: Annotated[Any, WithJsonSchema(PROMPT_SCHEMA)]
    suffix: Annotated[str, Field(description="the text goes between prompt and suffix")] = ""
    best_of: (
        Annotated[
            int,
            Field(
                ge=1,
                le=MAX_CHOICES,
                description="number of texts; the n with the highest mean logprob are returned",
            ),
        ]
        | None
    ) = None
    echo: Annotated[bool, Field(description="the answer begins with the prompt")] = False
    logprobs: (
        Annotated[
            int,
            Field(
                ge=0, le=MAX_LOGPROBS, description="add log-probabilities, with this many top tokens for each"
            ),
        ]
        | None
    ) = None
    return_draft_depths: Annotated[
        bool, Field(description="add draft_depths to choices: [text, draft depth] of each token")
    ] = False
    return_draft_steps: Annotated[
        bool, Field(description="add draft_steps to choices: time, drafts and accepted drafts of each step")
    ] = False

    def check(self) -> None:
        super().check()
        if self.suffix and self.echo:
            raise bad_request("echo and suffix cannot be combined; leave one of them out", "suffix")
        if self.best_of is None:
            return
        if self.best_of < self.n:
            raise bad_request(f"best_of is {self.best_of}; it must be at least n, {self.n}", "best_of")
        if self.stream and self.best_of > self.n:
            raise bad_request(
                "best_of cannot be streamed: the texts are compared when all are complete", "best_of"
            )

    def prompts(self) -> list[str | list[int]]:
        return prompts(self.prompt)

    @property
    def scores_prompts(self) -> bool:
        return self.echo and self.logprobs is not None

    def prompt_only(self) -> Self:
        return super().prompt_only().model_copy(update={"best_of": None, "echo": False, "logprobs": None})

    @property
    def candidates(self) -> int:
        return self.best_of or self.n

    @property
    def echoes(self) -> bool:
        return self.echo

    @property
    def tops(self) -> int | None:
        return self.logprobs

    @property
    def returns_draft_steps(self) -> bool:
        return self.return_draft_steps


class ChatRequest(CommonRequest, ChatMessages):
    refused, elsewhere = REFUSED_IN_CHAT, NO_CHAT

    parallel_tool_calls: Annotated[bool, Field(description="false: the answer ends with its first call")] = (
        True
    )
    separate_reasoning: Annotated[bool, Field(description="reasoning goes into reasoning_content")] = True
    stream_reasoning: Annotated[bool, Field(description="false: reasoning comes in one piece")] = True
    echo: Annotated[
        bool, Field(description="the content begins with the last message, if the answer has its role")
    ] = False
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] = 0

    def check(self) -> None:
        super().check()
        if self.top_logprobs and not self.logprobs:
            raise bad_request("top_logprobs is only allowed when logprobs is true", "top_logprobs")

    def prompts(self) -> list[str | list[int]]:
        return ["".join(self.contents())]  # less than the prompt: the template adds more text

    def prompt_only(self) -> Self:
        return super().prompt_only().model_copy(update={"logprobs": False, "top_logprobs": 0})

    @property
    def tops(self) -> int | None:
        return self.top_logprobs if self.logprobs else None
