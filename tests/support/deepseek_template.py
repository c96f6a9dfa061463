"""A chat template like DeepSeek-V3-0324's. System messages come first, a call's arguments are inserted as
text, names are not shown, and earlier reasoning is dropped."""

DEEPSEEK_V3 = (
    "{% set ns = namespace(is_tool=false, system_prompt='') %}"
    "{%- for message in messages %}{%- if message['role'] == 'system' %}"
    "{% set ns.system_prompt = ns.system_prompt + message['content'] + '\\n\\n' %}{%- endif %}{%- endfor %}"
    "{{ bos_token }}{{ ns.system_prompt }}"
    "{%- for message in messages %}"
    "{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}"
    "{{ '<｜User｜>' + message['content'] + '<｜Assistant｜>' }}{%- endif %}"
    "{%- if message['role'] == 'assistant' and message['tool_calls'] %}"
    "{%- for tool in message['tool_calls'] %}"
    "{%- if loop.first %}{{ message['content'] or '' }}{{ '<｜tool▁calls▁begin｜>' }}"
    "{%- else %}{{ '\\n' }}{%- endif %}"
    "{{ '<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + tool['function']['name'] "
    "+ '\\n```json\\n' + tool['function']['arguments'] + '\\n```<｜tool▁call▁end｜>' }}{%- endfor %}"
    "{{ '<｜tool▁calls▁end｜><｜end▁of▁sentence｜>' }}"
    "{%- elif message['role'] == 'assistant' %}"
    "{%- set content = message['content'].split('</think>')[-1] %}"
    "{{ content + '<｜end▁of▁sentence｜>' }}{%- endif %}"
    "{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}"
    "{{ '<｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>' }}{%- endif %}"
    "{%- endfor -%}"
)
# The template of the first DeepSeek-V3: a message of an assistant has either text or calls.
DEEPSEEK_V3_FIRST = DEEPSEEK_V3.replace("and message['tool_calls'] %}", "and message['content'] is none %}")
