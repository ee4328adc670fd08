"""Names, origins, and the rules between them."""

import sys
import types

import pytest

import backbay
from backbay.errors import (
    BackendConflict,
    BackendLoadError,
    BackendNotFound,
    BackendUnavailable,
    InputError,
)
from backbay.registry import HIDDEN_TAGS, Registry
from backbay.registry.bridge import registered_in_torch


def compiler(graph_module, example_inputs):
    return graph_module.forward


def test_the_catalogue_names_what_the_installed_torch_registers(run_python):
    program = """
        import torch._dynamo.backends.registry as r
        r._lazy_import()
        tags = getattr(r, "_BACKEND_TAGS", None)
        for name, fn in r._COMPILER_FNS.items():
            print(name, ",".join(tags.get(name, ()) if tags is not None else fn._tags))
    """
    registered = {
        line.partition(" ")[0]: line.partition(" ")[2]
        for line in run_python(program).stdout.splitlines()
    }
    ours = {
        name: ",".join(spec.tags)
        for name, spec in Registry().specs().items()
        if spec.origin.kind == "torch"
    }
    assert ours == registered


def test_listing_hides_debug_and_experimental_as_torch_does(registry):
    assert registry.list_backends() == ["cudagraphs", "inductor", "openxla", "tvm"]
    everything = registry.list_backends(exclude_tags=())
    assert {"eager", "aot_eager", "openxla_eval"} <= set(everything)
    assert everything == registry.list_backends(exclude_tags=None)


def test_tags_that_are_asked_for_are_listed_also_where_the_backend_is_hidden(registry):
    registry.register_backend(compiler, "both", tags=["vendor", "experimental"])
    registry.register_backend(compiler, "one", tags=["vendor"])
    assert registry.list_backends(tags=["vendor"]) == ["both", "one"]
    assert registry.list_backends(("experimental",), tags=["vendor"]) == ["one"]
    assert registry.list_backends(tags=["experimental"]) == ["both", "openxla_eval"]
    assert set(registry.list_backends(tags=["vendor", "debug"])) > {"both", "one", "eager"}
    assert registry.list_backends(tags=[]) == []
    assert "both" not in registry.list_backends()


def test_a_tag_that_nobody_carries_gets_the_nearest(registry):
    with pytest.raises(InputError, match=r"tag 'Experimentl', did you mean: 'experimental'\?"):
        registry.list_backends(tags=["debug", "Experimentl"])
    with pytest.raises(InputError, match=r"carries the tag 'zzz'\. There are alias, debug, "):
        registry.check_tags(["zzz"])


def test_a_typo_gets_the_nearest_name_also_among_debug_backends(registry):
    with pytest.raises(BackendNotFound, match="did you mean: 'inductor'"):
        registry.lookup_backend("indcutor")
    with pytest.raises(BackendNotFound, match="did you mean: 'aot_eager'"):
        registry.lookup_backend("aot_eagr")


def test_nobody_is_sent_to_what_is_for_torchs_own_tests(registry):
    with pytest.raises(BackendNotFound) as raised:
        registry.get_backend("relu_compile_error")
    assert "TESTING_ONLY" not in str(raised.value)
    with pytest.raises(InputError) as refused:
        backbay.compile(lambda x: x, backend="inductor", options={"inject_relu_bug": True})
    assert "has no option 'inject_relu_bug'" in str(refused.value)
    assert "TESTING_ONLY" not in str(refused.value)


def test_a_known_absent_name_is_not_called_unknown(registry):
    with pytest.raises(BackendUnavailable, match="apache-tvm is not installed"):
        registry.lookup_backend("tvm")


