"""Every setting, described once: name, type, default, bounds, help. No torch here.

Read in this order:

    options.py       what an engine is built with
    settings.py      what every front end offers, and how that becomes an engine's options
    description.py   how a described field becomes checks, flags, keywords and tables

To add a setting of the engine, add one field to `EngineOptions` (phases can heed it, by naming it in `USES`) or to
`EngineConfig` (the final engine's alone), and use it where the engine is built. It is then an option of the commands,
a key of the server's YAML file, a keyword of `LLM`, an entry of `/stats`, and a row of the table in docs/serving.md,
which `python -m gradus.cli.settings_table docs/serving.md` renews.
"""
