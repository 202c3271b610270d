"""The student writes what keeps a server upright: a bounded queue, frames, stop strings, and an orderly end.

The second half's exercises are in `load/exercise.py`.
"""

from gradus.exercises import Exercise
from phases.p13_serving.load.exercise import EXERCISES as LOAD

TESTS = "tests/phases/test_promises_serving.py"

ADMISSION = Exercise(
    file="phases/p13_serving/admission.py",
    functions={
        "Admission.enter": (
            "A request takes a place, or is refused because there is none. What else begins when the first request "
            "enters an empty server?",
            'With all places taken, raise Refused with the kind "overloaded" and `retry_after`. Into an empty server '
            "comes the first request of a busy period: forget the departures, and put the time of this moment in "
            "their place. Then count one more.",
            "if self.inside == self.places: seconds = self.retry_after(); raise Refused(f'the queue is full: try again "
            "in {seconds} s', 'overloaded', retry_after=seconds) · if self.inside == 0: self.departures.clear(); "
            "self.departures.append(self.clock()) · self.inside += 1",
        ),
        "Admission.leave": (
            "Every departure changes two things. One is a number. What determines the pace?",
            "Count one less, and append the time to the departures.",
            "self.inside -= 1 · self.departures.append(self.clock())",
        ),
        "Admission.retry_after": (
            "How long has it taken until one request left, on average, over the departures that are remembered? Does "
            "the time since the last departure count?",
            "The first entry of `departures` is where the measuring begins, and every further one is a request that "
            "left. Divide the time from the first entry until *now* by their number, or by 1 if none has left yet. "
            "Make it at least 1 and at most MOST_RETRY_S, and round up.",
            "gone = len(self.departures) - 1 · elapsed = self.clock() - self.departures[0] · return "
            "math.ceil(min(max(elapsed / max(gone, 1), 1), MOST_RETRY_S))",
        ),
    },
    text="Bound the number of requests inside, and compute when one that is refused should come back.",
    why={
        "Admission.enter": (
            "Checking and counting happen without an await between them: two requests can't take the last place "
            "together. Idle time says nothing about the pace, so an empty server starts to measure anew."
        ),
        "Admission.leave": (
            "A place becomes free however the request ended: it was answered, its client left, or its prompt was "
            "refused. A refused client needs a place, so all endings count."
        ),
        "Admission.retry_after": (
            "Up to now, not up to the last departure: if the engine hangs, the estimate grows by itself. At least a "
            "second, because the header has whole seconds and 0 would mean at once. At most a minute, because a bad "
            "estimate should not send anyone away for long."
        ),
    },
    alone=TESTS,
)

EVENTS = Exercise(
    file="phases/p13_serving/events.py",
    functions={
        "encode": (
            "JSON escapes the line ends that it knows. Which characters does it leave unescaped at which Python's "
            "`splitlines` splits?",
            "Use json.dumps without `ensure_ascii` (text stays short and readable), without blanks, and with "
            "allow_nan=False. Then replace each of LINE_ENDS by its escape: a backslash, u and four hexadecimal "
            "digits. They can only be inside strings, where the escape means the same.",
            "text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(',', ':')) · for end in "
            "LINE_ENDS: text = text.replace(end, f'\\\\u{ord(end):04x}') · return text",
        ),
        "event": (
            "A line of a stream is either `data: ` and text, or empty, which ends the event. What if the message has "
            "several lines itself?",
            "Bring all line ends into one form (mind that \\r\\n is one and not two), and split there. Every line gets "
            "`data: ` in front, also an empty one. A last empty line ends the event. Encode as UTF-8.",
            "lines = message.replace('\\r\\n', '\\n').replace('\\r', '\\n').split('\\n') · return ''.join(f'data: "
            "{line}\\n' for line in lines).encode() + b'\\n'",
        ),
    },
    text="Frame messages as server-sent events, so that every client reads what was sent.",
    why={
        "encode": (
            "One line is the safest form of an event, because there is nothing for a client to put together wrongly. "
            "Replacing in the finished text is right: outside strings JSON has no such character. NaN is no JSON, and "
            "most clients would fail on it."
        ),
        "event": (
            "The order of the two replacements makes \\r\\n one line end. `split` keeps empty lines at both ends; "
            "`splitlines` would lose the last one, and also cut at characters that end no line of a stream."
        ),
    },
    alone=TESTS,
)

