"""The syntaxes of calls: how each family of models writes one, read as it arrives.

Each is a parser that reads calls behind their opening marker and reports them (`Calls`). Read in this order:

    python_text.py   Python's literals as they arrive, written as JSON
    json_text.py     JSON as it arrives, and what models write instead
    typed.py         raw text typed by a schema
    json_calls.py    {"name": …, "arguments": {…}}, and Mistral's name[ARGS]{…}
    xml_calls.py     <function=name><parameter=key>value</parameter></function>
    python_calls.py  [f(a=1), g()], or one call a line
    gemma_calls.py   Gemma 4's call:f{key:<|"|>text<|"|>}
"""