def test_what_is_there_and_would_not_run_can_be_looked_up_as_with_torch(registry, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert registry.availability("inductor").state == "not_installed"
    assert registry.availability("ts").state == "broken"
    assert registry.availability("cudagraphs").state == "no_device"
    assert all(map(callable, map(registry.lookup_backend, ("inductor", "ts", "cudagraphs"))))
    with pytest.raises(BackendUnavailable, match="broken"):
        registry.require("ts")


def test_lookup_gives_the_same_object_every_time():
    assert Registry().lookup_backend("eager") is Registry().lookup_backend("eager")
    assert Registry().lookup_backend(compiler) is compiler


def test_torchs_backends_are_handed_to_torch_compile_by_name():
    assert Registry().resolve("inductor") == "inductor"


def test_register_has_torchs_three_forms(registry):
    @registry.register_backend
    def bare(graph_module, example_inputs):
        return graph_module.forward

    @registry.register_backend(name="named", tags=["debug"])
    def other(graph_module, example_inputs):
        return graph_module.forward

    registry.register_backend(compiler, "positional", ("experimental",))
    assert registry.lookup_backend("bare") is bare
    assert registry.lookup_backend("named") is other
    assert registry.lookup_backend("positional") is compiler
    assert set(registry.list_backends()) & {"bare", "named", "positional"} == {"bare"}
    assert registry.spec("named").tags == ("debug",)


def test_the_origin_of_an_in_process_backend_is_its_file_and_line(registry):
    registry.register_backend(compiler)
    line = compiler.__code__.co_firstlineno
    assert str(registry.spec("compiler").origin) == f"this process ({__file__}:{line})"


def test_registering_the_same_object_again_is_fine_another_is_a_conflict(registry):
    registry.register_backend(compiler, "mine")
    registry.register_backend(compiler, "mine")
    with pytest.raises(BackendConflict, match="'mine' is taken by this process") as caught:
        registry.register_backend(lambda graph_module, example_inputs: None, "mine")
    assert str(caught.value).count(__file__) == 2  # both origins are named
    assert registry.lookup_backend("mine") is compiler


def test_torchs_names_are_reserved(registry):
    with pytest.raises(BackendConflict, match="'inductor' is reserved"):
        registry.register_backend(compiler, "inductor")


def test_what_cannot_be_a_backend_is_refused(registry):
    with pytest.raises(InputError, match="must be callable, not int"):
        registry.register_backend(3)

    class Nameless:
        def __call__(self, graph_module, example_inputs):
            return graph_module.forward

    with pytest.raises(InputError, match="pass name="):
        registry.register_backend(Nameless())
    registry.register_backend(Nameless(), "instance")
    assert "instance" in registry.list_backends()


def test_entry_points_are_listed_without_being_imported(install, registry, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "never_imported.py").write_text("raise RuntimeError\n")
    install("plug-in", "3.1", "[torch_dynamo_backends]\nplugged = never_imported:fn\n")
    spec = registry.spec("plugged")
    assert (spec.origin.distribution, spec.origin.version) == ("plug-in", "3.1")
    assert registry.availability("plugged").ready
    expected = "ready as declared; not tried: it declares no requirements"
    assert registry.availability("plugged").reason == expected
    assert "never_imported" not in sys.modules


ABSENT = {
    "absent:fn": "the module 'absent' is not there",
    "absent.part.of_it:fn": "the package 'absent' is not there",
}


@pytest.mark.parametrize("target", ABSENT)
def test_an_entry_point_to_an_absent_module_is_not_called_ready(target, install, registry):
    install("plug-in", "3.1", f"[torch_dynamo_backends]\nplugged = {target}\n")
    found = registry.availability("plugged")
    assert found.state == "broken"
    assert found.reason == f"it is loaded from {target!r}, and {ABSENT[target]}"
    assert "install plug-in again" in found.remedy
    assert "plugged" not in registry.list_backends(available=True)
    with pytest.raises(BackendUnavailable, match="is not there"):
        registry.require("plugged")


class Finder:
    """A finder of a plugin's: it counts what it is asked for."""

    def __init__(self, found):
        self.asked = []
        self.found = found

    def find_spec(self, name, path, target=None):
        if not name.startswith("plug_"):
            return None
        self.asked.append(name)
        if self.found is None:
            raise RuntimeError(name)
        return self.found


def test_a_package_is_looked_for_once_whatever_it_publishes(install, registry, monkeypatch):
    finder = Finder(types.SimpleNamespace())
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    lines = "".join(f"plugged{n} = plug_in.part{n}:fn\n" for n in range(5))
    install("plug-in", "3.1", f"[torch_dynamo_backends]\n{lines}")
    listed = registry.list_backends(available=True)
    assert {f"plugged{n}" for n in range(5)} <= set(listed)
    assert finder.asked == ["plug_in"]


def test_a_finder_that_raises_makes_nothing_broken(install, registry, monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [Finder(None), *sys.meta_path])
    install("plug-in", "3.1", "[torch_dynamo_backends]\nplugged = plug_in:fn\n")
    assert registry.availability("plugged").ready


def test_what_is_not_ready_anyway_is_not_looked_for(install, registry, monkeypatch):
    finder = Finder(types.SimpleNamespace())
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    install("plug-in", "3.1", "[torch_dynamo_backends]\nplugged = plug_in:fn\n")
    with backbay.policy(block=["plug-in"]):
        assert registry.availability("plugged").state == "blocked"
    assert finder.asked == []


def test_a_module_that_was_installed_a_moment_ago_is_there_after_a_refresh(
    install, registry, tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(str(tmp_path))
    install("plug-in", "3.1", "[torch_dynamo_backends]\nplugged = plug_in_late:fn\n")
    assert registry.availability("plugged").state == "broken"
    (tmp_path / "plug_in_late.py").write_text("")
    registry.refresh()
    assert registry.availability("plugged").ready


def test_a_broken_entry_point_names_backend_and_distribution(install, registry):
    install("plug-in", "3.1", "[torch_dynamo_backends]\nplugged = plug_in_that_is_absent:fn\n")
    with pytest.raises(BackendLoadError, match=r"'plugged' of plug-in 3\.1"):
        registry.lookup_backend("plugged")


def test_an_entry_point_cannot_take_torchs_name_and_stays_visible(install, registry):
    install("thief", "1.0", "[torch_dynamo_backends]\ninductor = thief:steal\n")
    winner, shadowed = registry.candidates("inductor")
    assert winner.origin.kind == "torch"
    assert shadowed.origin.distribution == "thief"


def test_file_and_module_references_are_backends(tmp_path, registry):
    path = tmp_path / "mine.py"
    path.write_text("def fn(gm, inputs):\n    return gm.forward\nnothing = 3\n")
    assert callable(registry.lookup_backend(f"{path}:fn"))
    assert registry.lookup_backend(f"{path}:fn") is registry.lookup_backend(f"{path}:fn")
    with pytest.raises(BackendLoadError, match="int cannot be called: name a function of a graph"):
        registry.lookup_backend(f"{path}:nothing")
    with pytest.raises(BackendLoadError, match="has no attribute 'fm'"):
        registry.lookup_backend(f"{path}:fm")


def test_a_backend_that_raises_while_it_loads_is_named(tmp_path, registry):
    path = tmp_path / "raises.py"
    path.write_text("raise RuntimeError('no licence')\n")
    with pytest.raises(BackendLoadError, match=r"raises\.py:fn raised .*RuntimeError: no licence"):
        registry.lookup_backend(f"{path}:fn")


def test_what_others_registered_with_torch_in_this_process_is_visible(run_python):
    program = """
        from torch._dynamo.backends.registry import register_backend
        @register_backend(tags=["debug"])
        def theirs(gm, inputs):
            return gm.forward
        import backbay
        assert "theirs" not in backbay.list_backends()
        assert "theirs" in backbay.list_backends(exclude_tags=())
        assert backbay.lookup_backend("theirs") is theirs
        print(backbay.registry.default_registry.spec("theirs").origin.kind)
    """
    assert run_python(program).stdout.strip() == "process"


def test_every_hidden_tag_is_hidden_by_default(registry):
    for tag in HIDDEN_TAGS:
        registry.register_backend(lambda graph_module, example_inputs: None, f"with_{tag}", [tag])
    assert not [name for name in registry.list_backends() if name.startswith("with_")]


def test_torchs_registry_is_not_imported_to_be_read(run_python):
    program = """
        import sys
        from backbay.registry.bridge import registered_in_torch
        print(list(registered_in_torch()), "torch" in sys.modules)
    """
    assert run_python(program).stdout.strip() == "[] False"
    assert callable(registered_in_torch)
