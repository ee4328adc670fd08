"""``backend="backbay"``: Inductor, after rewrites of the graph that it lacks.

``backend`` has the backend, ``passes`` one rewrite a file, ``kernels`` one operator a file, and
``tuning`` what times a graph with and without its rewrites.
"""

import backbay

__version__ = "0.1.0"

if backbay.__version__ != __version__:
    raise ImportError(
        f"backbay-optimizer {__version__} needs backbay of the same version, and this is backbay "
        f"{backbay.__version__}: pip install 'backbay=={__version__}'"
    )
