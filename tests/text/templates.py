"""Chat templates with the conditions and the constructs of the families' own, and their order.

The markers of the first are ChatML's.
"""

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

# -- the dense families of 2026, with their own markers ----------------------------------------------------------------

SMOLLM3 = """{%- if enable_thinking is not defined -%}{%- set enable_thinking = true -%}{%- endif -%}
{%- set mode = "/think" if enable_thinking else "/no_think" -%}
{{- "<|im_start|>system\n" -}}
{%- if messages[0].role == "system" -%}
    {%- set said = messages[0].content -%}
    {%- if "/no_think" in said -%}{%- set mode = "/no_think" -%}{%- endif -%}
    {%- set own = said.replace("/no_think", "").replace("/think", "").rstrip() -%}
{%- endif -%}
{%- set today = strftime_now("%d %B %Y") -%}
{{- "Today: " ~ (today | length > 0) ~ "\nReasoning Mode: " + mode + "\n" -}}
{%- if "/system_override" in said -%}{{- own.replace("/system_override", "").rstrip() -}}
{%- elif own -%}{{- own + "\n\n" -}}{%- endif -%}
{%- if xml_tools or python_tools or tools -%}
    {%- if tools -%}{%- set xml_tools = tools -%}{%- endif -%}
    {%- set ns = namespace(shown="<tools>\n") -%}
    {%- for tool in xml_tools[:] -%}{# a list #}{%- set ns.shown = ns.shown ~ (tool | string) ~ "\n" -%}{%- endfor -%}
    {{- ns.shown + "</tools>\n<tool_call>\n{\\"name\\": <function-name>}\n</tool_call>" -}}
{%- endif -%}
{{- "<|im_end|>\n" -}}
{%- for message in messages -%}
    {%- set content = message.content if message.content is string else "" -%}
    {%- if message.role == "user" -%}{{ "<|im_start|>" + message.role + "\n" + content + "<|im_end|>\n" }}
    {%- elif message.role == "assistant" -%}
        {% generation %}{{ "<|im_start|>assistant\n" + ("" if mode == "/think" else "<think>\n\n</think>\n") }}
        {{- content.lstrip("\n") + "<|im_end|>\n" }}{% endgeneration %}
    {%- elif message.role == "tool" -%}{{ "<|im_start|>" + "user\n" + content + "<|im_end|>\n" }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- "<|im_start|>assistant\n" + ("" if mode == "/think" else "<think>\n\n</think>\n") -}}
{%- endif -%}
"""
MINISTRAL_3 = """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {{- '[SYSTEM_PROMPT]' -}}
    {%- if messages[0]['content'] is string %}{{- messages[0]['content'] -}}
    {%- else %}{%- for block in messages[0]['content'] %}
        {%- if block['type'] == 'thinking' %}{{- '[THINK]' + block['thinking'] + '[/THINK]' }}{%- endif %}
    {%- endfor %}{%- endif %}
    {{- '[/SYSTEM_PROMPT]' -}}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set rest = messages %}
    {{- '[SYSTEM_PROMPT]Your thinking process: [THINK]thoughts[/THINK]Here, the answer.[/SYSTEM_PROMPT]' }}
{%- endif %}
{%- if tools is defined and tools is not none and tools|length > 0 %}
    {{- '[AVAILABLE_TOOLS]' + (tools| tojson) + '[/AVAILABLE_TOOLS]' }}
{%- endif %}
{%- set ns = namespace(index=0) %}
{%- for m in rest %}
    {%- if m.role == 'user' or (m.role == 'assistant' and (m.tool_calls is not defined or m.tool_calls is none)) %}
        {%- if (m['role'] == 'user') != (ns.index % 2 == 0) %}
            {{- raise_exception('conversation roles must alternate except for tool calls and results.') }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{%- for m in rest %}
    {%- if m['role'] == 'user' %}{{- '[INST]' + m['content'] + '[/INST]' }}
    {%- elif m['role'] == 'assistant' %}
        {%- if m['content'] == '' and (m['tool_calls'] is not defined or m['tool_calls']|length == 0) %}
            {{- raise_exception('Assistant message must have a string or a list of tool calls.') }}
        {%- endif %}
        {%- if m['content'] is string and m['content'] != '' %}{{- m['content'] }}{%- endif %}
        {%- for tool in m['tool_calls'] or [] %}
            {%- set arguments = tool['function']['arguments'] %}
            {%- if arguments is not string %}{%- set arguments = arguments|tojson|safe %}{%- endif %}
            {{- '[TOOL_CALLS]' + tool['function']['name'] + '[ARGS]' + arguments }}
        {%- endfor %}
        {{- eos_token }}
    {%- elif m['role'] == 'tool' %}{{- '[TOOL_RESULTS]' + m['content']|string + '[/TOOL_RESULTS]' }}
    {%- else %}{{- raise_exception('got ' + m['role'] + '.') }}
    {%- endif %}
{%- endfor %}
"""
MISTRAL_SMALL_3 = """{%- set today = strftime_now("%Y-%m-%d") %}
{%- set default = "The current date is " + today + ".\\
\\
(\\"Where?\\" => \\"Here.\\")" %}
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] %}{%- set rest = messages[1:] %}
{%- else %}
    {%- set system = default[:9] %}{%- set rest = messages %}
{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}
{%- elif tools is not none %}{%- set system = "Call tools." + "\\n\\n" + system %}
{%- endif %}
{{- '[SYSTEM_PROMPT]' + system + '[/SYSTEM_PROMPT]' }}
{%- set users = rest | selectattr("role", "equalto", "user") | list %}
{%- set said = [] %}
{%- for m in rest %}{%- if m["role"] not in ["tool", "tool_results"] and not m.get("tool_calls") %}
    {%- set said = said + [m] %}
{%- endif %}{%- endfor %}
{%- for m in said %}{%- if (m["role"] == "user") != (loop.index0 % 2 == 0) %}
    {{- raise_exception("roles must alternate") }}
{%- endif %}{%- endfor %}
{%- for m in rest %}
    {%- if m["role"] == "user" %}
        {%- if tools is not none and (m == users[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}{{- '"' + key + '": "' + val + '"' }}
                    {%- else %}{{- '"' + key + '": ' + val|tojson }}{%- endif %}
                    {{- ", " if not loop.last }}
                {%- endfor %}
                {{- "}}" }}{{- "]" if loop.last else ", " }}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {{- '[INST]' + m['content'] + '[/INST]' }}
    {%- elif m["role"] == "tool_calls" or m.tool_calls is defined %}
        {{- "[TOOL_CALLS] [" }}
        {%- for call in m.tool_calls if m.tool_calls is defined %}
            {%- set out = call.function|tojson %}
            {%- if not call.id is defined or call.id|length < 9 %}{{- raise_exception("id" + call.id) }}{%- endif %}
            {{- out[:-1] + ', "id": "' + call.id[-9:] + '"}' }}{{- "]" + eos_token if loop.last else ", " }}
        {%- endfor %}
    {%- elif m['role'] == 'assistant' %}{{- m['content'] + eos_token }}
    {%- elif m["role"] == "tool_results" or m["role"] == "tool" %}
        {%- if m.content is defined and m.content.content is defined %}{%- set content = m.content.content %}
        {%- else %}{%- set content = m.content %}{%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + content|string + ', "call_id": "' + m.tool_call_id[-9:] + '"}' }}
    {%- else %}{{- raise_exception("Only user and assistant roles are supported") }}
    {%- endif %}
{%- endfor %}
"""
OLMO_3 = """{%- set has_system = messages|selectattr('role', 'equalto', 'system')|list|length > 0 -%}
{%- if not has_system -%}
    {{- '<|im_start|>system\nYou are Olmo. ' -}}
    {%- if tools is none or (tools | length) == 0 -%}{{- 'No functions. <functions></functions><|im_end|>\n' -}}
    {%- else -%}{{- 'Write calls within <function_calls></function_calls>.<functions>' ~ tools | tojson -}}
        {{- '</functions><|im_end|>\n' -}}
    {%- endif -%}
{%- endif -%}
{%- for m in messages -%}
    {%- if m['role'] == 'system' -%}
        {{- '<|im_start|>system\n' + m['content'] -}}
        {%- if tools is not none -%}{{- '<functions>' -}}{{- tools | tojson -}}{{- '</functions>' -}}
        {%- elif m.get('functions', none) is not none -%}{{- m['functions'] -}}{%- endif -%}
        {{- '<|im_end|>\n' -}}
    {%- elif m['role'] == 'user' -%}{{- '<|im_start|>user\n' + m['content'] + '<|im_end|>\n' -}}
    {%- elif m['role'] == 'assistant' -%}
        {{- '<|im_start|>assistant\n' -}}
        {%- if m.get('content', none) is not none -%}{{- m['content'] -}}{%- endif -%}
        {%- if m.get('tool_calls', none) is not none -%}
            {{- '<function_calls>' -}}
            {%- for call in m['tool_calls'] -%}
                {%- if call is mapping and call.get('function', none) is not none -%}
                    {%- set ns = namespace(written=[]) -%}
                    {%- for key, value in call['function']['arguments'].items() -%}
                        {%- set ns.written = ns.written + [key ~ '=' ~ (value | tojson)] -%}
                    {%- endfor -%}
                    {{- call['function']['name'] + '(' + (ns.written | join(', ')) + ')' -}}
                    {%- if not loop.last -%}{{- '\n' -}}{%- endif -%}
                {%- endif -%}
            {%- endfor -%}
            {{- '</function_calls>' -}}
        {%- endif -%}
        {%- if not loop.last -%}{{- '<|im_end|>' + '\n' -}}{%- else -%}{{- eos_token -}}{%- endif -%}
    {%- elif m['role'] == 'tool' -%}{{- '<|im_start|>environment\n' + m['content'] + '<|im_end|>\n' -}}
    {%- endif -%}
    {%- if loop.last and add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
{%- endfor -%}
"""
GRANITE_3 = """{%- if tools and not available_tools -%}{%- set available_tools = tools -%}{%- endif -%}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] %}{%- set rest = messages[1:] %}
{%- else %}
    {%- set system = "Today's Date: " + strftime_now('%B %d, %Y')[:0] + ". You are Granite." %}
    {%- if available_tools and documents %}{%- set system = system + " Both." %}
    {%- elif available_tools %}{%- set system = system + " Respond only with <|tool_call|> and a list of tools used." %}
    {%- elif thinking %}{%- set system = system + " Write your thoughts between <think></think>." %}
    {%- endif %}
    {%- if 'citations' in controls and documents %}{%- set system = system + ' Cite.' %}{%- endif %}
    {%- set rest = messages %}
{%- endif %}
{{- '<|start_of_role|>system<|end_of_role|>' + system + '<|end_of_text|>\n' }}
{%- if available_tools %}
    {{- '<|start_of_role|>available_tools<|end_of_role|>' }}
    {{- available_tools | tojson(indent=4) }}
    {{- '<|end_of_text|>\n' }}
{%- endif %}
{%- for m in rest %}
    {{- '<|start_of_role|>' + m['role'] + '<|end_of_role|>' + m['content'] + '<|end_of_text|>\n' }}
    {%- if loop.last and add_generation_prompt %}
        {{- '<|start_of_role|>assistant' }}{%- if controls %}{{- ' ' + controls | tojson()}}{%- endif %}
        {{- '<|end_of_role|>' }}
    {%- endif %}
{%- endfor %}
"""
GRANITE_4 = """{%- set ns = namespace(tools='<tools>',
                       system=''
                       ) %}
{%- if available_tools is defined and available_tools %}{%- set tools = available_tools %}{%- endif %}
{%- if tools %}
    {%- for tool in tools %}{%- set ns.tools = ns.tools + '\n' + (tool | tojson) %}{%- endfor %}
    {%- set ns.tools = ns.tools + '\n</tools>\n<tool_call>\n{\\"name\\": <function-name>}\n</tool_call>' %}
{%- else %}{%- set ns.tools = '' %}
{%- endif %}
{%- if messages[0].role == 'system' %}
    {%- if messages[0].content is string %}{%- set ns.system = messages[0].content %}
    {%- elif messages[0].content is iterable %}
        {%- for entry in messages[0].content %}{%- set ns.system = ns.system + entry.text %}{%- endfor %}
    {%- endif %}
    {%- if tools %}{%- set ns.system = ns.system + '\n\n' + ns.tools %}{%- endif %}
{%- elif tools %}{%- set ns.system = ns.tools %}
{%- endif %}
{{- '<|start_of_role|>system<|end_of_role|>' + (ns.system or 'Help.') + '<|end_of_text|>\n' }}
{%- for m in messages %}
    {%- set content = namespace(val='') %}
    {%- if m.content is string %}{%- set content.val = m.content %}{%- endif %}
    {%- if (m.role == 'user') or (m.role == 'system' and not loop.first) %}
        {{- '<|start_of_role|>' + m.role + '<|end_of_role|>' + content.val + '<|end_of_text|>\n' }}
    {%- elif m.role == 'assistant' %}
        {{- '<|start_of_role|>' + m.role + '<|end_of_role|>' + content.val }}
        {%- for call in m.tool_calls or [] %}
            {%- if (loop.first and content.val) or (not loop.first) %}{{- '\n' }}{%- endif %}
            {%- if call.function %}{%- set call = call.function %}{%- endif %}
            {{- '<tool_call>\n{"name": "' }}{{- call.name }}{{- '", "arguments": ' }}
            {{- call.arguments if call.arguments is string else call.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|end_of_text|>\n' }}
    {%- elif m.role == 'tool' %}
        {%- if loop.first or (messages[loop.index0 - 1].role != 'tool') %}
            {{- '<|start_of_role|>user<|end_of_role|>' }}
        {%- endif %}
        {{- '\n<tool_response>\n' }}{{- content.val }}{{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != 'tool') %}{{- '<|end_of_text|>\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_of_role|>assistant<|end_of_role|>' }}{%- endif %}
"""
PHI_4 = """{%- for m in messages -%}
    {%- if m['role'] == 'system' and 'tools' in m and m['tools'] is not none -%}
        {{- '<|' + m['role'] + '|>' + m['content'] + '<|tool|>' + m['tools'] + '<|/tool|>' + '<|end|>' -}}
    {%- else -%}
        {{- '<|' + m['role'] + '|>' + m['content'] + '<|end|>' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- else -%}{{- eos_token -}}{%- endif -%}
"""
GEMMA_4 = """{%- macro parameters(properties, required, filter_keys=false) -%}
    {%- set standard = ['description', 'type', 'properties', 'required', 'nullable'] -%}
    {%- set ns = namespace(found=false) -%}
    {%- for key, value in properties | dictsort -%}
        {%- set comma = false -%}
        {%- if not filter_keys or key not in standard -%}
            {%- if ns.found %},{% endif -%}
            {%- set ns.found = true -%}
            {{ key }}:{
            {%- if value['description'] -%}
                description:<|"|>{{ value['description'] }}<|"|>{%- set comma = true -%}
            {%- endif -%}
            {%- if value['type'] | upper == 'STRING' and value['enum'] -%}
                {%- if comma %},{%- else -%} {%- set comma = true -%} {% endif -%}
                enum:{{ argument(value['enum']) }}
            {%- elif value['type'] | upper == 'ARRAY' and value['items'] is mapping -%}
                {%- for name, item in value['items'] | dictsort -%}
                    {%- if item is string -%}{{ name }}:{{ argument(item | upper) }}
                    {%- elif name == 'type' -%}{{ argument(item | map('upper') | list) }}{%- endif -%}
                {%- endfor -%}
            {%- elif value['properties'] is defined and value['properties'] is mapping -%}
                properties:{ {{- parameters(value['properties'], value['required'] | default([])) -}} }
            {%- endif -%}
            {%- if comma %},{%- endif -%}
            type:<|"|>{{ value['type'] | upper }}<|"|>}
        {%- endif -%}
    {%- endfor -%}
{%- endmacro -%}
{%- macro argument(value, escape_keys=True) -%}
    {%- if value is string -%}{{- '<|"|>' + value + '<|"|>' -}}
    {%- elif value is boolean -%}{{- 'true' if value else 'false' -}}
    {%- elif value is mapping -%}
        {{- '{' -}}
        {%- set ns = namespace(found=false) -%}
        {%- for key, item in value | dictsort -%}
            {%- if ns.found %},{% endif -%}
            {%- set ns.found = true -%}
            {{- '<|"|>' + key + '<|"|>' if escape_keys else key -}}:{{- argument(item, escape_keys=escape_keys) -}}
        {%- endfor -%}
        {{- '}' -}}
    {%- elif value is sequence -%}
        {{- '[' -}}
        {%- for item in value -%}
            {{- argument(item, escape_keys=escape_keys) -}}{%- if not loop.last %},{% endif -%}
        {%- endfor -%}
        {{- ']' -}}
    {%- else -%}{{- value -}}
    {%- endif -%}
{%- endmacro -%}
{%- macro without_thoughts(text) -%}
    {%- set ns = namespace(result='') -%}
    {%- for part in text.split('<channel|>') -%}
        {%- set ns.result = ns.result + (part.split('<|channel>')[0] if '<|channel>' in part else part) -%}
    {%- endfor -%}
    {{- ns.result | trim -}}
{%- endmacro -%}
{%- set ns = namespace(before=None, last_user=-1) -%}
{%- set rest = messages -%}
{{- bos_token -}}
{%- if (enable_thinking is defined and enable_thinking) or tools or messages[0]['role'] in ['system', 'developer'] -%}
    {{- '<|turn>system\n' -}}
    {%- if enable_thinking is defined and enable_thinking -%}{{- '<|think|>\n' -}}{%- endif -%}
    {%- if messages[0]['role'] in ['system', 'developer'] -%}
        {{- messages[0]['content'] | trim -}}
        {%- set rest = messages[1:] -%}
    {%- endif -%}
    {%- for tool in tools or [] %}
        {%- set function = tool['function'] -%}
        {{- '<|tool>' -}}declaration:{{- function['name'] -}}
        {description:<|"|>{{- function['description'] -}}<|"|>
        {%- if function['parameters'] -%}
            ,parameters:{properties:{ {{- parameters(function['parameters']['properties'] or {}, []) | trim -}} }
            {{- ',type:<|"|>' + function['parameters']['type'] | upper + '<|"|>}' -}}
        {%- endif -%}
        }{{- '<tool|>' -}}
    {%- endfor %}
    {{- '<turn|>\n' -}}
{%- endif %}
{%- for i in range(rest | length) -%}
    {%- if rest[i]['role'] == 'user' -%}{%- set ns.last_user = i -%}{%- endif -%}
{%- endfor -%}
{%- for m in rest -%}
    {%- if m['role'] != 'tool' -%}
        {%- set role = 'model' if m['role'] == 'assistant' else m['role'] -%}
        {%- if not (role == 'model' and ns.before == 'model') -%}{{- '<|turn>' + role + '\n' }}{%- endif -%}
        {%- set ns.before = role -%}
        {%- set thought = m.get('reasoning') or m.get('reasoning_content') -%}
        {%- if thought and loop.index0 > ns.last_user and m.get('tool_calls') -%}
            {{- '<|channel>thought\n' + thought + '\n<channel|>' -}}
        {%- endif -%}
        {%- for call in m['tool_calls'] or [] -%}
            {{- '<|tool_call>call:' + call['function']['name'] -}}
            {{- argument(call['function']['arguments'], escape_keys=False) + '<tool_call|>' -}}
        {%- endfor -%}
        {%- set ns.results = false -%}
        {%- if m.get('tool_calls') -%}
            {%- for k in range(loop.index0 + 1, rest | length) -%}
                {%- if rest[k]['role'] != 'tool' -%}{%- break -%}{%- endif -%}
                {%- set name = namespace(of=rest[k].get('name') | default('unknown', true)) -%}
                {%- for call in m['tool_calls'] -%}
                    {%- if call.get('id') == rest[k].get('tool_call_id') -%}
                        {%- set name.of = call['function']['name'] -%}
                    {%- endif -%}
                {%- endfor -%}
                {{- '<|tool_response>response:' + name.of + '{value:' -}}
                {{- argument(rest[k].get('content')) + '}<tool_response|>' -}}
                {%- set ns.results = true -%}
            {%- endfor -%}
        {%- endif -%}
        {%- set said -%}
            {{- without_thoughts(m['content']) if role == 'model' else m['content'] | trim -}}
        {%- endset -%}
        {{- said -}}
        {%- if m['tool_calls'] and not ns.results -%}{{- '<|tool_response>' -}}
        {%- elif not (ns.results and not said | trim | length > 0) -%}{{- '<turn|>\n' -}}
        {%- endif -%}
        {%- set ns.called = m['tool_calls'] and not said -%}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt and not ns.called -%}
    {{- '<|turn>model\n' -}}
    {%- if not enable_thinking | default(false) -%}{{- '<|channel>thought\n<channel|>' -}}{%- endif -%}
{%- endif -%}
"""
GPT_OSS = """{%- macro kind_of(spec, required, nullable=false) -%}
    {%- if spec.type == "array" -%}
        {%- if spec['items'] -%}
            {%- set inner = kind_of(spec['items'], required) -%}
            {{- "any[]" if inner|length > 50 else inner + "[]" }}
        {%- else -%}{{- "any[]" }}{%- endif -%}
        {%- if spec.nullable -%}{{- " | null" }}{%- endif -%}
    {%- elif spec.type is defined and spec.type is iterable and spec.type is not string and spec.type is not mapping
        and spec.type[0] is defined -%}
        {{- spec.type | join(" | ") }}
    {%- elif spec.type == "string" -%}{{- '"' + spec.enum|join('" | "') + '"' if spec.enum else "string" }}
    {%- elif spec.type in ["number", "integer"] -%}{{- "number" }}
    {%- elif spec.type == "boolean" -%}{{- "boolean" }}
    {%- elif spec.type == "object" and spec.properties -%}
        {{- "{\n" }}
        {%- for name, inner in spec.properties.items() -%}
            {{- name + ("" if name in (spec.required or []) else "?") + ": " + kind_of(inner, spec.required or []) }}
            {{- ", " if not loop.last }}
        {%- endfor -%}
        {{- "}" }}
    {%- else -%}{{- "any" }}
    {%- endif -%}
{%- endmacro -%}
{%- macro shown(namespace_name, tools) -%}
    {{- "## " + namespace_name + "\n\nnamespace " + namespace_name + " {\n\n" }}
    {%- for tool in tools %}
        {%- set tool = tool.function %}
        {{- "// " + tool.description + "\ntype " + tool.name + " = " }}
        {%- if tool.parameters and tool.parameters.properties %}
            {{- "(_: {\n" }}
            {%- for name, spec in tool.parameters.properties.items() %}
                {{- name + ("" if name in (tool.parameters.required or []) else "?") + ": " }}
                {{- kind_of(spec, tool.parameters.required or []) }}
                {%- if spec.default is defined %}{{- ", // default: " + spec.default|tojson }}{%- endif %}
                {{- ",\n" }}
            {%- endfor %}
            {{- "}) => any;\n\n" }}
        {%- else %}{{- "() => any;\n\n" }}
        {%- endif %}
    {%- endfor %}
    {{- "} // namespace " + namespace_name }}
{%- endmacro -%}
{%- macro identity() -%}
    {%- if reasoning_effort is not defined %}{%- set reasoning_effort = "medium" %}{%- endif %}
    {{- "Who you are.\nCurrent date: " + strftime_now("%Y-%m-%d") + "\n\nReasoning: " + reasoning_effort + "\n\n" }}
    {{- "# Valid channels: analysis, commentary, final. Channel must be included for every message." }}
    {%- if tools %}{{- "\nCalls go to the commentary channel: 'functions'." }}{%- endif %}
{%- endmacro -%}
{{- "<|start|>system<|message|>" + identity() + "<|end|>" }}
{%- if messages[0].role == "developer" or messages[0].role == "system" %}
    {%- set rules = messages[0].content %}{%- set rest = messages[1:] %}
{%- else %}
    {%- set rules = "" %}{%- set rest = messages %}
{%- endif %}
{%- if rules or tools %}
    {{- "<|start|>developer<|message|>" }}
    {%- if rules %}{{- "# Instructions\n\n" + rules }}{%- endif %}
    {%- if tools %}{{- "\n\n# Tools\n\n" + shown("functions", tools) }}{%- endif %}
    {{- "<|end|>" }}
{%- endif %}
{%- set last = namespace(name=none) %}
{%- for message in rest -%}
    {%- if message.role == 'assistant' -%}
        {%- if "content" in message and "<|channel|>analysis<|message|>" in message.content %}
            {{- raise_exception("pass thoughts in the 'thinking' field") }}
        {%- endif %}
        {%- if "tool_calls" in message %}
            {%- set later = namespace(final=false) %}
            {%- for future in rest[loop.index:] %}
                {%- if future.role == 'assistant' and "tool_calls" not in future %}
                    {%- set later.final = true %}
                {%- endif %}
            {%- endfor %}
            {%- set call = message.tool_calls[0] %}
            {%- if call.function %}{%- set call = call.function %}{%- endif %}
            {%- if message.content and message.thinking %}
                {{- raise_exception("Cannot pass both content and thinking in a message with calls!") }}
            {%- elif message.content and not later.final %}
                {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.content + "<|end|>" }}
            {%- elif message.thinking and not later.final %}
                {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}
            {%- endif %}
            {{- "<|start|>assistant to=functions." + call.name + "<|channel|>commentary " }}
            {{- (call.content_type if call.content_type is defined else "json") + "<|message|>" }}
            {{- call.arguments|tojson + "<|call|>" }}
            {%- set last.name = call.name %}
        {%- elif loop.last and not add_generation_prompt %}
            {%- if "thinking" in message %}
                {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}
            {%- endif %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|return|>" }}
        {%- else %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
            {%- set last.name = none %}
        {%- endif %}
    {%- elif message.role == 'tool' -%}
        {%- if last.name is none %}{{- raise_exception("a result without a call before it!") }}{%- endif %}
        {{- "<|start|>functions." + last.name }}
        {{- " to=assistant<|channel|>commentary<|message|>" + message.content|tojson + "<|end|>" }}
    {%- elif message.role == 'user' -%}
        {{- "<|start|>user<|message|>" + message.content + "<|end|>" }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|start|>assistant" }}{%- endif -%}
"""
