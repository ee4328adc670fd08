"""Which names a distribution may publish: those that a user can read and type."""

from backbay.messages import hidden
from backbay.registry.spec import LONGEST_NAME

_SPECIAL = {
    ":": "must not have a colon, as module:attribute has",
    ",": "must not have a comma, which separates names",
}
_WRITTEN_TOGETHER = (
    {"LATIN", "CJK", "IDEOGRAPHIC", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"},
    {"LATIN", "CJK", "BOPOMOFO"},
    {"LATIN", "CJK", "HANGUL"},
)
"""Scripts of one text: Unicode TS 39, "highly restrictive"."""


def name_problem(name: str) -> str | None:
    """Return why nobody could type a name, or be sure of what they read; nothing where they can."""
    if not 0 < len(name) <= LONGEST_NAME:
        return f"must have 1 to {LONGEST_NAME} characters"
    if name.startswith("-"):
        return "must not begin with a hyphen, as options do"
    special = next((why for x, why in _SPECIAL.items() if x in name), None)
    if special is not None:
        return special
    if any(x.isspace() for x in name):
        return "must not have a space"
    if any(map(hidden, name)):
        return "must not have a character that can't be seen"
    return None if name.isascii() else _script_problem(name)


def _script_problem(name: str) -> str | None:
    import unicodedata  # noqa: PLC0415 (few names need it)

    normal = unicodedata.normalize("NFKC", name)
    if normal != name:
        return f"must not look like another, {normal!a}"
    letters = (unicodedata.name(x, "UNKNOWN") for x in name if x.isalpha())
    scripts = {x.partition(" ")[0] for x in letters}
    if len(scripts) > 1 and not any(scripts <= together for together in _WRITTEN_TOGETHER):
        return f"must not mix scripts: {', '.join(sorted(x.title() for x in scripts))}"
    return None
