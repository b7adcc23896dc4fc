"""Chat templates of the well-known shapes."""

from __future__ import annotations

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

MARKED = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] }}<|im_end|>\n{% endgeneration %}"
    "{% else %}{{ message['content'] }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# As Mistral's: what the assistant says follows the question with nothing in between, so there is no prompt for it.
BARE = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}[INST] {{ message['content'] }} [/INST]"
    "{% elif message['role'] == 'assistant' %} {{ message['content'] }}{{ eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)

# A header for each message, and none that could be asked for: where the assistant's part begins can't be told.
HEADED = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"

# As those of models that think: the last answer is rendered otherwise than those before it.
THINKING = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['role'] == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# As Qwen3's: thoughts that the assistant had before the last question are dropped, and a prompt may close thoughts at once.
REASONING_MARKED = (
    "{% set ns = namespace(last=0) %}{% for message in messages %}{% if message['role'] == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% if message['role'] == 'assistant' %}"
    "{% generation %}{% set parts = message['content'].split('</think>') %}{% set thought = parts[0].split('<think>')[-1].strip() "
    "if parts | length > 1 else '' %}{% if loop.index0 > ns.last and (loop.last or thought) %}<think>\n{{ thought }}\n</think>\n\n"
    "{% endif %}{{ parts[-1].lstrip('\n') if thought else parts[-1] }}{% for call in message['tool_calls'] %}"
    "{% if parts[-1] or not loop.first %}{{ '\n' }}{% endif %}<tool_call>{{ call['function'] | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endgeneration %}{% else %}{{ message['content'] }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking is defined and not enable_thinking %}"
    "<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
REASONING = REASONING_MARKED.replace("{% generation %}", "").replace("{% endgeneration %}", "")

# What follows a message depends on what it says, or on how many there are: where one ends can't be told by putting another there.
COUNTING = CHATML.replace(
    "<|im_end|>", "<|im_end|>{{ messages | length }} {{ messages | map(attribute='content') | join | length }}"
)
SHOUTING = CHATML.replace("<|im_end|>", "{{ '!' if loop.last or message['content'] == 'jumps over' }}<|im_end|>")

WITH_TOOLS = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "{% for call in message['tool_calls'] %}<tool_call>{{ call['function'] | tojson }}</tool_call>{% endfor %}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
