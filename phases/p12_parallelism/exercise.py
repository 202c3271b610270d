"""The student writes what cuts a model: products that meet in a sum, a rank's heads, a joint draw, a schedule."""

from gradus.exercises import Exercise

TESTS = "tests/phases/test_promises_parallel.py"

LINEAR = Exercise(
    file="phases/p12_parallelism/linear.py",
    functions={
        "column_part": (
            "Which dimension of [out, in] are the outputs? And what becomes of gate and up, which lie one above the "
            "other in one matrix, if it is cut in the middle?",
            "Split the rows by `widths` first. Of each of these matrices keep the part with number `part` of `parts` "
            "equal ones, and put them one above the other again.",
            "return torch.cat([each.chunk(parts)[part] for each in matrix.split(list(widths))])",
        ),
        "row_part": (
            "The rank has some of the inputs. Which dimension of [out, in] reads them?",
            "Cut the second dimension into `parts` equal ones, and keep the one with number `part`.",
            "The inputs are dimension 1: return matrix.chunk(parts, dim=1)[part]",
        ),
        "all_reduce": (
            "`gather` returns the summands of all ranks in their order, the same on each of them. In which order, and "
            "in which type, do all get the same sum?",
            "Convert what was gathered to float32, begin with rank 0's, add the others one after the other, and "
            "convert the sum to x's type, once.",
            "total, *others = exchange.gather(x).float() · for other in others: total = total + other · return "
            "total.to(x.dtype)",
        ),
        "RowParallel.forward": (
            "Each rank's product is a summand. The bias is on every rank. How often may it be added?",
            "Multiply without the bias, sum over the ranks, and then add the bias if there is one.",
            "y = all_reduce(self.exchange, F.linear(x, self.weight)) · return y if self.bias is None else y + "
            "self.bias",
        ),
    },
    text="Cut a matrix by its outputs and by its inputs, and sum what the ranks have.",
    why={
        "column_part": (
            "An output needs all inputs and one row of the matrix, so rows can be dealt out freely. Cut in the middle, "
            "one rank would have all gates and the other all features, and neither could multiply them."
        ),
        "row_part": (
            "These are the inputs that the rank's own outputs of the product before are, in the same order. Thus "
            "nothing is exchanged between the two products."
        ),
        "all_reduce": (
            "Sums of floats depend on their order. If ranks added in different orders, their hidden states would "
            "differ in the last bit, and some day two of them would draw different tokens."
        ),
        "RowParallel.forward": (
            "Added before the sum, a bias would count once per rank. GPT-2 has biases here, most newer models don't, "
            "so the mistake can stay hidden for long."
        ),
    },
    alone=TESTS,
)

HEADS = Exercise(
    file="phases/p12_parallelism/heads.py",
    functions={
        "heads_of": (
            "First deal out the query heads. Which key-value heads do the first and the last one of a rank read?",
            "A rank has Hq / parts query heads, and a key-value head has Hq / Hkv readers. Refuse if the first is not "
            "whole, and if neither of the two numbers is a multiple of the other. Query head h reads h // group, so "
            "the key-value heads go from the one of the first query head to the one of the last.",
            "if config.num_heads % parts: raise ConfigError(f'{config.num_heads} heads cannot be divided among {parts} "
            "ranks') · each, group = config.num_heads // parts, config.num_heads // config.num_kv_heads · if each % "
            "group and group % each: raise ConfigError(f'{config.num_kv_heads} key-value heads cannot be divided among "
            "{parts} ranks') · queries = range(part * each, (part + 1) * each) · return queries, range(queries.start "
            "// group, (queries.stop - 1) // group + 1)",
        ),
        "cut_qkv": (
            "Each of the three has its own heads, and `rows` finds the rows of some heads.",
            "Take the query heads' rows of q, and the key-value heads' rows of k and of v, one above the other.",
            "queries, keys = heads_of(config, part, parts) · return torch.cat([rows(q, queries, config.head_dim), "
            "rows(k, keys, config.head_dim), rows(v, keys, config.head_dim)])",
        ),
    },
    text="Find the heads of a rank, and its rows of a checkpoint's queries, keys and values.",
    why={
        "heads_of": (
            "The query heads decide, because they make the output. With the key-value heads that they read on the same "
            "rank, attention needs no exchange. If ranks outnumber key-value heads, some are held twice: that costs "
            "memory, and is still the better bargain."
        ),
        "cut_qkv": (
            "The fused matrix of a rank looks like that of a smaller model. So no line of the model, of attention or "
            "of a cache has to know that it is a part."
        ),
    },
    alone=TESTS,
)

