"""Text is the edge's: text in, text out, over a core that knows token ids alone.

Read in this order:

    front_end.py    text to requests, outputs to text
    transcript.py   one sample's tokens as text;  stream.py: pieces of it as they come
    completion.py   what a caller gets back
    interrupts.py   Ctrl-C between steps, never within one
    llm.py          `LLM`: a front end and a core in one loop, for programs that own that loop

All but llm.py import without torch.
"""
