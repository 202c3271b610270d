"""Text to tokens and back: the same as transformers where it is right, and as llama.cpp where it is the source."""

import json
import threading
from itertools import chain, pairwise

import gguf
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from gradus.errors import CheckpointError, RequestError
from gradus.loading import Tokenizer, open_checkpoint
from gradus.loading.gguf.file import GGUFFile
from gradus.loading.gguf.tokenizer import read_tokenizer
from gradus.text.stream import TextStream, piece
from tests.loading.builders import TOKENS, backend, write_bpe_tokenizer, write_folder, write_gguf

TEXTS = [
    "",
    " ",
    "the cat sat on the mat",
    "  two spaces,\ttabs\r\n\n\nand lines ",
    "def f(x):\n    return x**2  # 12345",
    "naïve Ünïcödé ∑ 中文 العربية",
    "👩‍👩‍👧 👍🏽 🇨🇭",
    "\x00\x01 control \x7f",
    "\ufeff BOM, \u200b zero width, \ufffd",
]

text_strategy = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return Tokenizer(backend(), bos_token_id=0, eos_token_ids=(2,))


@pytest.mark.parametrize("text", TEXTS)
def test_byte_level_text_survives_the_round_trip(bpe, text):
    assert bpe.decode(bpe.encode(text)) == text


@given(text_strategy)
def test_any_text_survives_the_round_trip(text):
    for tokenizer in (Tokenizer.of_bytes(), Tokenizer(backend())):
        assert tokenizer.decode(tokenizer.encode(text)) == text


@given(st.lists(st.integers(min_value=-2, max_value=400), max_size=30))
def test_text_streamed_by_token_is_the_text_decoded_at_once(token_ids):
    tokenizer = Tokenizer(backend())
    streamed = b"".join(tokenizer.token_bytes(token) for token in token_ids)
    assert streamed.decode(errors="replace") == tokenizer.decode(token_ids)


def test_a_long_text_is_encoded_as_a_short_one_and_other_threads_go_on_meanwhile(bpe, monkeypatch):
    text = "the cat sat on the mat, and <|im_end|> 12345\n" * 8000
    ticks, done = [], threading.Event()

    def tick():
        while not done.wait(0.0005):
            ticks.append(1)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        found = bpe.encode(text)
    finally:
        done.set()
        thread.join()
    assert len(ticks) >= 5
    monkeypatch.setattr("gradus.loading.tokenizer.LONG_TEXT", len(text))
    assert found == bpe.encode(text)


def test_encoding_agrees_with_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    folder = write_folder(tmp_path / "tiny")
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    ours = open_checkpoint(str(folder)).tokenizer
    for text in [*TEXTS, "<|im_start|>user\nhi<|im_end|>"]:
        assert ours.encode(text) == theirs.encode(text)
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text), skip_special_tokens=True)


def test_control_tokens_in_a_raw_prompt_are_control_tokens(bpe):
    assert bpe.encode("<|im_start|>the") == [1, *bpe.encode("the")]
    assert bpe.decode([1, *bpe.encode("the"), 2]) == "the"
    assert bpe.decode([1, *bpe.encode("the"), 2], skip_special=False) == "<|im_start|>the<|im_end|>"
    assert bpe.special_token_ids == {0, 1, 2} and bpe.vocab_size == TOKENS


def test_ids_without_a_token_add_nothing(bpe):
    for token in (-1, TOKENS, TOKENS + 1, 2**31, 2**40):  # TOKENS is the mark that cuts control tokens in messages
        assert bpe.token_bytes(token) == b"" and bpe.decode([token], skip_special=False) == ""


def test_a_lone_surrogate_is_refused(bpe):
    with pytest.raises(RequestError, match="lone surrogate at character 2") as error:
        bpe.encode("ab\ud800")
    assert error.value.param == "prompt"


def test_a_text_that_the_vocabulary_cannot_spell_is_refused():
    made = tokenizers.Tokenizer(models.WordLevel(vocab={"a": 0}, unk_token="[UNK]"))
    with pytest.raises(RequestError, match="cannot encode this text"):
        Tokenizer(made).encode("b")


def test_truncation_and_padding_of_the_file_do_not_apply():
    made = backend()
    made.enable_truncation(4)
    made.enable_padding(length=50)
    assert len(Tokenizer(made).encode("the cat sat on the mat")) not in (4, 50)


