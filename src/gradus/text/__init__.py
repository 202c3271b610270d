"""The text side: text in, text out, around a core that knows only token ids.

Read in this order:

    completion.py   results for callers
    stops.py        text up to a stop string;  stream.py: pieces of it as they arrive
    conversation.py conversations as clients send them, in one form;  arrangement.py: as a model's template takes them
    tools/          tool calls and reasoning: from a client's tools to a prompt, from tokens to events
    transcript.py   one sample's tokens as text
    infill.py       prompts whose answer belongs in the middle of a text
    front_end.py    text to requests, outputs to text
    interrupts.py   Ctrl-C between steps, never within one
    turns.py        threads take turns at one engine
    llm.py          `LLM`: a front end and a core in one loop, for programs that own that loop

All but turns.py and llm.py import without torch.
"""
