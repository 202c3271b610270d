"""HTTP: what any client may send, and what it may do. Read in this order:

hosts.py           checks of a request's origin: Host, Origin and Sec-Fetch-Site
body.py            untrusted bytes → strict JSON, within limits
streaming.py       server-sent events, and clients that leave or stop reading
app.py             the routes
"""
