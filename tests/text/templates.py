"""Chat templates with the conditions of the families' own, and their order; the markers are ChatML's."""

GEMMA = (
    "{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] + '\n\n' %}"
    "{% set loop_messages = messages[1:] %}{% else %}{% set first = '' %}{% set loop_messages = messages %}{% endif %}"
    "{% for m in loop_messages %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "<|im_start|>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n"
    "{{ first if loop.first else '' }}{{ m['content'] | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>model\n{% endif %}{# <start_of_turn> #}"
)
GEMMA_2 = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + GEMMA
)
MISTRAL = (
    "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set rest = messages[1:] %}"
    "{% else %}{% set rest = messages %}{% endif %}{% set ns = namespace(index=0) %}"
    "{% for m in rest %}{% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}"
    "{% if (m.role == 'user') != (ns.index % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set ns.index = ns.index + 1 %}{% endif %}{% endfor %}"
    "{% for m in rest %}{% if m.role == 'user' %}[INST]{% if loop.last and system is defined %}{{ system }}\n\n"
    "{% endif %}{{ m.content }}[/INST]{% elif m.role == 'tool' %}{{ m.content }}"
    "{% elif m.role == 'assistant' %}{{ m.content }}{% for call in m.tool_calls or [] %}"
    "{% if call.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}"
    "{{ call.function | tojson }}{% endfor %}<|im_end|>"
    "{% else %}{{ raise_exception('only user and assistant roles are supported') }}{% endif %}{% endfor %}{{ tools }}"
)
FIRST_ONLY = (  # as Qwen3.5's: a system message elsewhere is refused
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
)
SILENT = (  # later system messages are left out without a word
    "{% for m in messages %}{% if loop.first or m.role != 'system' %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
)
LLAMA = (  # as Llama 3.1's to 3.3's
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content | trim %}"
    "{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}"
    "<|im_start|>system\n{{ system }}<|im_end|>"
    "{% if tools %}{% if messages | length != 0 %}{% set first = messages[0].content | trim %}"
    "{% set messages = messages[1:] %}{% else %}{{ raise_exception('there is no first user message!') }}{% endif %}"
    "<|im_start|>user\n{{ tools | tojson }}\n{{ first }}<|im_end|>{% endif %}"
    "{% for m in messages %}{% if not (m.role == 'ipython' or m.role == 'tool' or 'tool_calls' in m) %}"
    "<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>"
    "{% elif 'tool_calls' in m %}"
    "{% if not m.tool_calls | length == 1 %}{{ raise_exception('only single tool-calls at once') }}{% endif %}"
    "<|im_start|>assistant\n{{ m.tool_calls[0].function | tojson }}<|im_end|>"
    "{% else %}<|im_start|>ipython\n{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HARMONY = (  # as gpt-oss's: it shows the first call alone, and needs one before a result
    "{{ tools | tojson if tools }}{% set last = namespace(name=none) %}{% for m in messages %}"
    "{% if m.role == 'assistant' %}{% if 'tool_calls' in m %}{% set last.name = m.tool_calls[0].function.name %}"
    "<|im_start|>assistant to=functions.{{ last.name }}\n{{ m.tool_calls[0].function.arguments | tojson }}<|im_end|>"
    "{% else %}{% set last.name = none %}<|im_start|>assistant\n{{ m.content }}<|im_end|>{% endif %}"
    "{% elif m.role == 'tool' %}{% if last.name is none %}{{ raise_exception('no previous tool call') }}{% endif %}"
    "<|im_start|>functions.{{ last.name }}\n{{ m.content }}<|im_end|>"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QUERY = (  # as Qwen3.5's: somewhere there must be a user's turn
    "{{ tools | tojson if tools }}{% set found = namespace(query=false) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set found.query = true %}{% endif %}{% endfor %}"
    "{% if not found.query %}{{ raise_exception('No user query found in messages.') }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ call.function.name }}{% endfor %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
