"""Every setting that an engine is built with: names, defaults, bounds. No torch here.

Read options.py first (what an engine takes), then phase_options.py (which phase heeds which setting).
"""
