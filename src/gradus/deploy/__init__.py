"""Replicas of the server on Ray Serve: one address, several engines, and a router that knows their prefixes.

    HTTP ── Ray's proxy ── ingress: reads the body, hashes its beginning ── router ── replica: the server's application

Each replica has the same ASGI application as `gradus serve`, over an engine process of its own. Ray is imported only
where a deployment starts, and is an extra of the package. Read in this order:

    prefixes.py    a prompt's beginning as salted hashes of its blocks; which of them a replica served recently
    choice.py      the router's choice: longest known prefix, unless the load is too uneven
    relay.py       one request through an ASGI application, as messages that another process can forward
    replica.py     the server's application and its engine, with Ray's hooks for health, routing and shutdown
    ingress.py     what Ray's proxy calls: hashes a request, and forwards the replica's messages
    router.py      the choice as Ray's RequestRouter
    run.py         the application's two deployments, and the life of `gradus deploy ray`
"""
