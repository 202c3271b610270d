"""Text is the edge's: text in, text out, over a core that knows token ids alone.

Read front_end.py first (text to requests, outputs to text), then transcript.py and stream.py (tokens to text as they
come), completion.py (what a caller gets back), and llm.py (`LLM`: a front end and a core in one loop, for programs that
own that loop). All but llm.py import without torch.
"""
