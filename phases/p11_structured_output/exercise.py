"""The student turns bytes into masks: an automaton that is in one state, the tokens that it can follow, an answer."""

from gradus.exercises import Exercise

AUTOMATON = Exercise(
    file="phases/p11_structured_output/dfa.py",
    functions={
        "closure": (
            "From each of the states you can go on along its jumps, and from there along further ones. How do you make "
            "sure that you come to an end where jumps lead back?",
            "Keep two collections: the states that you have found, and those whose jumps you have yet to look at. A "
            "jump to a state that you have found already adds nothing. Return a frozenset of those that have moves, or "
            "no jumps: the others have done their work.",
            "found, left = set(states), list(states) · while left: for state in nfa.jumps[left.pop()]: if state not in "
            "found: found.add(state); left.append(state) · return frozenset(state for state in found if "
            "nfa.moves[state] or not nfa.jumps[state])",
        ),
        "moved": (
            "A move is (first byte, last byte, next state), and a byte may have moves from several of the states. What "
            "do you keep for each byte?",
            "A dictionary from byte to a set of states. Each move adds its next state for every byte of its range; "
            "`setdefault(byte, set())` makes the set where there is none. Jumps are not this function's concern.",
            "behind = {} · for state in states: for first, last, target in nfa.moves[state]: for byte in range(first, "
            "last + 1): behind.setdefault(byte, set()).add(target) · return behind",
        ),
        "subsets": (
            "A state of the new automaton is a set of the old one's. Which set does it begin in, and which sets do you "
            "get from one by each byte?",
            "Begin with `closure(nfa, [0])`, which is state 0. For every set found, in order: `moved` gives the "
            "states by byte, and their `closure` is a set that has a number already, or gets the next one. Number "
            "MOST_STATES is too many: `raise too_large(MOST_STATES)`. A set accepts if `last` is in it.",
            "start = closure(nfa, [0]); numbers, found, steps = {start: 0}, [start], [] · for states in found: "
            "steps.append({}); for byte, targets in moved(nfa, states).items(): behind = closure(nfa, targets); if "
            "behind not in numbers: (if len(found) == MOST_STATES: raise too_large(MOST_STATES)); numbers[behind] = "
            "len(found); found.append(behind) · steps[-1][byte] = numbers[behind] · return Dfa(steps, [last in states "
            "for states in found])",
        ),
    },
    text="Turn an automaton that may be in many states at once into one that is in one state at a time. Three "
    "functions: the jumps, the moves, and the numbering of the sets that they lead to.",
    why={
        "closure": (
            "A frozenset can be a key, so two ways to the same states are noticed. Leaving out what only jumps makes "
            "more of them equal: fewer states, and fewer masks. The list of what is left takes the place of "
            "recursion, which a long expression would exhaust."
        ),
        "moved": (
            "Ranges are opened into single bytes here, once per state. Following a text is then one look-up per byte, "
            "and the walk through the vocabulary asks for nothing else."
        ),
        "subsets": (
            "The list of sets grows while the loop reads it, so it is queue and numbering at once. The limit is "
            "checked where a state is made: some expressions have exponentially many, and a server must refuse them "
            "before it has built them."
        ),
    },
)

