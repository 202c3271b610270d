"""HTTP: what any client may send, and what it may do. Read in this order:

hosts.py           checks of a request's origin: Host, Origin and Sec-Fetch-Site
keys.py            API keys: a file of hashes, and the environment's key
quotas.py          limits per API key
record.py          one request's id, sender and end, for the log and the metrics
access.py          who may call which route; each key's own part of the cache
tls.py             certificates
body.py            untrusted bytes → strict JSON, within limits
answers.py         answers in one piece
streaming.py       server-sent events, and clients that leave or stop reading
answers.py         answers in one piece
model_routes.py    routes that describe the model and its tokens
app.py             the other routes
"""
