"""Compiled graphs as CUDA graphs, where nobody can tell the difference.

``codegen`` hands Inductor's code over to be recorded, and ``safety`` says which of it can be.
``replaying`` decides call by call for inference, and ``training`` for a forward and its backward;
``replayable`` has what both ask, and ``recordings`` what they share. ``recording`` has one
recording, ``capture`` its memory, and ``results`` what the caller gets of it.
"""
