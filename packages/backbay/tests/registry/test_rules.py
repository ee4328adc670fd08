"""Any order of registering, installing, blocking and looking up, held against the rules in words.

`Model` says what a name must resolve to, straight from the documented rules, and knows nothing of
how the registry finds out.
"""

import functools
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

import backbay
from backbay.errors import BackendConflict, BackendNotFound, BackendUnavailable
from backbay.registry import Environment, Policy, Registry
from backbay.registry.distributions import scan

TORCH_BACKENDS = "eager"
PUBLISHED = {
    "one": ("shared", "alone"),
    "two": ("shared", TORCH_BACKENDS),
    "three": ("shared", "alone", TORCH_BACKENDS),
}
NAMES = ("shared", "alone", "own", TORCH_BACKENDS)
DISTRIBUTIONS = tuple(PUBLISHED)

names = st.sampled_from(NAMES)
registered_names = st.sampled_from(["own", "shared", "own", "shared", "alone", TORCH_BACKENDS])
some_distributions = st.sets(st.sampled_from(DISTRIBUTIONS))
pins = st.dictionaries(names, st.sampled_from([*DISTRIBUTIONS, "process", "torch"]), max_size=2)


def backends():
    """Return a few functions, new ones in each run: a registry remembers them."""

    def first(gm, inputs):
        return gm.forward

    def second(gm, inputs):
        return gm.forward

    return [first, second]


class Model:
    """What the registry has been told."""

    def __init__(self):
        self.installed = set()
        self.seen = set()
        self.layers = []
        self.registered = {}
        self.taken_back = set()

    def blocked(self, distribution):
        for layer in reversed(self.layers):
            if distribution in layer["block"]:
                return True
            if layer["allow"] is not None:
                return distribution not in layer["allow"]
        return False

    def pin(self, name):
        found = (layer["pin"][name] for layer in reversed(self.layers) if name in layer["pin"])
        return next(found, None)

    def claimants(self, name):
        """Every claimant, in no order."""
        own = {"torch"} if name == TORCH_BACKENDS else set()
        own |= {"process"} if name in self.registered else set()
        return own | {x for x in self.seen if name in PUBLISHED[x]}

    def outcome(self, name):
        """The claimant that wins, or why none does."""
        claimants, pin = self.claimants(name), self.pin(name)
        if not claimants:
            return BackendNotFound
        free = {x for x in claimants if x in {"torch", "process"} or not self.blocked(x)}
        if name == TORCH_BACKENDS:
            return "torch" if pin in {None, "torch"} else BackendConflict
        if pin is not None:
            return pin if pin in free else BackendConflict
        if not free:
            return BackendUnavailable
        if "process" in free:
            return "process"
        return next(iter(free)) if len(free) == 1 else BackendConflict

    def is_taken(self, name):
        """Whether registering another function under it needs `replace`."""
        if name in self.registered:
            return True
        holders = {x for x in self.claimants(name) if not self.blocked(x)}
        return bool(holders) and self.pin(name) != "process"


