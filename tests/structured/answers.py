"""A schema that tests of engines ask answers of: short, with each kind of value."""

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "sizes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
        "color": {"enum": ["red", "green"]},
    },
    "required": ["name", "sizes", "color"],
    "additionalProperties": False,
}
