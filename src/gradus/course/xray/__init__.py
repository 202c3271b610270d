"""The X-ray: a run of an engine, recorded step by step, as one HTML page that a reader steps through.

Read in this order:

    scenes.py      the workload of each phase: small, and chosen so that its idea shows
    recording.py   an engine driven through a scene, and what the probe and the timeline saw, as plain dicts
    choices.py     the choices of each masked draw, drafts that grammars force or cut, and the experts of each row
    events.py      what happened in each step, in words
    reasons.py     the reasons, as sentences from recorded facts
    questions.py   what a reader may predict of a step
    places.py      the function behind each kind of event
    runs.py        a phase, the final engine or a student's files: built, and recorded
    words.py       numbers, pages and lists in sentences
    page.py        recordings to a page
    lanes/         runs of several workers on one axis of time: p12's ranks, p13's messages

The folder `web` has the page: page.html, page.css; start.js, then run.js or lanes.js, which draw, then page.js, which
steps (with shared.js and shared.css of gradus.server.xray, as the live X-ray).
"""
