"""Prompts for filling in the middle: each family's spelling, from its vocabulary."""

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from gradus.engine.request import ModelLimits, SamplingParams
from gradus.errors import RequestError
from gradus.loading import Tokenizer
from gradus.loading.tokenizer import begin_texts_with
from gradus.server.api.completions import Prepared
from gradus.text.front_end import FrontEnd
from gradus.text.infill import PREFIX, SPELLINGS, SUFFIX, Infill

LETTERS = {letter: index for index, letter in enumerate("abcdefgh")}


def tokenizer(*control, begins=False):
    """Letters, and control tokens."""
    backend = tokenizers.Tokenizer(models.BPE(vocab=LETTERS, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    names = (*control, "<bos>")
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    bos = backend.token_to_id("<bos>")
    if begins:
        begin_texts_with(backend, bos, None)
    return Tokenizer(backend, bos_token_id=bos)


@pytest.mark.parametrize("spelling", SPELLINGS, ids=lambda spelling: spelling.marks[0])
def test_each_family_s_prompt_is_written_as_it_was_trained(spelling):
    known = tokenizer(*spelling.marks, *spelling.ends)
    found = Infill.of(known)
    tokens = found.prompt("ab", "cd")
    texts = {PREFIX: "ab", SUFFIX: "cd"}
    assert known.decode(tokens, skip_special=False) == "".join(texts.get(part, part) for part in spelling.parts)
    assert set(found.ends) == {known.token_id(name) for name in (*spelling.marks, *spelling.ends)}
    assert tokens[-1] == known.token_id(spelling.marks[-1]) or spelling.parts[-1] == PREFIX


def test_a_text_begins_as_the_model_s_texts_do():
    marks = SPELLINGS[0].marks
    with_bos = Infill.of(tokenizer(*marks, begins=True))
    assert with_bos.prompt("a", "b") == [
        with_bos.tokenizer.bos_token_id,
        *with_bos.prompt("a", "b", special_tokens=False),
    ]
    plain = Infill.of(tokenizer(*marks))
    assert plain.prompt("a", "b") == plain.prompt("a", "b", special_tokens=False)


def test_a_vocabulary_that_lacks_a_mark_is_of_no_family():
    assert Infill.of(tokenizer(*SPELLINGS[0].marks[:2])) is None
    assert Infill.of(Tokenizer.of_bytes()) is None


def front_end(*control):
    known = tokenizer(*control)
    return FrontEnd(known, ModelLimits(known.vocab_size, 32), "m", lambda *_: ())


def test_an_answer_in_the_middle_also_ends_at_the_family_s_marks():
    one = front_end(*SPELLINGS[0].marks, *SPELLINGS[0].ends[:1])
    params = SamplingParams(stop_token_ids=[1])
    prompt = Prepared("ab", "cd")
    assert set(prompt.adapted(params, one).stop_token_ids) == {1, *one.infill.ends}
    assert prompt.adapted(SamplingParams(ignore_eos=True), one).stop_token_ids == ()
    assert Prepared("ab").adapted(params, one) == params
    assert prompt.tokens(one, params) == one.infill.prompt("ab", "cd")


def test_a_model_without_marks_refuses_a_suffix():
    with pytest.raises(RequestError, match="suffix is not supported by model m"):
        Prepared("ab", "cd").tokens(front_end(), SamplingParams())