def test_to_json_is_the_tokenizer_without_our_mark(bpe):
    again = tokenizers.Tokenizer.from_str(bpe.to_json())
    assert again.get_vocab_size() == TOKENS
    assert again.encode("the cat <|im_end|>").ids == bpe.encode("the cat <|im_end|>")


def test_token_ids_with_gaps_are_refused():
    made = tokenizers.Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "c": 3}, merges=[]))
    with pytest.raises(CheckpointError, match="gaps"):
        Tokenizer(made)


def test_an_unknown_way_of_decoding_is_refused():
    made = tokenizers.Tokenizer(models.WordPiece(vocab={"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    made.decoder = decoders.WordPiece()
    with pytest.raises(CheckpointError, match="WordPiece is not supported"):
        Tokenizer(made)


def test_llama2_style_texts_lose_the_space_that_they_are_begun_with():
    vocab = {"<unk>": 0, "▁": 1, "a": 2, "b": 3, "▁a": 4} | {f"<0x{byte:02X}>": 5 + byte for byte in range(256)}
    for prepend in (normalizers.Prepend("▁"), None):
        made = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[("▁", "a")], unk_token="<unk>", byte_fallback=True))
        if prepend:
            made.normalizer = normalizers.Sequence([prepend, normalizers.Replace(" ", "▁")])
            strip = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
            made.decoder = decoders.Sequence(strip)
        else:
            made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
            made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")])
        tokenizer = Tokenizer(made)
        assert tokenizer.encode("a b")[0] == 4
        for text in ("a b", "b", "aé b"):
            assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.token_bytes(4) == b" a"  # inside a text it is a space


# -- decoding, as the library does it ----------------------------------------------------------------------------------


def in_pieces(decoder, controls=("<s>",)):
    """Pieces with runs of spaces among them that were added, bytes, and an added word."""
    tokens = [
        *controls,
        "▁",
        "a",
        "▁b",
        "é",
        "▁▁",
        "▁▁▁▁",
        "<i>",
        "c▁d",
        *(f"<0x{byte:02X}>" for byte in "🙂".encode()),
    ]
    made = tokenizers.Tokenizer(
        models.BPE(vocab={token: at for at, token in enumerate(tokens)}, merges=[("▁", "▁"), ("▁▁", "▁▁")])
    )
    made.normalizer = normalizers.Replace(" ", "▁")
    made.decoder = decoder
    made.add_special_tokens([AddedToken(control, normalized=False, special=True) for control in controls])
    made.add_tokens([AddedToken(text, normalized=False) for text in ("▁▁", "▁▁▁▁", "<i>")])
    return made


GEMMA = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
WAYS = {
    "gemma": decoders.Sequence(GEMMA),
    "llama": decoders.Sequence([*GEMMA, decoders.Strip(" ", 1, 0)]),
    "metaspace": decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="never")]),
    "first": decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")]),
    "another mark": decoders.Sequence([decoders.ByteFallback(), decoders.Replace("b", "x"), decoders.Fuse()]),
    "none": None,
}


@pytest.mark.parametrize("way", WAYS)
@given(data=st.data())
def test_any_tokens_decode_as_the_library_decodes_them(way, data):
    """Characters in bytes are whole here: of others the library says how many bytes are missing, and Gradus does not.

    Where the first token loses its space, it has one: of several, the library drops all.
    """
    theirs = in_pieces(WAYS[way])
    ours = Tokenizer(in_pieces(WAYS[way]))
    smile = [[9, 10, 11, 12]] if way != "none" else []
    parts = data.draw(st.lists(st.sampled_from([*([token] for token in range(9)), *smile]), max_size=12))
    ids = [3, *chain.from_iterable(parts)]
    for skip_special in (True, False):
        assert ours.decode(ids, skip_special=skip_special) == theirs.decode(ids, skip_special_tokens=skip_special)


def test_runs_of_spaces_that_were_added_are_spaces_and_stop_a_text():
    """Transformers writes Gemma's tokenizer this way: ordinary added tokens, spelled with the mark of a space."""
    tokenizer = Tokenizer(in_pieces(WAYS["gemma"]))
    assert tokenizer.encode("a    a  a") == [2, 6, 2, 5, 2]
    assert tokenizer.decode([2, 6, 2, 5, 2]) == "a    a  a"
    stream = TextStream(lambda token: piece(tokenizer.token_bytes(token)), stop=[" " * 5])
    assert stream.push([2, *[6] * 6]) == "a" and stream.stop_reason == " " * 5


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.Strip(" ", 1, 0),
        decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)]),
        decoders.Replace(tokenizers.Regex("▁+"), " "),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteLevel()]),
    ],
)
def test_steps_that_would_be_decoded_wrongly_are_refused(decoder):
    with pytest.raises(CheckpointError, match=r"decoding by (Strip|Replace|ByteLevel) is not supported here"):
        Tokenizer(in_pieces(decoder))


