"""`gradus generate`: continue one prompt, and show the text as it arrives."""

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from gradus.cli import interpreted, options, terminal
from gradus.cli.engine import open_llm
from gradus.engine.request import SamplingParams
from gradus.errors import RequestError
from gradus.text.completion import Completion, Delta

if TYPE_CHECKING:
    from gradus.text.llm import LLM

DEFAULT = SamplingParams()


@options.for_one_prompt
def generate(
    prompt: Annotated[str, Argument(help='The text to continue; "-" reads it from standard input.')],
    max_tokens: options.MaxTokens = DEFAULT.max_tokens,
    temperature: options.Temperature = DEFAULT.temperature,
    top_k: options.TopK = DEFAULT.top_k,
    top_p: options.TopP = DEFAULT.top_p,
    min_p: options.MinP = DEFAULT.min_p,
    repetition_penalty: options.RepetitionPenalty = DEFAULT.repetition_penalty,
    presence_penalty: options.PresencePenalty = DEFAULT.presence_penalty,
    frequency_penalty: options.FrequencyPenalty = DEFAULT.frequency_penalty,
    seed: options.Seed = None,
    n: options.Samples = DEFAULT.n,
    stop: options.Stop = None,
    ignore_eos: options.IgnoreEos = False,
    json_schema: options.JsonSchema = None,
    any_json: options.AnyJson = False,
    regex: options.Regex = None,
    grammar: options.Grammar = None,
    choice: options.Choice = None,
    stream: Annotated[
        bool | None,
        Option(
            help="Show text as it arrives, or only when it is complete. With --json: one JSON object per line. "
            "By default a single text is streamed; JSON and several samples are not."
        ),
    ] = None,
    json: options.Json = False,
    **settings: Any,
) -> int:
    """Continue a text. The text goes to stdout, statistics to stderr.

    Examples:

      gradus generate "Once upon a time"
      gradus generate "The three primary colors are" --max-tokens 40 --phase p00
      gradus generate "The three primary colors are" --impl exercises/p01
      gradus generate "A haiku about rain:" --temperature 0.8 --seed 7 --n 3
      gradus generate - < prompt.txt > answer.txt
      gradus generate "2 + 2 =" --json | python -m json.tool
      gradus generate "A person, as JSON:" --json-schema person.json
      gradus generate "Is water wet?" --choice yes --choice no
    """
    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        seed=seed,
        n=n,
        stop=tuple(stop or ()),
        ignore_eos=ignore_eos,
        structured=options.structured(json_schema, any_json, regex, grammar, choice),
    )
    if stream and n > 1 and not json:
        raise RequestError("--stream shows one text at a time: leave it out with --n, or add --json", param="stream")
    return _run(terminal.standard_input() if prompt == "-" else prompt, params, settings, stream=stream, json=json)


def _run(text: str, params: SamplingParams, settings: dict[str, Any], *, stream: bool | None, json: bool) -> int:
    """Generate, and show the answers. Returns the exit status."""
    kernels = interpreted.wanted(settings)
    if kernels is not None:
        terminal.print_note(kernels.note)
        settings, params = kernels.settings, kernels.shortened(params)
    llm = open_llm(settings, max_sequences=params.n)
    with kernels.counting() if kernels is not None else nullcontext():
        deltas = llm.stream(text, params)
        if json:
            completions = _stream_json(deltas) if stream else _whole_json(llm, deltas)
        else:
            completions = _stream_text(deltas) if stream is not False and params.n == 1 else _whole_text(deltas)
            terminal.print_note(terminal.statistics(completions))
    failed = [completion for completion in completions if completion.finish_reason == "error"]
    for completion in failed if params.structured is not None or kernels is not None else ():
        terminal.print_note(f"error: {completion.error}")
    parted = kernels is not None and not failed and not _compared(kernels, text, params, completions)
    return 1 if failed or parted else 0


def _compared(
    kernels: interpreted.Interpreted, text: str, params: SamplingParams, completions: list[Completion]
) -> bool:
    """Say which kernels ran, and whether the tokens are the reference's. Returns that."""
    for line in kernels.kernels():
        terminal.print_note(line)
    parting = kernels.parting(text, params, completions)
    tokens = " ".join(str(token) for completion in completions for token in completion.token_ids)
    terminal.print_note(f"tokens {tokens}")
    if parting is None:
        terminal.print_note(f"the same as {interpreted.REFERENCE}'s, in torch")
    else:
        terminal.print_mistake(f"the tokens are not those of the reference: {parting}")
    return parting is None


def _stream_text(deltas: Iterable[Delta]) -> list[Completion]:
    completions: list[Completion] = []
    for delta in deltas:
        terminal.print_text(delta.text)
        completions += _finished(delta)
    terminal.print_text("\n")
    return completions


def _whole_text(deltas: Iterable[Delta]) -> list[Completion]:
    completions = _collect(deltas)
    for completion in completions:
        heading = f"[{completion.index}] " if len(completions) > 1 else ""
        terminal.print_text(f"{heading}{completion.text}\n")
    return completions


def _stream_json(deltas: Iterable[Delta]) -> list[Completion]:
    """Print lines {"index", "text", "token_ids"} as they arrive, and {"index", "completion"} where a sample ends."""
    completions = []
    for delta in deltas:
        terminal.print_json({"index": delta.index, "text": delta.text, "token_ids": delta.token_ids}, lines=True)
        for completion in _finished(delta):
            completions.append(completion)
            terminal.print_json({"index": delta.index, "completion": terminal.completion_json(completion)}, lines=True)
    return completions


def _whole_json(llm: "LLM", deltas: Iterable[Delta]) -> list[Completion]:
    completions = _collect(deltas)
    terminal.print_json(
        {
            "model": llm.checkpoint.name,
            "engine": llm.settings["engine"],
            "phase": llm.phase,
            "completions": [terminal.completion_json(completion) for completion in completions],
        }
    )
    return completions


def _collect(deltas: Iterable[Delta]) -> list[Completion]:
    finished = [completion for delta in deltas for completion in _finished(delta)]
    return sorted(finished, key=lambda completion: completion.index)


def _finished(delta: Delta) -> Iterator[Completion]:
    if delta.completion is not None:
        yield delta.completion
