"""``backbay new``: a package that publishes a backend, from templates.

What is written works as it stands, down to its tests. Nothing that exists is overwritten, and no
name is given that another backend, distribution or module has.
"""

from backbay.new.naming import package_of
from backbay.new.writing import LICENSES, Author, author_of, write

__all__ = ["LICENSES", "Author", "author_of", "package_of", "write"]
