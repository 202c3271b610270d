"""A model that llama.cpp has split into several files: `name-00001-of-00003.gguf` and so on.

Each part holds some of the tensors. The first one also has the metadata, so it is the one to open.
"""

import re
from pathlib import Path
from typing import Any

from gradus.errors import CheckpointError
from gradus.loading.quoting import quoted


def parts_after(path: Path, metadata: dict[str, Any]) -> list[Path]:
    """Return the files of all other parts, in order; none if the model is in one file.

    Raises CheckpointError if `path` is not the first part, or if a part is missing.
    """
    count, number = metadata.get("split.count", 1), metadata.get("split.no", 0)
    if type(count) is not int or type(number) is not int or not 0 <= number < max(count, 1) <= 99_999:
        raise CheckpointError(
            f"{path.name}: metadata split.no {quoted(number)} and split.count {quoted(count)} are wrong"
        )
    if count <= 1:
        return []
    merge = "or merge the parts with `llama-gguf-split --merge FIRST_PART OUTPUT`"
    this = f"{path.name}: is part {number + 1} of {count}"
    name = re.fullmatch(r"(.*)-(\d{5})-of-(\d{5})\.gguf", path.name)
    if name is None or (int(name[2]), int(name[3])) != (number + 1, count):
        raise CheckpointError(f"{this}: name it MODEL-{number + 1:05}-of-{count:05}.gguf, as llama.cpp does, {merge}")
    files = [path.with_name(f"{name[1]}-{part + 1:05}-of-{count:05}.gguf") for part in range(count)]
    if number:
        raise CheckpointError(f"{this}: open {files[0].name}, which finds the others, {merge}")
    for file in files:
        if not file.is_file():
            raise CheckpointError(f"{this}, and {file.name} is missing: put all parts into one folder, {merge}")
    return files[1:]
