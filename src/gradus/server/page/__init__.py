"""The page at `/`: a chat with the served models and the live X-ray, in one HTML document that loads nothing else.

It is plain JavaScript, without a build step or a library. The browser alone keeps conversations. Read in this order:

    document.py        joins the files below into one document, and writes its headers
    page.html          the document's skeleton;  page.css: its looks
    dom.js             elements, and what only browsers have: clipboard, files
    inline.js          emphasis, code and links in a line of text, as nodes
    markdown.js        an answer's blocks, as its text arrives: each character is read once
    wire.js            requests with the page's key, events of a stream, errors in the server's words
    store.js           conversations in the browser's storage, within bounds
    settings.js        the form: system text, sampling, tools
    request.js         a conversation as a request's body, and as a curl command
    answer.js          one answer: streamed, stopped, tried again
    messages.js        messages on the screen: edit, regenerate, calls of tools
    status.js          the server's state, and the models that it serves
    main.js            the page's parts, joined, the live X-ray (gradus.server.xray) among them; keys
"""
