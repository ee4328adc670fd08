"""Diagnoses as they could be: a layer of three kernels, its findings, and what varies."""

from backbay.diagnose import (
    CompiledGraph,
    Diagnosis,
    KernelRecord,
    LimitRecord,
    NeighbourRecord,
    OutsideRecord,
    RankedFinding,
    SideRecord,
    StepRecord,
    TrialRecord,
    WhiteBox,
)
from backbay.diagnose.record import Settings
from backbay.explain import Explanation
from backbay.explain.record import (
    BreakRecord,
    CallRecord,
    GraphRecord,
    NodeRecord,
    RecompileRecord,
)
from backbay.explain.record import Settings as ExplainSettings
from backbay.reporting.machine import Machine

FILE = "/nowhere/model.py"
LIFT, GATE, MEAN = f"{FILE}:9: h = self.lift(x)", f"{FILE}:11: g = h * 2", f"{FILE}:12: g.mean()"


def kernel(name, work="pointwise", ms=1.0, lines=(GATE,), **more):
    extern = name.startswith(("extern_kernels.", "torch.ops."))
    given = {
        "kind": "extern" if extern else "cpp",
        "operators": ("aten.mul.Tensor",),
        "share": None if ms is None else ms / 10,
        "bytes": 4096,
        "operations": None,
        "of_limit": 0.5,
        "not_fused": (),
        "code": "" if extern else f"void {name.partition(':')[0]}() {{}}",
    }
    return KernelRecord(name=name, work=work, ms=ms, lines=lines, **{**given, **more})


LAYER = (
    kernel("extern_kernels.mm:1", "gemm", 4.0, (LIFT,), of_limit=0.8, operations=1 << 20),
    kernel(
        "cpp_fused_mul_0:2",
        lines=(MEAN, GATE),
        not_fused=(NeighbourRecord(kernel="extern_kernels.mm:1", reason="torch's own"),),
    ),
    kernel(
        "cpp_fused_mean_1:3",
        "reduction",
        2.0,
        (MEAN,),
        not_fused=(NeighbourRecord(kernel="cpp_fused_mul_0:2", reason="no shared axis"),),
    ),
)
MODULE = """
def call(args):
    # [Provenance debug handles] extern_kernels.mm:1
    extern_kernels.mm(arg0_1, arg1_1, out=buf0)
    # [Provenance debug handles] cpp_fused_mul_0:2
    cpp_fused_mul_0(buf0, buf1)
"""


def compiled(*kernels, number=0, code=MODULE):
    return CompiledGraph(
        number=number,
        compile_id=f"{number}/0",
        direction="inference",
        calls=1.0,
        kernels=kernels,
        code=code,
    )


def inside(*graphs, **changed):
    by_work = {}
    for one in (k for g in graphs for k in g.kernels):
        by_work[one.work] = by_work.get(one.work, 0.0) + (one.ms or 0.0)
    step = StepRecord(
        wall_ms=12.0,
        wall_ci_ms=(11.5, 12.5),
        kernels_ms=sum(by_work.values()),
        outside_ms=0.5,
        copies_ms=0.0,
        guards_ms=0.25,
        host_ms=2.25,
        by_work=by_work,
        peak_bytes=None,
    )
    given = {
        "outside": (OutsideRecord(name="aten::topk", ms=0.5),),
        "step": step,
        "limit": LimitRecord(copy_bytes_s=2e10, product_operations_s=1e11),
        "phases_s": {"Dynamo": 1.0, "lowering": 3.0},
        "compile_s": 4.0,
        "notes": (),
    }
    return WhiteBox(graphs=graphs, **{**given, **changed})


def node(name, *inputs, line="", op="call_function", target="add", shape="4x8", module=""):
    return NodeRecord(
        name=name,
        op=op,
        target=target,
        shape=shape,
        dtype="float32",
        device="cpu",
        line=line,
        module=module,
        inputs=inputs,
    )


