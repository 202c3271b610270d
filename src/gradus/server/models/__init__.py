"""Several models behind one port: `registry.py`, the models by name. Which of them are loaded is decided by
`gradus.server.engine.pool`."""
