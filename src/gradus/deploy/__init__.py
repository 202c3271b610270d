"""Replicas of the server on Ray Serve: one address, several engines, and a router that knows their prefixes.

    client ── front: reads a request, hashes its beginning ── replica: the server's application
                └─ Ray: chooses a replica, and counts its requests

Each replica has the same ASGI application as `gradus serve`, over an engine process of its own. Ray starts, watches,
chooses and replaces replicas; tokens do not pass through it. It is imported only where a deployment starts, and is an
extra of the package. Read in this order:

    prefixes.py    a prompt's beginning as salted hashes of its blocks; which of them a replica served recently
    choice.py      the router's choice: longest known prefix, unless the load is too uneven
    answer.py      an HTTP answer as bytes that pass through
    front.py       what clients connect to: passes requests to replicas, and their bytes back
    replica.py     the server's application and its engine, with Ray's hooks for admission, health, routing and shutdown
    router.py      the choice as Ray's RequestRouter
    run.py         the two applications, and the life of `gradus deploy ray`

Without Ray, runner.py runs a model in a process of its own, for an engine in another: `gradus deploy runner`.
"""
