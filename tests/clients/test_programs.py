"""Client libraries in depth: each program of programs/ runs with the library that it imports, and checks by itself."""

import pytest

from tests.clients.conftest import PROGRAMS

LIBRARIES = {"anthropic_sdk": "anthropic", "openai_sdk": "openai"}


@pytest.mark.clients
@pytest.mark.timeout(300)
@pytest.mark.parametrize("program", LIBRARIES)
def test_a_library_works_as_its_users_use_it(client, program):
    said = client(LIBRARIES[program]).python(PROGRAMS / f"{program}.py")
    tests = (PROGRAMS / f"{program}.py").read_text().count("\ndef test_")
    assert len(said.splitlines()) == tests > 0, said


def test_every_program_is_run():
    assert {path.stem for path in PROGRAMS.glob("*.py")} == set(LIBRARIES)