# -- rebuilt from GGUF -------------------------------------------------------------------------------------------------


def test_the_tokenizer_of_a_gguf_file_is_the_one_that_went_in(tmp_path, bpe):
    rebuilt = open_checkpoint(str(write_gguf(tmp_path / "m.gguf"))).tokenizer
    for text in [*TEXTS, "<|im_start|>user\nhi<|im_end|>"]:
        assert rebuilt.encode(text) == bpe.encode(text)
    assert rebuilt.has_chat_template and rebuilt.bos_token_id == 0 and rebuilt.eos_token_ids == (2,)


def gguf_with(path, build):
    writer = gguf.GGUFWriter(path, "llama")
    build(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read_tokenizer(GGUFFile(path))


SAMPLE = "it's 2024, okThen HÉLLo's  x/\n\n \t{ }"
WORDS = {
    "gpt-2": ["it", "'s", " 2024", ",", " okThen", " HÉLLo", "'s", " ", " x", "/", "\n\n ", "\t", "{", " }"],
    "smollm": ["it", "'s", " ", *"2024", ",", " okThen", " HÉLLo", "'s", " ", " x", "/", "\n\n ", "\t", "{", " }"],
    "llama-bpe": [
        "it",
        "'s",
        " ",
        "202",
        "4",
        ",",
        " okThen",
        " HÉLLo",
        "'s",
        " ",
        " x",
        "/\n\n",
        " ",
        "\t",
        "{",
        " }",
    ],
    "qwen2": ["it", "'s", " ", *"2024", ",", " okThen", " HÉLLo", "'s", " ", " x", "/\n\n", " ", "\t", "{", " }"],
    "tekken": ["it", "'s", " ", *"2024", ",", " ok", "Then", " HÉLLo", "'s", " ", " x", "/\n\n", " ", "\t", "{", " }"],
    "gpt-4o": ["it's", " ", "202", "4", ",", " ok", "Then", " HÉLLo's", " ", " x", "/\n\n", " ", "\t", "{", " }"],
}
WORDS |= dict.fromkeys(["refact", "starcoder"], WORDS["smollm"])
WORDS |= dict.fromkeys(["smaug-bpe", "dbrx"], WORDS["llama-bpe"])


@pytest.mark.parametrize("pre", WORDS)
def test_text_is_cut_into_words_as_the_file_names_it(tmp_path, pre):
    """The cuts show where every merge that exists is applied: with a vocabulary in which each word is one token."""
    from gradus.loading.gguf.tokenizer import RULES, _words

    assert WORDS.keys() == RULES.keys()
    cuts = _words(RULES[pre]).pre_tokenize_str(SAMPLE)
    found = [SAMPLE[start:end] for _, (start, end) in cuts]
    assert "".join(found) == SAMPLE
    assert found == WORDS[pre]
    assert gguf_with(tmp_path / "m.gguf", lambda writer: write_bpe_tokenizer(writer, pre)).decode([10]) is not None


def test_qwen2_text_is_cut_as_transformers_cuts_it(tmp_path):
    transformers = pytest.importorskip("transformers")
    described = json.loads(backend().to_str())["model"]
    theirs = transformers.Qwen2Tokenizer(vocab=described["vocab"], merges=[tuple(pair) for pair in described["merges"]])
    ours = gguf_with(tmp_path / "m.gguf", lambda writer: write_bpe_tokenizer(writer, "qwen2"))
    for text in [*TEXTS, "the e\u0301 of cafe\u0301", "we'LL see: 10\n\n\n  the mat", "<|endoftext|>the"]:
        assert ours.encode(text) == theirs.encode(text)


def test_a_word_that_is_a_token_is_that_token_where_the_rule_says_so(tmp_path):
    """No merge makes "abc". Only the rules of Llama 3 and Mistral find it."""

    def build(pre):
        def fill(writer):
            writer.add_tokenizer_model("gpt2")
            writer.add_tokenizer_pre(pre)
            writer.add_token_list(["a", "b", "c", "bc", "abc"])
            writer.add_token_types([1] * 5)
            writer.add_token_merges(["b c"])
            writer.add_add_bos_token(False)

        return gguf_with(tmp_path / f"{pre}.gguf", fill).encode("abc")

    assert build("llama-bpe") == build("tekken") == [4]
    assert build("dbrx") == build("smaug-bpe") == build("gpt-4o") == [0, 3]


def test_llama3_begins_texts_and_others_do_not_unless_told(tmp_path):
    def build(pre, **flags):
        def fill(writer):
            write_bpe_tokenizer(writer, pre)
            for name, value in flags.items():
                getattr(writer, name)(value)

        return gguf_with(tmp_path / "m.gguf", fill).encode("the")

    assert build("llama-bpe")[0] == build("tekken")[0] == 0
    assert build("gpt-2")[0] != 0 and build("smaug-bpe")[0] != 0 and build("gpt-4o")[0] != 0
    assert build("gpt-2", add_add_bos_token=True)[0] == 0 and build("llama-bpe", add_add_bos_token=False)[0] != 0
    assert build("gpt-2", add_add_eos_token=True)[-1] == 2


PIECES = ["a", "b", "c", "d", "▁", "ab", "cd", "bc", "▁a", "abc", "▁ab", "dd", "ca", "▁▁", "abcd", "bca"]


def sentencepiece(path, scores, *, prefix=False, user_defined=()):
    """<unk> is 0, <s> 1, </s> 2; then come 256 bytes, PIECES, and the user-defined ones."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES, *user_defined]
    types = [2, 3, 3, *[6] * 256, *[1] * len(PIECES), *[4] * len(user_defined)]

    def build(writer):
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        writer.add_token_scores([0.0] * 259 + list(scores) + [0.0] * len(user_defined))
        writer.add_token_types(types)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_add_space_prefix(prefix)
        writer.add_add_bos_token(False)

    return gguf_with(path, build)


def by_score(text, scores):
    """What SentencePiece does, as plainly as can be: merge the neighbors whose union scores best, leftmost first."""
    score = dict(zip(PIECES, scores, strict=True))
    parts = list(text.replace(" ", "▁"))
    while True:
        unions = [(score[a + b], -at) for at, (a, b) in enumerate(pairwise(parts)) if a + b in score]
        if not unions:
            break
        at = -max(unions)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    vocabulary = {piece: 259 + index for index, piece in enumerate(PIECES)}
    return [
        token
        for part in parts
        for token in ([vocabulary[part]] if part in vocabulary else [3 + b for b in part.encode()])
    ]


SCORES = [-float(1 + (7 * index) % len(PIECES)) for index in range(len(PIECES))]  # distinct, in no order


@given(st.text("abcd ", max_size=24))
def test_merges_by_score_are_those_of_sentencepiece(tmp_path_factory, text):
    tokenizer = _by_score_tokenizer(tmp_path_factory)
    assert tokenizer.encode(text) == by_score(text, SCORES)
    assert tokenizer.decode(tokenizer.encode(text)) == text


_MADE = {}


def _by_score_tokenizer(tmp_path_factory):
    if not _MADE:
        _MADE["one"] = sentencepiece(tmp_path_factory.mktemp("spm") / "m.gguf", SCORES)
    return _MADE["one"]


def test_what_has_no_piece_is_spelled_in_bytes(tmp_path):
    tokenizer = sentencepiece(tmp_path / "m.gguf", SCORES)
    assert tokenizer.encode("é") == [3 + 0xC3, 3 + 0xA9]
    assert tokenizer.decode(tokenizer.encode("aé 👍 b\n")) == "aé 👍 b\n"
    assert [tokenizer.token_bytes(token) for token in tokenizer.encode("é")] == [b"\xc3", b"\xa9"]


def test_a_space_is_put_before_texts_where_the_file_says_so(tmp_path):
    with_prefix = sentencepiece(tmp_path / "m.gguf", SCORES, prefix=True)
    assert with_prefix.encode("ab") == by_score(" ab", SCORES) and with_prefix.decode(with_prefix.encode("ab")) == "ab"


def test_user_defined_pieces_match_whole_and_first(tmp_path):
    tokenizer = sentencepiece(tmp_path / "m.gguf", SCORES, user_defined=("\n", "\n\n", "   ", "<td>"))
    first = 259 + len(PIECES)
    assert tokenizer.encode("a\n\n\nb") == [259, first + 1, first, 260]
    assert tokenizer.encode("   a") == [first + 2, 259]
    assert tokenizer.encode("<td>") == [first + 3] and tokenizer.decode([first + 3, first + 2]) == "<td>   "
    assert first not in tokenizer.special_token_ids


def gemma4(path, **flags):
    """Gemma 4's kind: SentencePiece's pieces, and their merges in the order of a tokenizer.json."""
    merges = ["\u2581 a", "a b", "c d", "\u2581a b", "ab cd", "\n \n", "\u2581 \u2581"]
    pieces = ["a", "b", "c", "d", "\u2581", "\n", *(merge.replace(" ", "") for merge in merges)]
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, "<|x>"]

    def build(writer):
        writer.add_tokenizer_model("gemma4")
        writer.add_token_list(tokens)
        writer.add_token_scores([0.0] * len(tokens))
        writer.add_token_types([3, 3, 3, 2, *[6] * 256, *[1] * len(pieces), 4])
        writer.add_token_merges(merges)
        writer.add_bos_token_id(2)
        writer.add_eos_token_id(1)
        for name, value in flags.items():
            getattr(writer, name)(value)

    return gguf_with(path, build), tokens, [tuple(merge.split(" ")) for merge in merges]


@given(st.text("abcd \né", max_size=24))
def test_gemma4_merges_as_its_tokenizer_json_does(tmp_path_factory, text):
    """Against the `tokenizers` library, with the steps of Gemma's published tokenizer.json."""
    if "gemma4" not in _MADE:
        ours, tokens, merges = gemma4(tmp_path_factory.mktemp("gemma4") / "m.gguf")
        vocabulary = {token: index for index, token in enumerate(tokens)}
        theirs = tokenizers.Tokenizer(
            models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
        )
        theirs.normalizer = normalizers.Replace(" ", "\u2581")
        theirs.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        _MADE["gemma4"] = ours, theirs
    ours, theirs = _MADE["gemma4"]
    assert ours.encode(text, special_tokens=False) == theirs.encode(text).ids
    assert ours.encode(text)[0] == 2 and ours.decode(ours.encode(text)) == text


def test_gemma4_takes_its_calls_whole_and_adds_no_space(tmp_path):
    tokenizer, tokens, _ = gemma4(tmp_path / "m.gguf")
    last = len(tokens) - 1
    assert [tokens[token] for token in tokenizer.encode("ab<|x> ab")] == ["<bos>", "ab", "<|x>", "\u2581ab"]
    assert tokenizer.decode([last]) == "<|x>"  # for parsers of tool calls
    assert gemma4(tmp_path / "n.gguf", add_add_bos_token=False)[0].encode("ab") == [tokens.index("ab")]


def test_phi3s_control_tokens_swallow_the_space_behind_them(tmp_path):
    """Published tokenizers say so token by token, and the file does not: llama.cpp goes by the model's name."""

    def build(architecture):
        writer = gguf.GGUFWriter(tmp_path / "m.gguf", architecture)
        tokens = ["<unk>", "<s>", "<|end|>", "\u2581", "a", *(f"<0x{byte:02X}>" for byte in range(256))]
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        writer.add_token_scores([0.0] * len(tokens))
        writer.add_token_types([2, 3, 3, 1, 1, *[6] * 256])
        writer.add_add_bos_token(False)
        writer.add_add_space_prefix(False)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return read_tokenizer(GGUFFile(tmp_path / "m.gguf")).encode("<s> <|end|>\n a")

    assert build("phi3") == [1, 3, 2, 4]
    assert build("llama") == [1, 3, 2, 5 + 10, 3, 4]


def test_the_end_of_a_turn_ends_a_text(tmp_path):
    def build(writer):
        write_bpe_tokenizer(writer)
        writer.add_eot_token_id(1)

    assert gguf_with(tmp_path / "m.gguf", build).eos_token_ids == (2, 1)


@pytest.mark.parametrize("end", ["<|im_end|>", "<|end|>", "<turn|>"])
def test_a_control_token_that_ends_turns_in_the_template_ends_a_text(tmp_path, end):
    def build(writer):
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-4o")
        writer.add_token_list(["a", "</s>", end, "<|other|>", "aa"])
        writer.add_token_types([1, 3, 3, 3, 1])
        writer.add_token_merges(["a a"])
        writer.add_eos_token_id(1)
        writer.add_chat_template("{% for m in messages %}{{ m.content }}" + end + "{% endfor %}<|other|>")

    assert gguf_with(tmp_path / "m.gguf", build).eos_token_ids == (1, 2)


def test_the_end_of_a_message_ends_no_turn_of_several(tmp_path):
    """<|end|> comes behind the reasoning of gpt-oss."""

    def build(writer):
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-4o")
        writer.add_token_list(["a", "<|return|>", "<|end|>", "<|call|>", "aa"])
        writer.add_token_types([1, 3, 3, 3, 1])
        writer.add_token_merges(["a a"])
        writer.add_eos_token_id(1)
        writer.add_eot_token_id(2)
        writer.add_chat_template("{% for m in messages %}{{ m.content }}<|end|>{% endfor %}<|return|><|call|>")

    assert gguf_with(tmp_path / "m.gguf", build).eos_token_ids == (1, 3)


# -- the real ones -----------------------------------------------------------------------------------------------------


@pytest.mark.weights
def test_smollm2_is_cut_as_llama_cpp_cuts_it():
    tokenizer = open_checkpoint("smollm2-135m").tokenizer
    assert (tokenizer.vocab_size, tokenizer.bos_token_id, tokenizer.eos_token_ids) == (49152, 1, (2,))
    assert len(tokenizer.special_token_ids) == 17
    assert [tokenizer.decode([token]) for token in tokenizer.encode("in 1984")] == ["in", " ", "1", "9", "8", "4"]
    assert tokenizer.encode("Hello world") == [19556, 905]  # no beginning-of-sequence token is added
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    chat = tokenizer.chat([{"role": "user", "content": "hi"}])
    assert chat[:2] == [1, 9690] and tokenizer.decode(chat[-3:], skip_special=False) == "assistant\n"


@pytest.mark.weights("qwen2.5-coder-0.5b")
def test_qwen2_is_cut_as_published():
    tokenizer = open_checkpoint("qwen2.5-coder-0.5b").tokenizer
    assert (tokenizer.vocab_size, tokenizer.bos_token_id, tokenizer.eos_token_ids) == (151936, 151643, (151645,))
    assert tokenizer.encode("Hello world") == [9707, 1879]  # and no beginning-of-sequence token is added
    assert [tokenizer.decode([token]) for token in tokenizer.encode("in 1984")] == ["in", " ", "1", "9", "8", "4"]
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    chat = tokenizer.chat([{"role": "user", "content": "hi"}])
    assert chat[:2] == [151644, 8948] and tokenizer.decode(chat[-3:], skip_special=False) == "<|im_start|>assistant\n"


@pytest.mark.weights("qwen2.5-coder-1.5b")
@pytest.mark.weights("qwen2.5-coder-0.5b")
def test_both_sizes_of_qwen2_speak_the_same_tokens():
    small, large = (open_checkpoint(f"qwen2.5-coder-{size}").tokenizer for size in ("0.5b", "1.5b"))
    assert small.to_json() == large.to_json()


@pytest.mark.weights("gemma3-270m")
def test_gemma3_is_cut_as_sentencepiece_cuts_it():
    checkpoint = open_checkpoint("gemma3-270m")
    tokenizer = checkpoint.tokenizer
    assert (tokenizer.vocab_size, tokenizer.bos_token_id, tokenizer.eos_token_ids) == (262144, 2, (1,))
    assert not tokenizer.has_chat_template
    assert tokenizer.encode("Hello world") == [2, 9259, 1902]
    assert tokenizer.encode("   x", special_tokens=False) == [139, 236781]
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    from gradus.loading.gguf.file import GGUFFile

    metadata = GGUFFile(checkpoint.source).metadata
    vocabulary = {
        token: score
        for token, score, kind in zip(
            *(metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "scores", "token_type")), strict=True
        )
        if kind == 1
    }
    for text in ("The quick brown fox jumps over the lazy dog.", "Übermäßig lange Wörter, straßenbahnhaltestelle!"):
        assert [tokenizer.decode([t]) for t in tokenizer.encode(text, special_tokens=False)] == _greedy(
            text, vocabulary
        )


def _greedy(text, score):
    parts = list(text.replace(" ", "▁"))
    while unions := [(score[a + b], -at) for at, (a, b) in enumerate(pairwise(parts)) if a + b in score]:
        at = -max(unions)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return [part.replace("▁", " ") for part in parts]


def test_added_plain_tokens_are_text():
    made = backend()
    made.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    tokenizer = Tokenizer(made)
    assert tokenizer.decode(tokenizer.encode("<think>the")) == "<think>the"
