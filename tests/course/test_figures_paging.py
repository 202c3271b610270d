"""What p04's figures say can be worked out by hand."""

import re

from gradus.course import figures_paging as figures


def test_slots_are_as_empty_and_pages_as_full_as_the_lengths_make_them():
    lengths = figures.lengths()
    on_pages = sum(-(-length // figures.PAGE_SIZE) * figures.PAGE_SIZE for length in lengths)
    waste = [1 - sum(lengths) / room for room in (figures.PEOPLE * figures.CONTEXT, on_pages)]
    assert f"leave {waste[0]:.0%} of their slots empty, and {waste[1]:.1%} of their pages" in figures.memory().title


def test_the_position_in_the_block_table_is_where_the_caption_says():
    (caption,) = re.findall(
        r"Position (\d+) is in entry .* = (\d+), page (\d+): row .* = (\d+) of", figures.block_table().svg()
    )
    position, entry, page, row = map(int, caption)
    (table,) = figures.scattered().tables("Ann")
    assert (entry, page, row) == (position // 4, table[entry], table[entry] * 4 + position % 4)


def test_behind_the_window_every_page_is_given_back_and_none_that_is_seen():
    svg = figures.windows().svg()
    oldest = figures.DECODED - figures.WINDOW
    assert svg.count(">0</text>") == oldest // figures.SMALL
    assert f"sees {oldest} to {figures.DECODED - 1}" in svg


def test_the_first_one_runs_through_and_the_second_is_computed_again():
    run = figures.pressure()
    prompt, answer = figures.REQUESTS["Ann"]
    assert run.rows["Ann"][:answer] == [prompt] + [1] * (answer - 1) and run.preemptions == 1
    started_over = run.rows["Ben"][run.rows["Ben"].index(0) :]
    assert max(started_over) > figures.REQUESTS["Ben"][0], "its prompt and its answer so far"
    held = [sum(pages) for pages in zip(*run.pages.values(), strict=True)]
    assert all(h + free == figures.PAGES for h, free in zip(held, run.free, strict=True))
