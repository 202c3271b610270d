"""HTTP: untrusted requests, access, and answers. Read in this order:

protocol.py        HTTP/1.1 on a connection: the parser, and limits of time and size
hosts.py           checks of a request's origin: Host, Origin and Sec-Fetch-Site
keys.py            API keys: a file of hashes, and the environment's key
quotas.py          limits per API key
record.py          one request's id, sender and outcome, for the log and the metrics
bodies.py          bodies and answers in a file, to debug a client
answers.py         answers in one piece
access.py          access to routes by role; each key's own part of the cache
tls.py             certificates
body.py            untrusted bytes → strict JSON, within limits
slices.py          large answers, a slice at a time
streaming.py       server-sent events, and clients that leave or stop reading
watch/             the live X-ray: events of a running engine
model_routes.py    routes that describe the model and its tokens
app.py             the other routes
"""
