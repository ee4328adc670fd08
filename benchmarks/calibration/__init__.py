"""The experiment that the comparison rule rests on: seeded faults and honest variants, counted.

``python benchmarks/calibrate.py`` prints, for the rules in use elsewhere and for ours, how
many faults each catches and how many honest results each rejects. The rule's constants were fixed
on ``programs.FIXING`` and a few seeds; the other programs and seeds were held back.
"""
