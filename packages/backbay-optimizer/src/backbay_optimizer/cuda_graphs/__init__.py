"""Compiled graphs as CUDA graphs, where nobody can tell the difference.

``codegen`` hands Inductor's code over to be recorded, ``safety`` says which of it can be,
``replaying`` decides call by call, ``recording`` has one recording, ``capture`` its memory, and
``results`` what the caller gets of it.
"""