class Rules(RuleBasedStateMachine):
    """The registry and the model, told the same."""

    def __init__(self):
        super().__init__()
        self.site = Path(tempfile.mkdtemp())
        for name in DISTRIBUTIONS:
            (self.site / f"rules_{name}.py").write_text("def fn(gm, inputs):\n    pass\n")
        sys.path.insert(0, str(self.site))
        self.model = Model()
        self.backends = backends()
        self.objects = {}
        self.undo = []
        site = str(self.site)

        class Here(Registry):
            @functools.cached_property
            def environment(self):
                return Environment(installed=scan([site]), torch_build={"__version__": "2.13.0"})

        self.registry = Here(standing=Policy())

    def teardown(self):
        while self.undo:
            self.undo.pop()()
        sys.path.remove(str(self.site))
        for name in DISTRIBUTIONS:
            sys.modules.pop(f"rules_{name}", None)
        shutil.rmtree(self.site)

    # -- what is installed

    @initialize(found=some_distributions)
    def start(self, found):
        for name in sorted(found):
            self.install(name)
        self.refresh()

    @rule(name=st.sampled_from(DISTRIBUTIONS))
    def install(self, name):
        if name in self.model.installed:
            return
        folder = self.site / f"{name}-1.0.dist-info"
        folder.mkdir()
        lines = "".join(f"{x} = rules_{name}:fn\n" for x in PUBLISHED[name])
        (folder / "entry_points.txt").write_text(f"[torch_dynamo_backends]\n{lines}")
        self.model.installed.add(name)

    @rule(name=st.sampled_from(DISTRIBUTIONS))
    def uninstall(self, name):
        shutil.rmtree(self.site / f"{name}-1.0.dist-info", ignore_errors=True)
        self.model.installed.discard(name)

    @rule()
    def refresh(self):
        self.registry.refresh()
        self.model.seen = set(self.model.installed)

    # -- what this process registers

    def expect(self, error, call, *arguments, **options):
        if error is not None:
            with pytest.raises(error):
                call(*arguments, **options)
            return None
        return call(*arguments, **options)

    def refusal(self, name, backend, *, replace):
        held = self.model.registered.get(name)
        if held is not None and held["given"] is backend:
            return None
        if name == TORCH_BACKENDS or (self.model.is_taken(name) and not replace):
            return BackendConflict
        return None

    def put(self, name, backend):
        """Tell the model; give what the name had before, and has now."""
        before = self.model.registered.get(name)
        if before is not None and before["given"] is backend:
            return before, before
        if before is not None:
            self.model.taken_back.add(before["given"])
        now = {"given": backend, "again": backend in self.model.taken_back}
        self.model.registered[name] = now
        return before, now

    @rule(name=registered_names, number=st.integers(0, 1), replace=st.booleans())
    def register(self, name, number, replace):
        backend = self.backends[number]
        refusal = self.refusal(name, backend, replace=replace)
        self.expect(refusal, self.registry.register_backend, backend, name, replace=replace)
        if refusal is None:
            self.put(name, backend)

    @rule(name=registered_names)
    def unregister(self, name):
        known = self.model.registered.pop(name, None)
        refusal = None if known else BackendNotFound
        self.expect(refusal, self.registry.unregister_backend, name)
        if known:
            self.model.taken_back.add(known["given"])

    # -- blocks of code

    @rule(name=registered_names, number=st.integers(0, 1), replace=st.booleans())
    def enter_registered(self, name, number, replace):
        backend = self.backends[number]
        block = self.registry.registered(backend, name, replace=replace)
        refusal = self.refusal(name, backend, replace=replace)
        self.expect(refusal, block.__enter__)
        if refusal is not None:
            return
        before, now = self.put(name, backend)

        def leave():
            block.__exit__(None, None, None)
            if now is before or self.model.registered.get(name) is not now:
                return
            self.model.taken_back.add(now["given"])
            del self.model.registered[name]
            if before is not None:
                self.model.registered[name] = before

        self.undo.append(leave)

    @rule(block=some_distributions, allow=st.none() | some_distributions, pin=pins)
    def enter_policy(self, block, allow, pin):
        inside = backbay.policy(block=block, allow=allow, pin=pin)
        inside.__enter__()
        self.model.layers.append({"block": block, "allow": allow, "pin": pin})

        def leave():
            inside.__exit__(None, None, None)
            self.model.layers.pop()

        self.undo.append(leave)

    @precondition(lambda self: self.undo)
    @rule()
    def leave(self):
        self.undo.pop()()

    # -- at any time

    @invariant()
    def every_look_up_gives_what_the_rules_say_and_loads_nothing_else(self):
        for name in NAMES:
            self.look_up(name)

    def look_up(self, name):
        outcome, imported = self.model.outcome(name), self.imported()
        if not isinstance(outcome, str):
            self.expect(outcome, self.registry.lookup_backend, name)
            assert self.imported() == imported
            return
        found = self.registry.lookup_backend(name)
        assert found is self.registry.lookup_backend(name)
        if outcome == "torch":
            assert found.__module__.startswith("torch.")
        elif outcome == "process":
            self.check_registered(self.model.registered[name], found)
        else:
            imported.add(outcome)
            assert found is sys.modules[f"rules_{outcome}"].fn
        assert self.imported() == imported

    def imported(self):
        return {x for x in DISTRIBUTIONS if f"rules_{x}" in sys.modules}

    def check_registered(self, registration, found):
        assert found is registration.setdefault("resolved", found)
        if not registration["again"]:
            assert found is registration["given"]
            return
        # It was taken back once: Dynamo must take it for another.
        assert found is not registration["given"]
        assert self.objects.setdefault(id(found), registration) is registration
        registration["kept"] = found  # so that its id is not given again

    @invariant()
    def every_name_resolves_by_the_rules(self):
        resolutions = self.registry.resolutions()
        for name in NAMES:
            expected = self.model.outcome(name)
            if expected is BackendNotFound:
                assert name not in resolutions
                assert self.registry.candidates(name) == ()
                continue
            resolution = resolutions[name]
            assert resolution == self.registry.resolution(name)
            assert self.outcome_of(resolution) == expected
            if name == TORCH_BACKENDS:
                assert resolution.spec.origin.kind == "torch"
            assert (expected is BackendConflict) == (resolution.conflict is not None)

    def outcome_of(self, resolution):
        first = resolution.candidates[0]
        if first.standing == "contends":
            return BackendConflict
        if first.standing == "blocked":
            return BackendUnavailable
        assert first.standing == "wins"
        return self.whose(first.spec)

    def whose(self, spec):
        return spec.origin.distribution or spec.origin.kind

    @invariant()
    def candidates_are_every_claimant_once(self):
        for name in NAMES:
            found = [self.whose(x) for x in self.registry.candidates(name)]
            assert len(found) == len(set(found))
            assert set(found) == self.model.claimants(name)

    @invariant()
    def what_is_blocked_is_never_listed(self):
        listed = self.registry.list_backends(exclude_tags=())
        for name in NAMES:
            hidden = self.model.outcome(name) in {BackendUnavailable, BackendNotFound}
            assert (name not in listed) == hidden


TestRules = Rules.TestCase
TestRules.settings = settings(
    max_examples=30,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