def handed(*nodes, number=0):
    return GraphRecord(
        number=number,
        compile_id="0/0",
        call=0,
        function=f"forward ({FILE}:8)",
        dynamic={},
        nodes=nodes,
        operators={},
        groups=(),
        guards=(),
        stages=(),
    )


SMALL = handed(
    node("l_x_", op="placeholder", target="l_x_"),
    node("h", "l_x_", line=LIFT, target="linear"),
    node("g", "h", line=GATE, target="mul"),
    node("output", "g", op="output", target="output"),
)
BREAK = BreakRecord(
    reason="print can't be compiled",
    explanation="",
    hints=("leave it out",),
    context="",
    url="",
    line=f"{FILE}:10: print(h)",
    stack=(),
    function=f"forward ({FILE}:8)",
    skipped=True,
    calls=(0,),
)
AGAIN = RecompileRecord(
    compile_id="0/1",
    function=f"forward ({FILE}:8)",
    reasons=(),
    dynamic={"s0": "L['x'].size()[0]"},
    kind="size",
    subject="the size of x's dimension 0",
    says="the size of x's dimension 0 changed from 4 to 5",
    line="",
    compile_s=1.5,
    limit=False,
)


def explanation(**changed):
    settings = ExplainSettings(
        workload="mine", backend=None, mode="infer", dtype="float32", device="cpu", seed=0
    )
    given = {
        "findings": (),
        "graphs": (SMALL,),
        "breaks": (BREAK,),
        "calls": (
            CallRecord(name="first", graphs=1),
            CallRecord(name="batch 4 to 5", graphs=1, recompiles=(AGAIN,)),
        ),
        "problem": None,
        "notes": (),
    }
    return Explanation(
        created="2026-11-25T12:00:00+00:00",
        versions={"torch": "2.13.0"},
        settings=settings,
        sentence="one graph",
        **{**given, **changed},
    )


def side(step_ms, **changed):
    given = {"graphs": 1, "breaks": 0, "recompiles": 0, "compile_s": 4.0, "peak_bytes": None}
    interval = None if step_ms is None else (step_ms * 0.99, step_ms * 1.01)
    return SideRecord(step_ms=step_ms, step_ci_ms=interval, **{**given, **changed})


CONFIRMED = TrialRecord(
    remedy="torch._dynamo.config.reorderable_logging_functions = {print}",
    status="confirmed",
    sentence="2 graph breaks before, 0 after; the step is 1.50x [1.45, 1.55] as fast",
    before=side(12.0, graphs=3, breaks=2),
    after=side(8.0),
    speedup=1.5,
    speedup_ci=(1.45, 1.55),
)


def finding(code="BB101", severity="warning", **changed):
    given = {
        "message": "print can't be compiled",
        "line": f"{FILE}:10: print(h)",
        "fixes": ("leave print out",),
        "count": 1,
        "cost_s": None,
        "calls": (0,),
        "page": "",
    }
    return RankedFinding(code=code, severity=severity, **{**given, **changed})


def diagnosis(box=None, *, findings=(), explained=None, **changed):
    return Diagnosis(
        created="2026-11-25T12:00:00+00:00",
        machine=Machine(
            system="Linux", processor="A processor", cores=2, memory_bytes=1 << 34, device="cpu"
        ),
        versions={"python": "3.11.7", "torch": "2.13.0"},
        settings=Settings(
            workload="mine.py:model",
            arm="inductor",
            dynamic=None,
            fullgraph=False,
            mode="infer",
            dtype="float32",
            device="cpu",
            seed=3,
        ),
        findings=findings,
        inside=box,
        explanation=explained or explanation(),
        **{"sentence": "nothing was found that has to be fixed", "notes": (), **changed},
    )


FINDINGS = (
    finding(trials=(CONFIRMED,), saved_s=4.0),
    finding("BB703", "note", message="2 repeated blocks", line="", fixes=()),
)
