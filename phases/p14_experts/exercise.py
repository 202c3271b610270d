"""The student writes a router's choice and weights, sorted dispatch, the grouped product, and what a batch reads."""

from gradus.exercises import Exercise

TESTS = "tests/phases/test_promises_experts.py"

ROUTER = Exercise(
    file="phases/p14_experts/router.py",
    functions={
        "choose": (
            "The best experts of each row are those with the highest scores. Where does the correction count, and "
            "which torch function returns the places of the largest values?",
            "Add the correction to the scores if there is one, and take the indices of the `count` largest values "
            "along the last dimension. `topk` returns values and indices, the largest first.",
            "ranked = scores if correction is None else scores + correction · return ranked.topk(count, "
            "dim=-1).indices",
        ),
        "weigh": (
            "The weights are the chosen experts' own scores, as they were before any correction. By what is a row "
            "divided so that it sums to one, and when is it not divided at all?",
            "Gather each row's scores at its chosen experts. If `normalized`, divide each row by its own sum, of the "
            "chosen alone. Multiply by `scale` at the very end, since it would cancel out before.",
            "weights = scores.gather(1, chosen) · if normalized: weights = weights / weights.sum(dim=-1, keepdim=True) "
            "· return weights * scale",
        ),
    },
    text="Choose each token's experts by their scores, and weigh what they will return.",
    why={
        "choose": (
            "A softmax or a sigmoid keeps the order of the logits, so scores choose as logits would. The correction is "
            "an adjustment of popularity: it decides who is chosen, and says nothing about how good an expert is."
        ),
        "weigh": (
            "Softmax scores of the chosen sum to less than one, and how much less differs from token to token. "
            "Models are trained with or without the division: the configuration says which, and the other one is "
            "wrong without any error message."
        ),
    },
)

DISPATCH = Exercise(
    file="phases/p14_experts/dispatch.py",
    functions={
        "sort_by_expert": (
            "Flatten the choice: entry p is the expert of pair p. Which order of p puts equal experts side by side? "
            "And how do the numbers of pairs per expert become starts?",
            "`argsort` returns the order; `stable=True` keeps the pairs of an expert in the order of their tokens. "
            "`bincount` counts the pairs per expert, with `minlength` for experts at the end that no token takes. The "
            "starts are the running sums of these counts, with a 0 in front.",
            "experts = chosen.flatten() · sizes = experts.bincount(minlength=count) · return "
            "experts.argsort(stable=True), [0, *sizes.cumsum(0).tolist()]",
        ),
        "combine": (
            "Row i of the results belongs to pair pairs[i]. Where must it go so that the k results of a token lie "
            "side by side, and in the order of its weights?",
            "Make an empty float32 tensor of the same shape, and assign the results to its rows `pairs`. Row p is now "
            "pair p. Unflatten the rows into [N, k, D], multiply by the weights with a last dimension of 1, and sum "
            "over k.",
            "own = results.new_empty(results.shape).float() · own[pairs] = results.float() · "
            "return (own.unflatten(0, weights.shape) * weights[..., None]).sum(dim=1)",
        ),
    },
    text="Sort the pairs of tokens and experts by expert, and add up the results by token.",
    why={
        "sort_by_expert": (
            "One sort and one count replace a search per expert. A stable sort is not needed for the result, but it "
            "makes each expert's rows come in the order of the batch, the same on every run and every device."
        ),
        "combine": (
            "Assigning through the same permutation undoes it, so no inverse is computed. Each token adds its k "
            "results in the order of its own choice: its sum cannot depend on the tokens next to it in the batch."
        ),
    },
)

GROUPED = Exercise(
    file="phases/p14_experts/grouped.py",
    functions={
        "grouped": (
            "`starts` has E + 1 entries, and two neighbors enclose one expert's rows. What should happen for an "
            "expert whose two are equal?",
            "Walk over the pairs of neighboring starts with the expert's number. Skip those without rows; for each "
            "other one, call `expert` with its number and its slice, and put the result where the slice was.",
            "out = torch.empty_like(rows) · for number, (start, end) in enumerate(pairwise(starts)): if end > start: "
            "out[start:end] = expert(number, rows[start:end]) · return out",
        ),
    },
    text="Give every expert that was chosen its rows, once.",
    why={
        "grouped": (
            "Sorted rows make an expert's input a slice: no copy, one product, and one reading of its weights. An "
            "expert without rows is skipped. For a single user that is most of them, and their weights are never read."
        ),
    },
)

DISTINCT = Exercise(
    file="phases/p14_experts/distinct.py",
    functions={
        "expected_distinct": (
            "Look at a single expert. What is the probability that one token does not take it, and that none of all "
            "the tokens does?",
            "A token takes `chosen` of `count` experts, so it misses a given one with probability 1 - chosen / count. "
            "Independent tokens multiply. What is left is the probability that the expert is read, and each of the "
            "`count` experts has the same.",
            "missed = (1 - chosen / count) ** tokens · return count * (1 - missed)",
        ),
    },
    text="Predict how many experts a batch reads.",
    why={
        "expected_distinct": (
            "The expected number is a sum over experts, and expectations add up whether or not the experts depend on "
            "each other. That a token's choices are all different is in the factor 1 - k / E: it is exact, and "
            "(1 - 1 / E)^k would not be."
        ),
    },
    alone=TESTS,
)

EXERCISES = (ROUTER, DISPATCH, GROUPED, DISTINCT)
