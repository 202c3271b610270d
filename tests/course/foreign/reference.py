"""The course's own engines as programs that speak docs/protocol.md: the judge must find nothing to say about them.

python -m tests.course.foreign.reference p03        answers lines on its standard input
"""

import json
import sys
from typing import Any

import torch

from gradus import phases
from gradus.config.options import EngineOptions
from gradus.course.probe import EngineProbe, Step
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.errors import RequestError
from gradus.loading import load_model, open_checkpoint


class Reference:
    def __init__(self, phase: str) -> None:
        self.phase = phase

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            match message["do"]:
                case "configure":
                    self.configure(message)
                case "submit":
                    self.submit(message)
                case "step":
                    return self.step()
        except RequestError as error:
            return {"error": str(error)}
        return {"ok": True}

    def configure(self, message: dict[str, Any]) -> None:
        checkpoint = open_checkpoint(message["model"])
        model = load_model(checkpoint, dtype=torch.float32, device="cpu")
        self.limits = ModelLimits(checkpoint.config.vocab_size, checkpoint.config.context_length)
        paged = {"page_size": message["page_size"], "cache_tokens": message["pages"] * message["page_size"]}
        budget = {"token_budget": message["token_budget"]} if message["token_budget"] else {}
        options = EngineOptions(self.limits, message["sequences"], **(paged if message["pages"] else {}), **budget)
        self.engine = phases.load(self.phase).build(model, options)
        self.probe = EngineProbe(self.engine)
        self.probe.record()
        self.known: dict[str, int] = {}

    def submit(self, message: dict[str, Any]) -> None:
        names = ("max_tokens", "temperature", "seed")
        params = SamplingParams(**{name: message[name] for name in names}, ignore_eos=True)
        self.engine.submit(Request.create(message["id"], message["prompt"], params, self.limits))
        self.known[message["id"]] = len(message["prompt"])

    def step(self) -> dict[str, Any]:
        before = self.probe.steps[-1] if self.probe.steps else None
        outputs = self.engine.step()
        made = {output.request_id: list(output.tokens) for output in outputs}
        planned = self.probe.steps[-1] if self.probe.steps and self.probe.steps[-1] is not before else None
        spans = [self.span(span, made.get(span.request_id, [])) for span in planned.spans] if planned else []
        for id, tokens in made.items():
            self.known[id] += len(tokens)
        return {"spans": spans, "ended": [output.request_id for output in outputs if output.finish_reason]} | (
            self.pages(planned)
        )

    def span(self, span: Any, tokens: list[int]) -> dict[str, Any]:
        drafts = list(span.tokens[self.known[span.request_id] - span.start :])
        return {"id": span.request_id, "start": span.start, "count": span.count, "tokens": tokens, "drafts": drafts}

    def pages(self, planned: Step | None) -> dict[str, Any]:
        counts = planned.pages if planned else self.probe.pages()
        if counts is None:
            return {}
        tables = {id: list(each[0]) for (id, _), each in planned.tables.items()} if planned else {}
        return {"tables": tables, "free": counts.free, "idle": counts.idle}


def main() -> None:
    reference = Reference(sys.argv[1])
    for line in sys.stdin:
        print(json.dumps(reference.answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
