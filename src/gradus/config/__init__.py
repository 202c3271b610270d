"""Every setting, described once: name, type, default, bounds, help. No torch here.

Read in this order:

    options.py       the options of an engine
    settings.py      the settings of every front end, and how they become an engine's options
    description.py   how a described field becomes checks, flags, keywords and tables

To add a setting of the engine, add one field to `EngineOptions` (a phase can use it, by naming it in `USES`) or to
`EngineConfig` (only for the final engine), and use it where the engine is built. It is then an option of the commands,
a key of the server's YAML file, a keyword of `LLM`, an entry of `/stats`, and a row of the table in docs/serving.md,
which `python -m gradus.cli.settings_table docs/serving.md` renews.
"""
