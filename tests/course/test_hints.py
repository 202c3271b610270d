"""A student who follows every third hint to the letter passes.

What the hints say is written out here as code. A change of a third hint is a change of this file.
"""

from pathlib import Path
from textwrap import dedent, indent

import pytest

from gradus import phases
from gradus.course.exercise import Exercise, exercises_of, reference_of
from gradus.course.skeleton import cut, unwritten
from tests.course.conftest import PHASES

FOLLOWED = {
    "phases/p00_baseline/scheduler.py": {
        "OneAtATime.schedule": """
            admissions = []
            if not self.running and self.waiting:
                admissions.append(self.start(slot=0))
            if not self.running:
                return None
            return Plan([self.span(sequence) for sequence in self.running], admissions)
        """,
    },
    "phases/p03_continuous_batching/scheduler.py": {
        "ContinuousBatching.schedule": """
            admissions = self.admit()
            if not self.running:
                return None
            return Plan([self.span(sequence) for sequence in self.running], admissions)
        """,
        "ContinuousBatching.admit": """
            return [self.start(self.free_slots.pop()) for _ in range(min(len(self.free_slots), len(self.waiting)))]
        """,
        "ContinuousBatching.release": """
            super().release(sequence)
            self.free_slots.append(sequence.slot)
            self.free_slots.sort(reverse=True)
        """,
    },
    "phases/p04_paged_cache/cache.py": {
        "PagedCache.missing": """
            return max(0, self.pages_for(end) - len(self.block_tables.get(id, ())))
        """,
        "PagedCache.reserve": """
            if not self.has_room(id, end):
                return False
            pages = self.take(self.missing(id, end))
            self.block_tables.setdefault(id, []).extend(pages)
            self.lengths[id] = end
            return True
        """,
        "PagedCache.release": """
            self.lengths.pop(id, None)
            self.pool.drop(*reversed(self.block_tables.pop(id, [])))
        """,
    },
    "phases/p04_paged_cache/scheduler.py": {
        "PagedBatching.may_start": """
            return self.cache.has_room(sequence.id, self.end_of_span(sequence), spare=len(self.running))
        """,
        "PagedBatching.make_room": """
            while not self.cache.has_room(sequence.id, self.end_of_span(sequence)):
                last = self.running[-1]
                self.preempt(last)
                if last is sequence:
                    return False
            return True
        """,
        "PagedBatching.preempt": """
            self.release(sequence)
            self.waiting.appendleft(sequence)
            self.preemptions += 1
        """,
    },
    "phases/p04_paged_cache/attention.py": {
        "rows_of": """
            return tables.gather(1, positions // page_size) * page_size + positions % page_size
        """,
        "GatherAttention.attend": """
            self.storage.store(layer, self.new_rows, k, v)
            keys, values = self.storage.rows(layer)
            out = torch.empty_like(q)
            for span, rows in self.prompts:
                out[span] = self.attend_prompt(layer, q[span], keys[rows], values[rows])
            if len(self.decode_rows):
                rows = self.decode_seen
                out[self.decode_rows] = self.attend_decodes(layer, q[self.decode_rows], keys[rows], values[rows])
            return out
        """,
    },
    "phases/p05_prefix_cache/radix.py": {
        "PrefixIndex.path": """
            node, depth = self.root, 0
            while depth < len(keys) and keys[depth] in node.children:
                node = node.children[keys[depth]]
                count = agreeing(node.keys, keys[depth:])
                yield node, count
                if count < len(node.keys):
                    return
                depth += count
        """,
        "PrefixIndex.insert": """
            known, node, count = [], self.root, 0
            for node, count in self.path(keys):
                known += node.pages[:count]
            fresh = pages[len(known):]
            if fresh:
                if count < len(node.keys):
                    self.split(node, count)
                self.grow(node, keys[len(known):], fresh)
            return known + fresh
        """,
        "PrefixIndex.split": """
            lower = Node(node, node.keys[count:], node.pages[count:], node.children)
            del node.keys[count:], node.pages[count:]
            node.children = {lower.keys[0]: lower}
            for child in lower.children.values():
                child.parent = lower
            self.owners |= dict.fromkeys(lower.pages, lower)
        """,
    },
    "phases/p05_prefix_cache/cache.py": {
        "PrefixCache.admit": """
            pages = self.index.match(page_keys(tokens[:-1], self.page_size, salt))
            self.pool.share(*pages)
            self.block_tables[id] = pages
            found = self.lengths[id] = len(pages) * self.page_size
            self.queried_positions += len(tokens)
            self.hit_positions += found
            return found
        """,
        "PrefixCache.publish": """
            table = self.block_tables[id]
            keys = page_keys(tokens[: self.stored(id)], self.page_size, salt)
            for place, page in enumerate(self.index.insert(keys, table[: len(keys)])):
                if page != table[place]:
                    self.pool.share(page)
                    self.pool.drop(table[place])
                    table[place] = page
        """,
        "PrefixCache.evict": """
            (page,) = self.pool.oldest_idle(1)
            self.index.remove(page)
            self.pool.reclaim(page)
            self.evictions += 1
        """,
    },
    "phases/p06_chunked_prefill/scheduler.py": {
        "ChunkedPrefill.schedule": """
            self.left = self.token_budget
            return super().schedule()
        """,
        "ChunkedPrefill.end_of_span": """
            return min(len(sequence.tokens), self.cache.stored(sequence.id) + self.left)
        """,
        "ChunkedPrefill.span": """
            start, end = self.cache.stored(sequence.id), self.end_of_span(sequence)
            self.cache.reserve(sequence.id, end)
            self.left -= end - start
            logits = 1 if end == len(sequence.tokens) else 0
            pages = self.cache.table_change(sequence.id)
            return Span(sequence, sequence.slot, start, sequence.tokens[start:end], logits, pages)
        """,
        "ChunkedPrefill.may_start": """
            return self.left > 0 and super().may_start(sequence)
        """,
        "ChunkedPrefill.record": """
            outputs = super().record(span, sampled)
            return outputs if span.logits else []
        """,
    },
}


def exercises() -> list:
    found = [
        (name, each) for name in PHASES if phases.find(name).has("exercise") for each in exercises_of(phases.find(name))
    ]
    return [pytest.param(name, each, id=each.file) for name, each in found if each.file in FOLLOWED]


def followed(phase: str, exercise: Exercise) -> str:
    """The skeleton, with what the third hints say in the place of what was cut out."""
    source = cut(reference_of(phases.find(phase), exercise), exercise.functions, phase)
    for name, body in FOLLOWED[exercise.file].items():
        line = next(line for line in source.splitlines() if f'NotImplementedError("{phase}: {name}")' in line)
        depth = line[: len(line) - len(line.lstrip())]
        source = source.replace(line, indent(dedent(body).strip("\n"), depth))
    return source


def test_every_exercise_from_p03_to_p06_is_here():
    files = [each.file for name in ("p03", "p04", "p05", "p06") for each in exercises_of(phases.find(name))]
    assert set(files) <= FOLLOWED.keys()


@pytest.mark.parametrize(("phase", "exercise"), exercises())
def test_a_solution_that_follows_the_third_hints_passes(checked, phase, exercise):
    source = followed(phase, exercise)
    assert not unwritten(source, exercise.functions), "each function of the exercise is written"
    verdict = checked(phase, source, exercise)
    assert verdict.passed, f"{Path(exercise.file).name}: {verdict.sentence}"
