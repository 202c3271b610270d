"""The student writes a forward pass in five small files; then the simplest scheduler."""

from gradus.exercises import Exercise

TESTS = "tests/phases/test_promises_forward.py"

EMBEDDING = Exercise(
    file="phases/p00_baseline/embedding.py",
    functions={
        "embed": (
            "Each token id is the number of a row of the table. What does a tensor give you if you index it with a "
            "tensor of row numbers?",
            "No loop is needed: a tensor indexed with a tensor of T row numbers gives those T rows, in that order.",
            "Index the table with the ids, and return what that gives: return table[token_ids]",
        ),
        "rms_norm": (
            "RMS is read backwards: the root of the mean of the squares. The mean is over the D numbers of one row. "
            "No mean is subtracted; that would be LayerNorm.",
            "Square x and take the mean over the last dimension. Keep that dimension (keepdim=True), so that the "
            "result is [T, 1] and each row is divided by its own number. Where does eps belong: inside the root or "
            "outside?",
            "mean_square = x.square().mean(dim=-1, keepdim=True); return x / (mean_square + eps).sqrt() * weight",
        ),
    },
    text="Look up a row for each token, and bring rows to a common size.",
    alone=TESTS,
)

ATTENTION = Exercise(
    file="phases/p00_baseline/attention.py",
    functions={
        "causal_mask": (
            "Draw it for three tokens. Row 0 sees one token, row 1 two, row 2 three.",
            "Compare column numbers with row numbers. torch.arange(length) as [1, T] and as [T, 1] gives both, and a "
            "comparison of the two is [T, T].",
            "places = torch.arange(length); return places[None, :] <= places[:, None]",
        ),
        "softmax": (
            "Two steps make the formula. A third one keeps it finite: what is exp(1000) in float32, and what may you "
            "subtract from all numbers of a row without changing the result?",
            "Subtract the largest number of each row (amax over the last dimension, with keepdim=True), take exp, and "
            "divide by the sum of each row (keepdim=True again).",
            "largest = scores.amax(dim=-1, keepdim=True); powers = (scores - largest).exp(); return powers / "
            "powers.sum(dim=-1, keepdim=True)",
        ),
        "attend": (
            "The formula has four steps: products of all queries with all keys, the scale, the mask, and the weighted "
            "mean of values. Write the shape behind each.",
            "q @ k.T is [T, T]. Divide it by the root of Dh, which is q.shape[-1]. The mask comes before softmax: "
            "a score of minus infinity becomes a weight of 0, and each row still adds up to 1.",
            "scores = q @ k.T / q.shape[-1] ** 0.5; scores = scores.masked_fill(~causal_mask(len(q)), -torch.inf); "
            "return softmax(scores) @ v",
        ),
    },
    text="Let each token take a weighted mean of what it and the tokens before it offer.",
    alone=TESTS,
)

ROPE = Exercise(
    file="phases/p00_baseline/rope.py",
    functions={
        "angles": (
            "The angle is a product: the position, times the speed of the pair. You need it for each of T positions "
            "and each of Dh/2 pairs.",
            "The speed of pair i is 1 / theta^(2i / Dh), with i from 0 to Dh/2 - 1. Positions begin at 0. A [T, 1] "
            "tensor times a [1, Dh/2] tensor is [T, Dh/2].",
            "positions = torch.arange(length); pairs = torch.arange(head_dim // 2); speeds = 1 / theta ** (2 * pairs / "
            "head_dim); return positions[:, None] * speeds[None, :]",
        ),
        "rotate": (
            "A pair is not two neighbors: number i belongs with number i + Dh/2. So the first half of a head holds all "
            "a, and the second half all b.",
            "Cut x into its halves a and b with x.chunk(2, dim=-1). All heads of a token turn by the same angles, so "
            "give cos and sin a dimension of 1 where x has its heads. Then write down the formula of the docstring, "
            "and join both halves with torch.cat.",
            "cos, sin = turns.cos()[:, None, :], turns.sin()[:, None, :]; a, b = x.chunk(2, dim=-1); return "
            "torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)",
        ),
    },
    text="Give queries and keys their positions by turning them.",
    alone=TESTS,
)

HEADS = Exercise(
    file="phases/p00_baseline/heads.py",
    functions={
        "split": (
            "The numbers stay in their order. Only the shape changes.",
            "reshape takes -1 for a dimension that it can work out itself. The order is [T, H, Dh]: the Dh numbers of "
            "one head lie side by side.",
            "Only the head's width is fixed: return x.reshape(len(x), -1, head_dim)",
        ),
        "attend_grouped": (
            "`attend` does one head. Which key head does query head h read, if the first three read head 0 and the "
            "next three head 1?",
            "There are Hq // Hkv query heads per key head: call it group. Query head h reads key and value head h // "
            "group. All tokens of head h are q[:, h], of shape [T, Dh]. The results go side by side with torch.stack "
            "along dimension 1.",
            "group = q.shape[1] // k.shape[1]; heads = [attend(q[:, h], k[:, h // group], v[:, h // group]) for h in "
            "range(q.shape[1])]; return torch.stack(heads, dim=1)",
        ),
    },
    text="Cut rows into heads, and let several query heads share one head of keys and values.",
    alone=TESTS,
)

SAMPLING = Exercise(
    file="phases/p00_baseline/sampling.py",
    functions={
        "keep_top": (
            "The result has as many numbers as the logits, in the same places. Which logit is the smallest that stays?",
            "logits.topk(count).values are the largest ones, in falling order, so its last is the smallest that stays. "
            "masked_fill replaces what is below it. Which number becomes a probability of 0?",
            "smallest = logits.topk(count).values[-1]; return logits.masked_fill(logits < smallest, -torch.inf)",
        ),
        "sample": (
            "Three steps: cut and scale the logits, make probabilities of them, and find the piece that holds the "
            "draw. What does a temperature below 1 do to the gaps between logits?",
            "Divide the logits by the temperature before softmax. cumsum gives the end of each piece. The number of "
            "pieces that end at the draw or before it is the number of the piece that holds it. Add in float64: in "
            "float32 the last piece may end below the draw.",
            "logits = keep_top(logits, top_k).double() / temperature; probabilities = softmax(logits); ends = "
            "probabilities.cumsum(dim=0); return int((ends <= draw * ends[-1]).sum())",
        ),
    },
    text="Draw a token: cut the unlikely ones off, and pick by a number from 0 to 1.",
    alone=TESTS,
)

FORWARD = (EMBEDDING, ATTENTION, ROPE, HEADS, SAMPLING)

SCHEDULER = Exercise(
    file="phases/p00_baseline/scheduler.py",
    functions={
        "OneAtATime.schedule": (
            "Two questions in this order: must a sequence start, and is there one to run? The words you need are those "
            "of `Scheduler`, above in the same file: waiting, running, start, span.",
            "Start a waiting sequence only while none runs. `start` takes it from the queue and returns the admission, "
            "which belongs in this step's plan and in no later one. With no running sequence there is no plan.",
            "admissions = []; if not self.running and self.waiting: admissions.append(self.start(slot=0)); if not "
            "self.running: return None; return Plan([self.span(sequence) for sequence in self.running], admissions)",
        ),
    },
    text="Decide what runs in the next step: the sequence that came first, from its first step to its last, and only "
    "then the next. Everything else of a scheduler (the queue, the endings, cancelling) is written already, in the "
    "class `Scheduler` of the same file.",
)

EXERCISES = (*FORWARD, SCHEDULER)
