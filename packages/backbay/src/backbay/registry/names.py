"""The names of backends as types: a built-in name completes in an editor, a typo is an error.

The idea is that of Narwhals (``narwhals/_typing.py``): a ``Literal`` of the names that are known
when code is checked, and a ``NewType`` of ``str`` for those of plugins, which no checker can know.
`stubs.py` adds the plugins that are installed.

What a name is written into takes `BackendName`: the package's functions, ``compile``, ``race``,
``verify`` and ``explain``. A `Registry`'s own methods take any text, as programs have it.
"""

from typing import Literal, NewType, TypeAlias

BuiltinName: TypeAlias = Literal[
    "aot_eager",
    "aot_eager_decomp_partition",
    "aot_eager_decomp_partition_crossref",
    "aot_eager_decomp_partition_with_mode",
    "aot_eager_default_partitioner",
    "aot_ts",
    "backbay",
    "backbay.auto",
    "backbay.default",
    "backbay_fold",
    "backbay_gelu",
    "backbay_print",
    "backbay_report",
    "backbay_silu",
    "cudagraphs",
    "dynamo_accuracy_minifier_backend",
    "dynamo_minifier_backend",
    "eager",
    "eager_debug",
    "eager_noexcept",
    "inductor",
    "invoke_subgraph",
    "non_leaf_compile_error_TESTING_ONLY",
    "openxla",
    "openxla_eval",
    "pre_dispatch_eager",
    "relu_accuracy_error_TESTING_ONLY",
    "relu_compile_error_TESTING_ONLY",
    "relu_runtime_error_TESTING_ONLY",
    "ts",
    "tvm",
]
"""Torch's own names and Backbay's: known wherever both are installed, ready to run or not."""

PluginName = NewType("PluginName", str)
"""Any other name: ``PluginName("openvino")``, ``PluginName("my_backend.py:fn")``, or one that is
only known when the program runs, ``PluginName(arguments.backend)``. It is looked up when used."""

BackendName: TypeAlias = BuiltinName | PluginName
"""What names a backend."""
