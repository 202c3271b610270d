"""Headless Chromium, driven through a pipe by its DevTools protocol: no other program, and no socket."""

import base64
import fcntl
import itertools
import json
import os
import select
import shutil
import time
from contextlib import contextmanager

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run", "--mute-audio",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--disable-dev-shm-usage", "--force-color-profile=srgb", "--host-resolver-rules=MAP *.example.org 127.0.0.1",
]  # fmt: skip
SAID = ("network", "other")  # sources of the log that say how a request ended, or which header does nothing over http
KEYS = {"Enter": 13, "Escape": 27, "Tab": 9}


class Browser:
    """One process, for any number of tabs with a storage of their own."""

    def __init__(self, folder):
        reads, self._out = os.pipe()
        self._in, writes = os.pipe()
        high = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 100) for each in (reads, writes)]
        actions = [(os.POSIX_SPAWN_DUP2, high[0], 3), (os.POSIX_SPAWN_DUP2, high[1], 4)]
        log = os.open(folder / "browser.log", os.O_CREAT | os.O_WRONLY, 0o600)
        actions += [(os.POSIX_SPAWN_DUP2, log, 1), (os.POSIX_SPAWN_DUP2, log, 2)]
        arguments = [BROWSER, *FLAGS, f"--user-data-dir={folder}/profile", "about:blank"]
        self._pid = os.posix_spawn(BROWSER, arguments, os.environ, file_actions=actions)
        for each in (reads, writes, *high, log):
            os.close(each)
        self._numbers, self._held, self._answers, self.events = itertools.count(1), b"", {}, []

    def call(self, method, session=None, seconds=30, **params):
        """Send a command and return its result."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        end = time.monotonic() + seconds
        while number not in self._answers:
            self._read(end - time.monotonic(), method)
        answer = self._answers.pop(number)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def _read(self, seconds, method):
        ready, _, _ = select.select([self._in], [], [], max(seconds, 0))
        assert ready, f"{method}: the browser does not answer"
        data = os.read(self._in, 1 << 16)
        assert data, f"{method}: the browser is gone"
        *messages, self._held = (self._held + data).split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self._answers[message["id"]] = message
            else:
                self.events.append(message)

    @contextmanager
    def tab(self, url, width=1280, height=800, dark=False, before=""):
        """A tab with nothing stored. before: a script that runs before the page's own. Errors of the page are ours."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.call(f"{domain}.enable")
        tab.size(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        tab.call("Emulation.setEmulatedMedia", features=[scheme])
        if before:
            tab.call("Page.addScriptToEvaluateOnNewDocument", source=before)
        tab.go(url)
        try:
            yield tab
            assert tab.errors() == [], tab.errors()
        finally:
            self.call("Target.disposeBrowserContext", browserContextId=context)
            self.events = [each for each in self.events if each.get("sessionId") != session]

    def close(self):
        self.call("Browser.close")
        os.waitpid(self._pid, 0)
        os.close(self._out)
        os.close(self._in)


class Tab:
    def __init__(self, browser, session):
        self._browser, self._session = browser, session

    def call(self, method, **params):
        return self._browser.call(method, session=self._session, **params)

    def go(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def reload(self):
        self.run("globalThis.old = true")
        self.call("Page.reload")
        self.wait("document.readyState === 'complete' && !globalThis.old")

    def size(self, width, height):
        mobile = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)

    def run(self, script):
        """The value of an expression; a promise's, once it has one."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, condition, seconds=20):
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not (found := self.run(condition)):
            assert time.monotonic() < end, (condition, self.text("body"))
            time.sleep(0.02)
        return found

    def text(self, selector):
        return self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? null")

    def click(self, selector):
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def press(self, key, modifiers=0):
        """Press a key by its name. modifiers: 8 is Shift."""
        code = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key], "modifiers": modifiers}
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **code, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **code)

    def write(self, selector, text):
        """Replace a field's text by typing. Opens the form around the field."""
        open_form = "it.closest('details')?.setAttribute('open', ''); it.focus(); it.select()"
        self.run(f"{{ const it = document.querySelector({json.dumps(selector)}); {open_form} }}")
        self.call("Input.insertText", text=text)

    def errors(self):
        """Exceptions of the page, and what its policy has blocked. A failed request is no error of the page."""
        self.run("0")  # reads what has happened by now
        mine = [each for each in self._browser.events if each.get("sessionId") == self._session]
        thrown = [each["params"] for each in mine if each["method"] == "Runtime.exceptionThrown"]
        entries = [each["params"]["entry"] for each in mine if each["method"] == "Log.entryAdded"]
        return thrown + [entry for entry in entries if entry["level"] == "error" and entry["source"] not in SAID]

    def requests(self):
        """(method, address) of every request of the page."""
        mine = [each for each in self._browser.events if each.get("sessionId") == self._session]
        sent = [each["params"]["request"] for each in mine if each["method"] == "Network.requestWillBeSent"]
        return [(each["method"], each["url"]) for each in sent]

    def picture(self, path):
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))
