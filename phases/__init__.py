"""The course: one folder a phase, each adding exactly one idea to the engine before it; and museum/, with faults."""
