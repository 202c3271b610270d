"""One thing that pyproject.toml cannot say: an editable install also makes the course, `phases`, importable.

The course is read and changed in its repository, so a wheel leaves it out.
"""

from setuptools import setup
from setuptools.command.editable_wheel import editable_wheel


class WithTheCourse(editable_wheel):
    def finalize_options(self) -> None:
        self.distribution.packages = [*self.distribution.packages, "phases"]
        self.distribution.package_dir = {**self.distribution.package_dir, "phases": "phases"}
        super().finalize_options()


setup(cmdclass={"editable_wheel": WithTheCourse})
