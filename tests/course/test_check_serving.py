"""The mistakes that p13 invites are caught, and the check says in a sentence what is wrong."""

from pathlib import Path

import pytest

from gradus import phases
from tests.course.conftest import exercise_of, mistakes, reference

WRONG = {
    # the file, the right text, the wrong text, what the sentence must say
    "one too many gets in": (
        "admission.py",
        "self.inside == self.places",
        "self.inside > self.places",
        "3 places are taken, so a fourth request must be refused; yours let it in",
    ),
    "a refused request takes a place": (
        "admission.py",
        "        if self.inside == self.places:\n",
        "        self.inside += self.inside == self.places\n        if self.inside >= self.places:\n",
        "one place is free, for one request",
    ),
    "the pace ends with the last departure": (
        "admission.py",
        "elapsed = self.clock() - self.departures[0]",
        "elapsed = self.departures[-1] - self.departures[0]",
        "1 left in 10 s, and the 8 s since then count: 10 s; yours says 2",
    ),
    "the beginning counts as a departure": (
        "admission.py",
        "gone = len(self.departures) - 1",
        "gone = len(self.departures)",
        "2 left in 6 s: 3 s; yours says 2",
    ),
    "idle time counts": (
        "admission.py",
        "        if self.inside == 0:  #",
        "        if not self.departures:  #",
        "none has left in the 2 s since: 2 s; yours says",
    ),
    "one line end in two": (
        "events.py",
        'message.replace("\\r\\n", "\\n").replace("\\r", "\\n")',
        'message.replace("\\r", "\\n")',
        r"is framed as b'data: a\ndata: b\ndata: c\n\n'",
    ),
    "lines are split as Python splits them": (
        "events.py",
        'message.replace("\\r\\n", "\\n").replace("\\r", "\\n").split("\\n")',
        "message.splitlines()",
        r"'' is framed as b'data: \n\n'",
    ),
    "the other line ends stay": (
        "events.py",
        'text = text.replace(end, f"\\\\u{ord(end):04x}")',
        "pass",
        "must be escaped",
    ),
    "NaN is sent": ("events.py", ", allow_nan=False", "", "NaN is no JSON, so encode raises ValueError; yours returns"),
    "each token is searched by itself": (
        "text.py",
        "text = self.held + self.decoder.decode(added)",
        "text = self.decoder.decode(added)",
        "with stop ['END'] is 'hi ', stopped by 'END'; yours",
    ),
    "the stop that begins first wins": (
        "text.py",
        "(text.find(stop) + len(stop), text.find(stop), stop)",
        "(text.find(stop), text.find(stop), stop)",
        "is 'ab', stopped by 'c'",
    ),
    "what was held is lost": (
        "text.py",
        'held, self.held = self.held + self.decoder.decode(b"", final=True), ""',
        'held, self.held = self.decoder.decode(b"", final=True), ""',
        "with stop ['END'] is 'a EN', stopped by None; yours: 'a '",
    ),
    "the shortest beginning waits": (
        "text.py",
        "max(sizes, default=0)",
        "min(sizes, default=0)",
        "with stop ['aab'] is 'a', stopped by 'aab'; yours: 'aaab', by None",
    ),
    "the engine is not told": (
        "desk.py",
        "            self.close(stream, tell=True)\n",
        "            self.close(stream)\n",
        "the engine must be told to cancel it; yours sent []",
    ),
    "the door stays open": (
        "desk.py",
        'self.state, self.retry_after = "draining", max(1, math.ceil(seconds))',
        "self.retry_after = max(1, math.ceil(seconds))",
        "a server that drains lets nobody in",
    ),
    "the drain takes all of its time": (
        "desk.py",
        "await asyncio.wait_for(self.empty.wait(), seconds)",
        "await asyncio.sleep(seconds)\n            raise TimeoutError",
        "a drain ends with the last request and not before",
    ),
    "the rest is left inside": (
        "desk.py",
        "            for stream in list(self.streams.values()):\n                self.cancel(stream)\n\n",
        "            pass\n\n",
        "one had ended, two are cancelled",
    ),
    "what is cancelled is walked through": (
        "desk.py",
        "            for stream in list(self.streams.values()):\n                self.cancel(stream)\n",
        "            for stream in self.streams.values():\n                self.cancel(stream)\n",
        "dictionary changed size during iteration",
    ),
    "what was held comes again behind the stop": (
        "text.py",
        '            self.held = ""\n            return text[:start]',
        "            return text[:start]",
        "EN was held back and became END, which ends the text: ('a ', '', ''), the last one by `rest`; yours: "
        "('a ', '', 'EN')",
    ),
    "the last place of a stop counts": (
        "text.py",
        "(text.find(stop) + len(stop), text.find(stop), stop)",
        "(text.rfind(stop) + len(stop), text.rfind(stop), stop)",
        "with stop ['END'] is 'a ', stopped by 'END'; yours: 'a END b '",
    ),
    "half a character is forgotten": (
        "text.py",
        'self.held + self.decoder.decode(b"", final=True), ""',
        'self.held, ""',
        "the end leaves half a character, which becomes a replacement one",
    ),
    "a token is decoded by itself": (
        "text.py",
        "self.held + self.decoder.decode(added)",
        'self.held + added.decode("utf-8", "replace")',
        "with stop ['€!'] is '1', stopped by '€!'; yours",
    ),
    "each request begins the pace anew": (
        "admission.py",
        "        if self.inside == 0:",
        "        if self.inside >= 0:",
        "begun at 100 s, 2 left in 6 s: 3 s; yours says 1",
    ),
    "the seconds are in the text alone": (
        "admission.py",
        ', "overloaded", retry_after=seconds)',
        ', "overloaded")',
        "Retry-After is a whole number of seconds; yours: None",
    ),
    "empty lines are left out": (
        "events.py",
        "for line in lines)",
        "for line in lines if line)",
        "'' is framed as b'data: \\n\\n'; yours: b'\\n'",
    ),
    "the reader is not woken": (
        "desk.py",
        '            stream.end("cancelled")\n            self.close',
        "            self.close",
        "the stream's reader wakes up, since nothing more will come; yours still waits after 1 s",
    ),
    "a drain has no end": (
        "desk.py",
        "self.empty.wait(), seconds)",
        "self.empty.wait(), None)",
        "after 0.02 s the drain cancels them and ends; yours still waits after 2 s",
    ),
    "the door closes when the time is up": (
        "desk.py",
        '        self.state, self.retry_after = "draining", max(1, math.ceil(seconds))\n        try:\n'
        "            await asyncio.wait_for(self.empty.wait(), seconds)\n        except TimeoutError:\n",
        "        try:\n            await asyncio.wait_for(self.empty.wait(), seconds)\n"
        '        except TimeoutError:\n            self.state, self.retry_after = "draining", max(1, '
        "math.ceil(seconds))\n",
        "b comes after the drain has begun, and must be refused; yours let it in",
    ),
}


@pytest.mark.parametrize("mistake", mistakes(WRONG))
def test_a_wrong_solution_is_caught_and_explained(checked, mistake):
    name, right, wrong, says = WRONG[mistake]
    source = reference("p13", name)
    if right not in source:  # the end of the file
        right, wrong = right.rstrip("\n") + "\n", wrong.rstrip("\n") + "\n"
    assert source.count(right) == 1
    verdict = checked("p13", source.replace(right, wrong), exercise_of(phases.find("p13"), Path(name)))
    assert not verdict.passed
    assert says in verdict.sentence, verdict.sentence
    assert verdict.test.startswith("tests/phases/test_promises_serving.py") and "\n" not in verdict.sentence
