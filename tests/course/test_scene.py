"""The steps that lessons show are those of the phase's own engine."""

from gradus.course.scene import watch

ASKED = {"a": (3, 4), "b": (5, 2), "c": (2, 2)}


def lines(phase: str, asked, **settings) -> list[str]:
    return [str(step) for step in watch(phase, asked, **settings)]


def test_steps_show_every_span_and_the_filler():
    assert lines("p03", ASKED, max_sequences=2) == [
        "step 1    a (0, 3)   b (0, 5)",
        "step 2    a (3, 1)   b (5, 1)",
        "step 3    a (4, 1)   c (0, 2)",
        "step 4    a (5, 1)   c (2, 1)",
    ]
    assert lines("p02", ASKED, max_sequences=2)[::2] == [
        "step 1    a (0, 3)   b (0, 5)   + 2 filler",
        "step 3    a (4, 1)   + 1 filler",
        "step 5    c (0, 2)",
    ]


def test_a_request_arrives_at_its_step_and_idle_steps_are_left_out():
    assert lines("p01", {"a": (2, 1), "b": (1, 1, 4)}) == ["step 1    a (0, 2)", "step 4    b (0, 1)"]


def test_pages_and_preemptions_are_seen():
    steps = list(watch("p04", {"a": (4, 6), "b": (4, 6)}, max_sequences=2, page_size=4, cache_tokens=16))
    assert [step.free for step in steps][:3] == [2, 0, 0]
    assert [step.number for step in steps if step.preempted == ("b",)] == [6]


def test_prompts_given_as_tokens_can_share_a_beginning():
    asked = {"a": ([1, 2, 3, 4, 5], 1), "b": ([1, 2, 3, 4, 6], 1, 2)}
    assert [step.spans for step in watch("p05", asked, page_size=4, cache_tokens=32)] == [{"a": (0, 5)}, {"b": (4, 1)}]
