"""Compiled graphs as CUDA graphs, where nobody can tell the difference.

``codegen`` hands Inductor's code over to be recorded, and ``safety`` says which of it can be.
``replaying`` decides call by call for inference, and ``training`` for a forward and its backward;
``replayable`` has what both ask, and ``recordings`` what they share, and how much of it there may
be. ``recording`` has one recording, ``capture`` its memory, ``addresses`` the inputs that it reads
where they are, ``buffers`` those that it copies, ``kept`` what a forward saves for its backward,
and ``results`` what the caller gets.
"""
