"""The protocols: each reads a body and writes an answer in its own form. Read in this order:

errors.py          exceptions as problems, and their shape in each protocol
fields.py          a body's fields, read one by one
frames.py          JSON and server-sent events as bytes
generate.py        /generate, whose fields are the engine's
closing.py         schemas whose objects have no further properties
openai.py          the parts that OpenAI's protocols share: sampling, constraints, usage
completions.py     /v1/completions
models.py          /v1/models
tokens.py          /tokenize, /detokenize
turns.py           a turn of a conversation: tools, template settings, answers as they are read
chat.py            /v1/chat/completions
responses/         /v1/responses
anthropic/         /v1/messages and /v1/messages/count_tokens
openapi.py         the OpenAPI schema of /generate
schemas.py         the schemas of the other protocols' bodies
"""
