"""The student writes what judges a server under load: goodput, a search for the knee, and a router for replicas."""

from gradus.exercises import Exercise

TESTS = "tests/phases/test_promises_load.py"

GOODPUT = Exercise(
    file="phases/p13_serving/load/goodput.py",
    functions={
        "tpot": (
            "How many gaps are there between the first and the last of n tokens? What about an answer of one?",
            "From the first to the last token, divided by one less than the tokens. Return None for fewer than two "
            "tokens, or where a time is missing.",
            "if record.first is None or record.last is None or record.tokens < 2: return None · return (record.last - "
            "record.first) / (record.tokens - 1)",
        ),
        "met": (
            "Which requests have got no whole answer, however fast their first token was?",
            "One that failed, or lacks its first or its last token, has not met anything. Of the others, both times "
            "must be at most their limits; a request without a TPOT keeps any limit on it.",
            "if record.failed or record.ttft is None or record.last is None: return False · return record.ttft <= "
            "objective.ttft and (tpot(record) or 0.0) <= objective.tpot",
        ),
        "goodput": (
            "A slow server answers late, or never. By which of its times must a request be put into the window, so "
            "that slowness cannot push it out?",
            "Take the requests that were due at `begin` or later and before `end`, good or not. The good ones per "
            "second of the window are the goodput; divided by all of them, failed ones included, they are the share. "
            "The share of no requests is 0.",
            "due = [record for record in records if begin <= record.at < end] · good = sum(met(record, objective) for "
            "record in due) · return good / (end - begin), good / len(due) if due else 0.0",
        ),
    },
    text="Judge a recorded load: which requests got what they were promised, and how many of them per second?",
    why={
        "tpot": (
            "n tokens have n - 1 gaps. With the first token's time in it, TPOT would grow with the queue, which TTFT "
            "measures already. An answer of one token has no gap, and no pace that could be judged."
        ),
        "met": (
            "A failed request often has a splendid TTFT: it was refused at once, or broke off after ten tokens. Both "
            "limits count for the same request; two percentages of two metrics say nothing about their overlap."
        ),
        "goodput": (
            "The window is chosen by the times at which requests were due, which the server cannot change. Counting "
            "by the last token would leave out the requests that an overloaded server has not answered yet, which are "
            "the ones that matter. [begin, end) puts a request between two windows into exactly one of them."
        ),
    },
    alone=TESTS,
)

KNEE = Exercise(
    file="phases/p13_serving/load/knee.py",
    functions={
        "kept": (
            "At 4 a server fails, and at 5 it passes. Would you promise 5?",
            "Leave out points that are not valid. Find the lowest rate whose p99 is above the limit. Of the rates "
            "below that one, return the highest, or 0.",
            "known = [point for point in points if valid(point, limit)] · failed = min((point.rate for point in known "
            "if point.p99 > limit), default=float('inf')) · return max((point.rate for point in known if point.rate < "
            "failed), default=0.0)",
        ),
        "passes": (
            "Two of three probes agree. Is the third one worth its time? And what does a probe say whose client was "
            "late?",
            "Count probes that keep the limit and probes that do not, until one count is more than half of `tries`. "
            "Check each point before it counts, and raise LateClient for one that is not valid.",
            "votes = [0, 0] · while max(votes) <= tries // 2: point = probe(rate); if not valid(point, limit): raise "
            "LateClient(f'at {rate:g} requests/s the client was {point.late:.3f} s late'); "
            "votes[point.p99 <= limit] += 1 · return votes[True] > tries // 2",
        ),
        "find": (
            "`low` always passes and `high` always fails: which two cases end the search before that holds? When are "
            "they near enough?",
            "Return 0 if `low` fails, and `high` if that passes. While `high` is above (1 + precision) times `low`, "
            "try the square root of their product, and let it become the new `low` or the new `high`.",
            "if not passes(probe, low, limit, tries): return 0.0 · if passes(probe, high, limit, tries): return high · "
            "while high > low * (1 + precision): middle = (low * high) ** 0.5; if passes(probe, middle, limit, tries): "
            "low = middle; else: high = middle · return low",
        ),
    },
    text="Find the highest rate at which a server keeps an objective, though probes are noisy and some are invalid.",
    why={
        "kept": (
            "Load only makes waits longer, so a pass above a failure is luck: few requests decide a p99. The lowest "
            "failure ends what can be promised. A point whose client was late belongs to another load, so it proves "
            "neither a failure nor a pass."
        ),
        "passes": (
            "If a probe errs once in five times, a majority of three errs once in ten. Most rates are far from the "
            "knee, where two probes agree, so stopping early saves nearly a third of the time."
        ),
        "find": (
            "The invariant is that `low` has passed and `high` has failed, so both are tried first. The middle of a "
            "ratio takes equally many steps for 1 to 64 as for 10 to 640. The result is a rate that was really "
            "probed, and the one that passed: `high` is only known to fail."
        ),
    },
    alone=TESTS,
)

