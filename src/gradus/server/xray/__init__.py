"""The live X-ray: a running engine's state, for clients that watch.

    engine ── Watched ──▶ picture ── events ──▶ watchers

The engine looks at itself only while a client watches (`gradus.server.engine.watching`). All watchers get the same
numbers; the name of a request goes to its own key alone. Read in this order:

    picture.py     the newest state, from the engine's messages, and the last steps
    trace.py       the last steps as a Chrome trace
    watchers.py    the clients that watch, and their events
    view.py        the view for a page: shared.js and shared.css, which the lessons' X-ray draws with, too; live.js and
                   live.css
"""
