"""The script that follows the site's pages: what it takes for a file, a command, a program."""

import sys
from pathlib import Path

import as_a_reader
import pytest
from as_a_reader import PAGES, ROOT, SHOWN, blocks, followed

PROGRAMS = Path(sys.executable).parent
PAGE = """\
# A page

1. A list with a file:

   ```python
   # model.py
   SIZE = 3
   ```

```sh
test -f model.py
exit 4  # exit code 4
```

```{code-cell} ipython3
from model import SIZE
```

```console
$ false
```

```python
assert SIZE == 3
```
"""


@pytest.fixture
def follow(tmp_path, monkeypatch):
    def follow(page: str) -> list[str]:
        (tmp_path / "docs").mkdir()
        (tmp_path / "docs" / "page.md").write_text(page)
        monkeypatch.setattr(as_a_reader, "ROOT", tmp_path)
        return list(followed("page", tmp_path / "folder", PROGRAMS))

    return follow


def test_a_page_is_followed_otherwise_than_it_is_read(follow):
    assert [(x.kind, x.line) for x in blocks(PAGE)] == [
        ("python", 6),
        ("sh", 11),
        ("python", 16),
        ("console", 20),
        ("python", 24),
    ]
    assert follow(PAGE) == []


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("exit 4  #", "exit 5  #", "page:11: exit code 5, where the page says 4"),
        ("test -f model.py", "test -f other.py", "page:11: exit code 1, where the page says 4"),
        ("SIZE == 3", "SIZE == 4", "page: its Python: exit code 1, where the page says 0"),
        ("```console", "```ruby", "page:20: a block of 'ruby'"),
    ],
)
def test_a_page_that_is_not_true_is_passed(follow, before, after, said):
    (problem,) = follow(PAGE.replace(before, after))
    assert problem.startswith(said)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_nothing_to_follow_or_what_nobody_can(page):
    found = list(blocks((ROOT / "docs" / f"{page}.md").read_text()))
    assert {x.kind for x in found} <= {"python", "sh", "toml"} | SHOWN
    assert any(x.kind == "sh" or (x.kind == "python" and x.file is None) for x in found)


def test_a_page_is_followed_by_nobody():
    pages = [x for y in ("tutorials", "howto") for x in (ROOT / "docs" / y).glob("*.md")]
    named = {f"{x.parent.name}/{x.stem}" for x in pages}
    assert named - set(PAGES) == {"howto/install"}
