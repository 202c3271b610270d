"""/v1/responses: OpenAI's protocol of items, which Codex CLI speaks. Nothing is stored. Read in this order:

history.py         items of the input → messages as chat templates know them; functions in namespaces
items.py           events of an answer → items of the output, and the protocol's events about them
answer.py          the response around its items, streamed or whole
body.py            a body → one request to the engine
"""
