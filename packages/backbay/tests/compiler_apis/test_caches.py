"""Cache artefacts that are loaded are hit with our passes, and missed by changed ones."""

import pytest

CACHED = """
import sys
import torch
import backbay
from backbay.kit.backend import Backend
from backbay.kit.passes import graph_pass
from torch._dynamo.utils import counters

ran = []

@graph_pass(level="aten", sources=({factor!r},))
def scale(graph_module):
    ran.append(1)
    for node in list(graph_module.graph.nodes):
        if node.target == torch.ops.aten.addmm.default:
            node.kwargs = {{"beta": {factor}}}
    graph_module.recompile()
    return 1

torch._inductor.config.fx_graph_cache = True
stored = {artefacts!r}
if {load}:
    torch.compiler.load_cache_artifacts(open(stored, "rb").read())
x = torch.ones(32, 32)  # a product alone: Inductor calls torch for it, and starts no C++ compiler
for number, name in enumerate({names!r}):
    ran.clear(), counters.clear()
    passes = (*backbay.lookup_backend(name).passes, scale)
    backend = type("Scales", (Backend,), {{"passes": passes}})()
    function = lambda x: torch.addmm(x, x[:, : number + 1], x[: number + 1])
    out = torch.compile(function, backend=backend)(x)
    graph_hits = counters["inductor"]["fxgraph_cache_hit"]
    hit = graph_hits + counters["aot_autograd"]["autograd_cache_hit"] > 0
    print("SEEN", out[0, 0].item() - number - 1, len(ran), hit)
if not {load}:
    artefacts, info = torch.compiler.save_cache_artifacts()
    open(stored, "wb").write(artefacts)
"""


@pytest.mark.slow
def test_loaded_cache_artefacts_are_hit_with_our_passes_and_missed_by_a_changed_one(
    run_python, tmp_path, monkeypatch
):
    names = ["backbay", "backbay_silu", "backbay_fold"]  # most passes, a kernel, several in turn

    def run(folder, factor, *, load):
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / folder))
        artefacts = str(tmp_path / "artefacts")
        program = CACHED.format(names=names, factor=factor, artefacts=artefacts, load=load)
        lines = run_python(program).stdout.splitlines()
        return [x.split()[1:] for x in lines if x.startswith("SEEN")]

    assert run("a", 5.0, load=False) == [["5.0", "1", "False"]] * len(names)
    # Hit: the pass had no need to run.
    assert run("b", 5.0, load=True) == [["5.0", "0", "True"]] * len(names)
    assert run("c", 7.0, load=True) == [["7.0", "1", "False"]] * len(names)
