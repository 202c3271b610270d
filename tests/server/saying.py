"""A core that says given texts, and a tokenizer whose template shows tools: to test what protocols make of answers."""

from dataclasses import replace

from gradus.engine.request import ModelLimits
from gradus.engine.sequence import Output
from gradus.server.engine.messages import ModelInfo
from tests.server.scripted import ScriptedCore
from tests.text.tools.builders import FAMILIES, tokenizer

END = 257  # <|im_end|>

CALL = '<tool_call>\n{"name": "look_up", "arguments": {"place": "Ulm", "days": [1, 2]}}\n</tool_call>'
THOUGHT = "<think>\nWhere is Ulm?\n</think>\n\n"


class SayingCore(ScriptedCore):
    """say: a function from a prompt's text to the answer's, or always the same answer. size: tokens of a step.

    The text is said token by token, then the end-of-sequence token. A request's constraint is accepted, and kept if
    `say` keeps it. cached: tokens of each prompt that count as cached. `prompts`: the texts of all prompts so far.
    """

    def __init__(
        self, say="Hello.", *, family="hermes", template=None, size=1, cached=0, context_length=4096, **options
    ):
        super().__init__(context_length=context_length, **options)
        source, shown, controls = FAMILIES[family]
        self.tokenizer = tokenizer(template or source, shown, controls)
        self.limits = ModelLimits(
            vocab_size=258 + len(shown) + len(controls),
            context_length=context_length,
            eos_token_ids=(END,),
            structured=True,
            lazy=True,
        )
        self.info = ModelInfo("saying", "p99", "p99", "cpu", "float32", self.limits, settings={"max_sequences": 4})
        self.say = say if callable(say) else lambda prompt: say
        self.size, self.cached = size, cached
        self.requests, self.prompts, self._answers = [], [], {}

    def submit(self, request):
        prompt = self.tokenizer.decode(request.prompt, skip_special=False)
        self._answers[request.id] = [*self.tokenizer.encode(self.say(prompt), special_tokens=False), END]
        self.requests.append(request)
        self.prompts.append(prompt)
        super().submit(request)

    def _advance(self, sample):
        if self.poison in sample.request.prompt:
            return self._end(sample, (), "error")
        answer, request = self._answers[sample.request.id], sample.request
        said = len(sample.tokens)
        tokens = tuple(answer[said : min(said + self.size, request.max_tokens)])
        sample.tokens += tokens
        self.totals.generated_tokens += len(tokens)
        if tokens[-1] == END:
            return self._end(sample, tokens, "stop")
        if len(sample.tokens) == request.max_tokens:
            return self._end(sample, tokens, "length")
        return Output(request.id, sample.index, tokens)

    def _end(self, sample, tokens, reason):
        last = super()._end(sample, tokens, reason)
        return replace(last, cached_tokens=self.cached, stop_reason=END if reason == "stop" else None)


def keeps_to_a_form(request):
    """Whether all of a request's answer is constrained, rather than the calls in a free one."""
    return request.params.structured is not None and request.params.structured.lazy is None
