"""Output on a page is what the code before it prints, and is renewed when it is not."""

import pytest

from gradus.course import printed
from gradus.errors import ConfigError

PAGE = """# A page

```python tested
value = 6
print(value * 7)
```

```text printed
41
```

Some words.

```python tested
print("once more", value)
```
```text printed
```

```python tested
value += 1
```

```python
print("not run")
```
"""


def test_blocks_come_with_the_output_behind_them_and_only_with_theirs():
    found = printed.blocks(PAGE)
    assert [block.printed for block in found] == ["41\n", "", None]
    assert [block.code.splitlines()[0] for block in found] == ["value = 6", 'print("once more", value)', "value += 1"]


def test_stale_output_is_renewed_and_nothing_else_changes():
    fresh = printed.refreshed(PAGE)
    assert fresh == PAGE.replace("41\n", "42\n").replace("printed\n```", "printed\nonce more 6\n```")
    assert printed.refreshed(fresh) == fresh


def test_a_page_is_rewritten_only_if_it_is_stale(tmp_path):
    page = tmp_path / "README.md"
    page.write_text(PAGE)
    assert printed.rewrite(page) and not printed.rewrite(page)
    assert "42\n" in page.read_text()
    with pytest.raises(ConfigError, match="there is no page"):
        printed.rewrite(tmp_path / "nothing.md")


def test_code_that_fails_fails():
    with pytest.raises(ZeroDivisionError):
        printed.refreshed("```python tested\n1 / 0\n```\n")
