"""Engines put together: final.py composes the final engine, checkpoint.py loads a model and builds its engine."""
