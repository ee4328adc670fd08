"""Compilers with a runtime of their own as backends of torch.compile, one file each.

Importing this imports none of them, nor torch.
"""

import backbay

__version__ = "0.1.0"

if backbay.__version__ != __version__:
    raise ImportError(
        f"backbay-adapters {__version__} needs backbay of the same version, and this is backbay "
        f"{backbay.__version__}: pip install 'backbay=={__version__}'"
    )
