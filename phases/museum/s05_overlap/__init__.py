"""Slow exhibit 5: see engine.py, then test.py; label.py and fixed.py give it away."""