MASKS = Exercise(
    file="phases/p11_structured_output/masks.py",
    functions={
        "legal": (
            "The list has each node followed by what is below it. Where do you go on if the automaton takes a node's "
            "byte, and where if it does not?",
            "If it takes the byte: note the state behind it for the next depth, collect the node's tokens, and go to "
            "the next place. If not, nothing below can be followed either: go to `after`. The state before a node's "
            "byte is the one that you noted for its depth.",
            "found, states, place = [], {0: state}, 0 · while place < len(tree): byte, depth, tokens, after = "
            "tree[place]; behind = dfa.steps[states[depth]].get(byte) · if behind is None: place = after · else: "
            "states[depth + 1] = behind; found += tokens; place += 1 · return found",
        ),
        "TokenMasks.mask": (
            "The walk takes up to tens of milliseconds, and answers come back to the same states again and again. "
            "What do you keep, and what do you hand out?",
            "Keep the mask of a state in `self.kept`: a byte for every token, 1 for those that `legal` lists. The "
            "caller will change what it gets, so give it a tensor over a copy: `torch.frombuffer`, of a new bytearray.",
            "if state not in self.kept: mask = bytearray(len(self.vocabulary)); for token in legal(self.tree, "
            "self.dfa, state): mask[token] = True · self.kept[state] = bytes(mask) · return "
            "torch.frombuffer(bytearray(self.kept[state]), dtype=torch.bool)",
        ),
    },
    text="Find the tokens that may come in a state of the automaton: one walk through a tree of the whole vocabulary. "
    "Then keep what was found.",
    why={
        "legal": (
            "The tree is a list in the order of the walk, so there is no recursion and no stack: `after` skips a "
            "branch, and the depth says which state to continue from. What an earlier branch noted for a depth is "
            "overwritten before it is read again."
        ),
        "TokenMasks.mask": (
            "Masks belong to states, not to requests, so all samples and all later requests with this expression share "
            "them, and each adds its own stop tokens to its copy. Bytes are copied by this thread alone, in a few "
            "microseconds; torch would divide the work among threads, and wait for them."
        ),
    },
)

ANSWER = Exercise(
    file="phases/p11_structured_output/matcher.py",
    functions={
        "Matcher.behind": (
            "Three kinds of tokens: text, tokens without bytes, and tokens that end the answer. Where does each lead?",
            "A token in `self.ends` adds no text; all others add their bytes. One without bytes that is not in "
            "`self.stops` may never come. Follow the bytes from the newest state. A token in `self.stops` ends the "
            "answer, so it may come only if the state behind it accepts.",
            'text = b"" if token in self.ends else self.masks.vocabulary[token] · if not text and token not in '
            "self.stops: return None · state = self.masks.dfa.follow(self.states[-1], text) · complete = state is not "
            "None and self.masks.dfa.accepting[state] · return state if complete or token not in self.stops else None",
        ),
        "Matcher.allowed": (
            "The masks that are kept know the text alone. Which tokens does the request add, and which does it forbid?",
            "Take the newest state's mask, and set each token of `self.stops` by `behind`: one that is text may be in "
            "the mask and yet not be allowed to come here.",
            "mask = self.masks.mask(self.states[-1]) · for token in self.stops: mask[token] = self.behind(token) is "
            "not None · return mask",
        ),
        "Matcher.advance": (
            "What must be true of a token before it counts?",
            "Ask `behind`. If it says None, raise ValueError and change nothing; else append the state.",
            "state = self.behind(token) · if state is None: raise ValueError(f'token {token} may not come next') · "
            "self.states.append(state)",
        ),
        "Matcher.roll_back": (
            "`states` has one entry more than the answer has tokens. What is left when the last ones are forgotten?",
            "Delete as many entries from the end. With 0 tokens nothing goes: mind that `states[-0:]` is all of them.",
            "del self.states[len(self.states) - tokens :]",
        ),
    },
    text="Follow one answer: what may come next, what a token leads to, and how to take tokens back.",
    why={
        "Matcher.behind": (
            "One rule covers all tokens that stop: the answer must be complete with them. For the end of sequence, "
            "which adds nothing, that means complete already; for a stop token that is text, complete behind it. "
            "Otherwise a request's own stop token could cut its answer in the middle."
        ),
        "Matcher.allowed": (
            "The kept mask stays free of stop tokens, because they are the request's, and the mask is everybody's. "
            "Asking `behind` for each of them keeps the rule in one place."
        ),
        "Matcher.advance": (
            "A token that may not come is a defect of the engine, since it masks every draw. It is better to fail here "
            "than to follow a state that does not exist."
        ),
        "Matcher.roll_back": (
            "Keeping every state costs one number per token, and makes going back exact for any distance, stop tokens "
            "included. An engine that undoes only text is off by one after the end of sequence."
        ),
    },
)

EXERCISES = (AUTOMATON, MASKS, ANSWER)
