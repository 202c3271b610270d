"""The live X-ray: what a running engine does, for those who watch.

    engine ── Watched ──▶ picture ── events ──▶ watchers

The engine looks at itself only while somebody watches (`gradus.server.engine.watching`). Everybody gets the same
numbers; what names a request goes to its own key alone. Read in this order:

    picture.py     the newest state, from the engine's messages, and the last steps
    trace.py       the last steps as a Chrome trace
    watchers.py    who watches, and what each gets
    view.py        the view for a page: shared.js and shared.css, which the lessons' X-ray draws with, too; live.js and
                   live.css
"""
