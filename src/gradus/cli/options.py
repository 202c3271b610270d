"""Options that several commands share: which model runs where, and how tokens are chosen.

Numbers are checked by SamplingParams and by the engine, as for every other front end; typer only parses them.
"""

from typing import Annotated

from typer import Option

DEFAULT_MODEL = "smollm2-135m"
_MODEL, _SAMPLING = "Model", "Sampling"

_model = Option(
    "--model",
    "-m",
    help="A name of `gradus models`, a folder, a .gguf file, a hub id, or random:<shape>.",
    rich_help_panel=_MODEL,
)
_device = Option(help="auto (a GPU if there is one), cpu or cuda.", rich_help_panel=_MODEL)
_dtype = Option(help="auto, float32, bfloat16 or float16.", rich_help_panel=_MODEL)

Model = Annotated[str, _model]
Device = Annotated[str, _device]
Dtype = Annotated[str, _dtype]
# for `serve`, where an option that is not given leaves the configuration file's value
ModelOrNone = Annotated[str | None, _model]
DeviceOrNone = Annotated[str | None, _device]
DtypeOrNone = Annotated[str | None, _dtype]

Phase = Annotated[
    str | None,
    Option(
        "--phase",
        "-p",
        help="Run with this phase of the course, as in p01; by default with the final engine.",
        rich_help_panel=_MODEL,
    ),
]
ContextLength = Annotated[
    int | None,
    Option(
        "--context-length",
        "--max-context",
        help="Most tokens of prompt and output; what the model was made for by default.",
        rich_help_panel=_MODEL,
    ),
]
MemoryFraction = Annotated[
    float | None,
    Option(
        help="How much of the device's memory may be in use, all told: the cache gets the rest. 0.9 by default; on a "
        "CPU 0.5 of what is free. For the final engine.",
        rich_help_panel=_MODEL,
    ),
]
SwitchOff = Annotated[
    list[str] | None,
    Option(
        help="Leave out an optimization of the final engine: prefix_cache, chunked, kernels, graphs or overlap; may be "
        "given several times.",
        rich_help_panel=_MODEL,
    ),
]

MaxTokens = Annotated[int | None, Option(help="Most tokens to generate; 256 by default.", rich_help_panel=_SAMPLING)]
Temperature = Annotated[
    float,
    Option(help="0 always takes the likeliest token; 1 samples the model's distribution.", rich_help_panel=_SAMPLING),
]
TopK = Annotated[int, Option(help="Sample among the k likeliest tokens; 0 is off.", rich_help_panel=_SAMPLING)]
TopP = Annotated[
    float,
    Option(
        help="Sample among the likeliest tokens that together reach this probability; 1 is off.",
        rich_help_panel=_SAMPLING,
    ),
]
MinP = Annotated[
    float,
    Option(help="Drop tokens less likely than this share of the likeliest; 0 is off.", rich_help_panel=_SAMPLING),
]
RepetitionPenalty = Annotated[
    float, Option(help="Make tokens seen in prompt or output less likely; 1 is off.", rich_help_panel=_SAMPLING)
]
PresencePenalty = Annotated[
    float, Option(help="Subtract this once from tokens in the output; 0 is off.", rich_help_panel=_SAMPLING)
]
FrequencyPenalty = Annotated[
    float, Option(help="Subtract this for each occurrence in the output; 0 is off.", rich_help_panel=_SAMPLING)
]
Seed = Annotated[
    int | None, Option(help="The same seed gives the same tokens; drawn when left out.", rich_help_panel=_SAMPLING)
]
Samples = Annotated[int, Option("--n", help="Independent samples of the prompt.", rich_help_panel=_SAMPLING)]
Stop = Annotated[
    list[str] | None,
    Option(help="End before this text appears; may be given several times.", rich_help_panel=_SAMPLING),
]
IgnoreEos = Annotated[
    bool, Option("--ignore-eos", help="Go on when the model says it is done.", rich_help_panel=_SAMPLING)
]

Json = Annotated[bool, Option("--json", help="JSON on stdout, for programs.")]
