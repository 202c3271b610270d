"""Tool calls and reasoning: from a client's tools to a prompt and a grammar, and from a model's tokens to events.

Families of models are shown tools, and call them, in different ways. One table says how (formats.py). The rest follows
from it: the text that shows the tools, the grammar of a call, and the parser of an answer.

    turn = llm.front_end.dialect.turn(tools, "auto")
    prompt = llm.chat_prompt(messages, tools=turn.shown)
    events = turn.stream(prompt)
    for delta in llm.stream(prompt, params, turn=turn):
        for event in events.read(delta): …

Read in this order:

    tool.py          tools and the choice among them, as clients send them
    events.py        what an answer consists of
    reader.py        text that arrives in pieces, read as if it were all there
    calls.py         the calls of an answer, as they are reported
    syntaxes/        how each family of models writes them
    marks.py         tokens to text and marks
    answer.py        an answer as it arrives: reasoning, text and calls, and where it ends
    channels.py      the same of an answer in messages, as gpt-oss writes it
    layout.py        how calls are written
    gemma_grammar.py the grammar of Gemma 4's arguments;  channel_grammar.py: of messages;  grammar.py: of an answer
    history.py       calls and results that go back to the model
    formats.py       the table of formats
    dialect.py       a format with one model's vocabulary: what front ends use

None of them knows torch.
"""
