"""Two things that pyproject.toml cannot say about an editable install: it makes the course, `phases`, importable too,
and `gradus` is found wherever Python is started.

The course is read and changed in its repository, so a wheel leaves it out.
"""

import base64
import hashlib
import zipfile
from pathlib import Path

from setuptools import setup
from setuptools.command.editable_wheel import editable_wheel

PATH = "gradus_llm.pth"


class WithTheCourse(editable_wheel):
    def finalize_options(self) -> None:
        self.distribution.packages = [*self.distribution.packages, "phases"]
        self.distribution.package_dir = {**self.distribution.package_dir, "phases": "phases"}
        super().finalize_options()

    def run(self) -> None:
        """Add `src` to the path of modules. setuptools' own finder of packages comes after that path: a Python started
        next to a clone would take the clone, a folder named `gradus`, for the package."""
        super().run()
        (wheel,) = Path(self.dist_dir).glob("*.whl")
        add_file(wheel, PATH, f"{Path('src').resolve()}\n".encode())


def add_file(wheel: Path, name: str, content: bytes) -> None:
    """Add a file to a wheel, and to the wheel's record of files."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    with zipfile.ZipFile(wheel) as old:
        files = {entry: old.read(entry) for entry in old.infolist()}
    with zipfile.ZipFile(wheel, "w") as new:
        for entry, text in files.items():
            if entry.filename.endswith(".dist-info/RECORD"):
                text += f"{name},sha256={digest},{len(content)}\n".encode()
            new.writestr(entry, text)
        new.writestr(name, content)


setup(cmdclass={"editable_wheel": WithTheCourse})