ROUTER = Exercise(
    file="phases/p13_serving/load/router.py",
    functions={
        "names": (
            "Two prompts have the same second block, but another first one. Do keys and values of the second block "
            "agree? And which prompts must not share, though all of their tokens agree?",
            "Begin with the digest of the salt. For each full block, hash the digest before it together with the "
            "block's tokens: that is the block's name, and the digest before the next one. An incomplete block at the "
            "end has no name.",
            "found, before = [], blake2b(salt.encode()).digest() · for start in range(0, len(prompt) - "
            "size + 1, size): block = ','.join(map(str, prompt[start : start + size])); before = blake2b(before + "
            "block.encode()).digest(); found.append(before) · return found",
        ),
        "Replica.matched": (
            "The first block was evicted, and the second is still there. How much of the prompt can be reused?",
            "Count names from the beginning, up to the first that is not in `known`.",
            "return next((place for place, name in enumerate(prompt) if name not in self.known), len(prompt))",
        ),
        "Replica.take": (
            "A dictionary keeps the order in which its keys were added. What puts a name that is there already at the "
            "end? Which of a prompt's blocks should be dropped first?",
            "Go through the prompt's names from the last to the first; take each one out of `known`, if it is there, "
            "and add it again. Then delete from the front while there are more names than `room`.",
            "for name in reversed(prompt): self.known.pop(name, None); self.known[name] = None · while "
            "len(self.known) > self.room: del self.known[next(iter(self.known))]",
        ),
        "choose": (
            "When must the longest prefix not decide? And what decides where two replicas know equally much?",
            "If the largest `inside` is more than `bound` above the smallest, return the first replica with the "
            "smallest. Otherwise take the one with the most matched blocks; if several have as many, the one with "
            "fewer requests inside, and then the first.",
            "numbers = range(len(replicas)) · loads = [replica.inside for replica in replicas] · if max(loads) - "
            "min(loads) > bound: return loads.index(min(loads)) · return max(numbers, key=lambda number: "
            "(replicas[number].matched(prompt), -loads[number], -number))",
        ),
    },
    text="Send each request to the replica that knows most of its prompt, unless that one has too much to do.",
    why={
        "names": (
            "A block's keys and values depend on everything before it, so its name must, too; then one look-up per "
            "block finds the longest prefix. The salt is part of the first name, and by that of all. The commas keep "
            "the tokens 1, 23 apart from 12, 3."
        ),
        "Replica.matched": (
            "Attention needs all keys from the beginning. A block behind a gap is computed again, whatever the cache "
            "still has of it."
        ),
        "Replica.take": (
            "Least recently used, and the ends first: what goes is the end of the prompt that was unused for longest. "
            "Added from the beginning on, a popular system prompt would lose its first block first, and with it all "
            "others."
        ),
        "choose": (
            "The bound is on the difference, because that is what the next request would wait for. Below it a hit "
            "saves more than a slightly shorter queue. New prompts match nothing anywhere, so they go to the idlest, "
            "and spread the prefixes."
        ),
    },
    alone=TESTS,
)

EXERCISES = (GOODPUT, KNEE, ROUTER)
