"""Is a result right? Eager, float64 truth, and the rule by which a backend's result is judged.

::

    golden = make_golden(workload, train=True)
    with golden.context():
        call = torch.compile(workload.model, backend=...)
        proof = golden.judge(observe(call, golden.at(workload), train=True))
    proof.passed, proof.worst.where, proof.worst.reason
"""

from backbay.errors import ProofImpossible
from backbay.proof.fingerprint import digest
from backbay.proof.golden import Golden
from backbay.proof.judging import Proof
from backbay.proof.making import make_golden
from backbay.proof.noise import Noise
from backbay.proof.oracle import Verdict, compare
from backbay.proof.outcome import Outcome, observe, unchanged
from backbay.proof.step import Step
from backbay.proof.truth import in_float64
from backbay.workloads.workload import Workload

__all__ = [
    "Golden",
    "Noise",
    "Outcome",
    "Proof",
    "ProofImpossible",
    "Step",
    "Verdict",
    "Workload",
    "compare",
    "digest",
    "in_float64",
    "make_golden",
    "observe",
    "unchanged",
]
