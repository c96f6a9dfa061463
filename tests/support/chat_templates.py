"""Chat templates like those of GLM and Qwen: how they show tools and calls, and how an answer begins, with or
without thinking."""

from __future__ import annotations

TOOLS = (
    "{% if tools %}# Tools\n<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>{% endif %}"
)
REASON = "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"


def glm(newer: bool) -> str:
    """The template of GLM-4.7 (newer) or GLM-4.5. With GLM-4.5 the model opens its reasoning itself, and
    there are line breaks."""
    line = "" if newer else "\n"
    call = (
        "{{ '<tool_call>' ~ c.function.name }}" + line + "{% for k, v in c.function.arguments.items() %}"
        "<arg_key>{{ k }}</arg_key>" + line
        + "<arg_value>{{ v if v is string else v | tojson }}</arg_value>" + line
        + "{% endfor %}</tool_call>"
    )  # fmt: skip
    think = "<think>" if newer else ""
    off = "</think>" if newer else "{{ '\\n<think></think>' }}"
    return (
        "[gMASK]<sop>" + TOOLS + "{% for m in messages %}"
        "{% if m.role == 'assistant' %}<|assistant|>" + REASON + "{{ m.content }}"
        "{% for c in m.tool_calls or [] %}" + line + call + "{% endfor %}"
        "{% elif m.role == 'tool' %}<|observation|><tool_response>{{ m.content }}</tool_response>"
        "{% elif m.role == 'user' %}<|user|>{{ m.content }}"
        "{% else %}<|system|>{{ m.content }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>"
        "{% if enable_thinking is defined and not enable_thinking %}" + off + "{% else %}" + think
        + "{% endif %}{% endif %}"
    )  # fmt: skip


def qwen(call: str, think: str = "") -> str:
    return (
        TOOLS + "{% for m in messages %}<|im_start|>{{ 'user' if m.role == 'tool' else m.role }}\n"
        "{% if m.role == 'tool' %}<tool_response>{{ m.content }}</tool_response>"
        "{% else %}" + REASON + "{{ m.content }}{% endif %}"
        "{% for c in m.tool_calls or [] %}\n" + call + "{% endfor %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n"
        "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n"
        "{% else %}" + think + "{% endif %}{% endif %}"
    )  # fmt: skip


HERMES_CALL = (
    '<tool_call>\n{{ \'{"name": "\' ~ c.function.name ~ \'", "arguments": \' }}'
    "{{ c.function.arguments | tojson }}}\n</tool_call>"
)
CODER_CALL = (
    "<tool_call>\n<function={{ c.function.name }}>\n{% for k, v in c.function.arguments.items() %}"
    "<parameter={{ k }}>\n{{ v if v is string else v | tojson }}\n</parameter>\n{% endfor %}"
    "</function>\n</tool_call>"
)
GLM45, GLM47 = glm(newer=False), glm(newer=True)
QWEN3, QWEN3_CODER = qwen(HERMES_CALL), qwen(CODER_CALL, "<think>\n")