DRAW = Exercise(
    file="phases/p12_parallelism/draw.py",
    functions={
        "draw": (
            "Which of a rank's tokens can still be the drawn one, whatever the other ranks have? And what must the "
            "others know of such a token?",
            "With top_k, a token among the top_k of the whole row is among the top_k of its rank. Without, only the "
            "rank's largest sum can be drawn. Of each candidate give score, sum and id away, as float64, in which all "
            "three are exact. If the rank has fewer tokens, fill up with candidates that are never chosen. From all "
            "candidates, in order of the ranks, choose as one rank would: first the top_k by score, then the largest "
            "sum, then the lowest id.",
            "sums, most = scores + noise, max(1, top_k) · mine = largest(scores if top_k else sums, most) · offered = "
            "torch.stack([scores.gather(1, mine), sums.gather(1, mine), first + mine], dim=-1).double() · pad its "
            "dimension 1 to `most` with [-inf, -inf, 0] · gather, and flatten [parts, R, most, 3] to "
            "[R, parts * most, 3] · kept = the largest `most` scores, or the largest sum without top_k · return the "
            "smallest id whose sum is the largest of those kept.",
        ),
    },
    text="Draw a token from scores that no rank has whole, with one exchange. Design what is exchanged: the check "
    "looks at the tokens that come out, at the number of exchanges and at their bytes.",
    why={
        "draw": (
            "All that matters of the tokens that a rank keeps to itself is that they cannot be drawn. So k candidates "
            "per rank hold the k of the whole row, wherever those are. The noise of a token depends on seed, position "
            "and id, so its rank can make it. float64 holds ids and float32 scores without rounding, and one tensor is "
            "one exchange: its toll is latency, so a second one would cost as much as the first."
        ),
    },
    alone=TESTS,
)

SCHEDULE = Exercise(
    file="phases/p12_parallelism/schedule.py",
    functions={
        "timetable": (
            "Begin with one round: when does micro-batch m begin in stage 0, and when in stage s? When can the first "
            "micro-batch begin its second round?",
            "In one round, stage s runs micro-batch m at tick s + m. A round begins `period` ticks after the one "
            "before: max(stages, micro_batches), since the first stage must be free and the first micro-batch be back. "
            "The last stage ends at tick (rounds - 1) * period + micro_batches + stages - 1.",
            "period = max(stages, micro_batches) · ticks = (rounds - 1) * period + micro_batches + stages - 1 · table "
            "= [[None] * ticks for _ in range(stages)] · for round in range(rounds): for m in range(micro_batches): "
            "for stage in range(stages): table[stage][round * period + m + stage] = m · return table",
        ),
        "bubble": (
            "How many entries has the table, and how many of them are None?",
            "Count the entries that are None in all rows, and divide by the number of all entries.",
            "ticks = [micro_batch for row in table for micro_batch in row] · return ticks.count(None) / len(ticks)",
        ),
    },
    text="Say which stage runs which micro-batch at which tick, and how much of the time is lost.",
    why={
        "timetable": (
            "Two things can hold a micro-batch up: the first stage is busy with others, or its own last token is not "
            "there yet. The larger of the two numbers is the period. With fewer micro-batches than stages it is the "
            "second, and then stages wait in every round."
        ),
        "bubble": (
            "For one round it is (S - 1) / (M + S - 1), as GPipe has it. Over many rounds only what lacks in each of "
            "them counts: 1 - M / max(M, S), and that is nothing from M = S on."
        ),
    },
    alone=TESTS,
)

EXERCISES = (LINEAR, HEADS, DRAW, SCHEDULE)
