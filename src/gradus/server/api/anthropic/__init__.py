"""/v1/messages and /v1/messages/count_tokens: Anthropic's protocol, which Claude Code speaks. Read in this order:

conversation.py    system text and messages of blocks → messages as chat templates know them
partial_json.py    arguments of a truncated call
answer.py          events → blocks, streamed or whole
request.py         a body → one request to the engine
"""