TEXT = Exercise(
    file="phases/p13_serving/text.py",
    functions={
        "Text.take": (
            "Join the held text and the new text. Do they contain a complete stop string? If not, which part must wait "
            "this time?",
            "Join `held` and what the decoder makes of the bytes. Of the stop strings in it, the one that ends first "
            "counts: note it in `stop`, hold nothing, and return what is before it. If there is none, hold back as "
            "many characters as `beginning` says, and return the others.",
            "text = self.held + self.decoder.decode(added) · found = [(text.find(stop) + len(stop), text.find(stop), "
            "stop) for stop in self.stops if stop in text] · if found: _, start, self.stop = min(found); self.held = "
            "''; return text[:start] · certain = len(text) - beginning(text, self.stops) · self.held = text[certain:] "
            "· return text[:certain]",
        ),
        "Text.rest": (
            "No further token comes, so the held text is text after all. Which bytes may still be in the decoder?",
            "Return `held`, and after it the decoder's last words: decode(b'', final=True) makes half a character a "
            "replacement character. Hold nothing any more.",
            "held = self.held + self.decoder.decode(b'', final=True) · self.held = '' · return held",
        ),
        "beginning": (
            "Which ends of `text` are also beginnings of a stop string? How many are there to compare?",
            "Of every stop string try each proper beginning, from one character to all but one. The longest one that "
            "`text` ends with counts; 0 if there is none.",
            "sizes = [size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size])] · return "
            "max(sizes, default=0)",
        ),
    },
    text="Turn tokens into text that can be sent, and end it at a stop string, wherever tokens divide it.",
    why={
        "Text.take": (
            "Searching in the text that was held back and the new text together is enough: anything earlier can't be "
            "part of a stop string, or it would have been held back. The smallest end wins, so the result does not "
            "depend on where tokens end."
        ),
        "Text.rest": (
            "An answer that ends for another reason owes its client the held text. Forgetting it is the commonest "
            "mistake here, and shows only in answers that happen to end with such a beginning."
        ),
        "beginning": (
            "A handful of comparisons per token costs little next to a step. Longer is safer: all characters from the "
            "earliest possible beginning on wait, and a shorter one inside them waits as well."
        ),
    },
    alone=TESTS,
)

DESK = Exercise(
    file="phases/p13_serving/desk.py",
    functions={
        "Desk.cancel": (
            "The client has left. Which parts must learn of it, and what if the answer ended a moment ago?",
            "Do nothing if the stream is not among `self.streams` any more. Otherwise end the stream with the reason "
            '"cancelled", which also wakes its reader, and close it with tell=True so that the engine cancels it.',
            "if stream.request.id in self.streams: stream.end('cancelled'); self.close(stream, tell=True)",
        ),
        "Desk.drain": (
            "Three things in order: admission, the requests inside, and the clock. What do requests get that are still "
            "running when the time is up?",
            'Set `state` to "draining", and `retry_after` to the seconds, rounded up, at least 1. Wait for '
            "`self.empty` with asyncio.wait_for; on TimeoutError, cancel every stream. Go through a copy: `cancel` "
            "takes them out of the dictionary.",
            "self.state, self.retry_after = 'draining', max(1, math.ceil(seconds)) · try: await "
            "asyncio.wait_for(self.empty.wait(), seconds) · except TimeoutError: for stream in "
            "list(self.streams.values()): self.cancel(stream)",
        ),
    },
    text="End a request whose client has left, and end the whole server without cutting an answer in the middle.",
    why={
        "Desk.cancel": (
            "It may be called several times: by the watcher, by the ending response, and by drain. Only the "
            "dictionary says whether the stream is still open, so the place is given back exactly once."
        ),
        "Desk.drain": (
            "Admission stops first, or the wait would never end on a busy server. Waiting for an event returns with "
            "the last request, not at the end of the time. A request that is cancelled still gets its last frame, "
            "which says so: a stream that just breaks off looks like a fault of the network."
        ),
    },
    alone=TESTS,
)

EXERCISES = (ADMISSION, EVENTS, TEXT, DESK, *LOAD)
