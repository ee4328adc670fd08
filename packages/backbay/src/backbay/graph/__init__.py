"""What a backend is handed: read it, check it, match it, rewrite it.

Public by module: ``match`` (patterns), ``rewrite`` (put nodes in, replace them), ``values`` (what
nodes would give), ``aliases`` (shared memory, parameters), ``effects`` (what does more than
compute), ``constant``, ``order``, ``layouts``, ``region``, ``checkpoints``, ``canonical``,
``report``; of each, the names without an underscore in front.
"""
