"""The front end: text in, text out, over an engine that knows token ids alone.

Read llm.py first (`LLM`, for programs that own their loop), then transcript.py and stream.py (tokens to text as they
come) and completion.py (what a caller gets back).
"""
