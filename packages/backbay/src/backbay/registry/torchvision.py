"""Whether torchvision fits torch: beside another build its operators don't load.

Then its import fails, and that of transformers and timm with it, in sixty lines that name neither.
Nothing is imported to find out: both say in files what they were built for.
"""

import importlib.metadata

from packaging.requirements import InvalidRequirement, Requirement

from backbay.registry.environment import Environment, build_of


def problem(environment: Environment) -> str | None:
    """Return why torchvision does not fit torch and what to do, in one line; None if it fits.

    Args:
        environment: its build of torch is what torchvision must fit.
    """
    torch = environment.torch_build.get("__version__")
    vision = (build_of("torchvision", environment.interpreter) or {}).get("__version__")
    if not torch or not vision:
        return None
    why = _other_version(environment, torch) or _other_build(environment, vision)
    if why is None:
        return None
    return (
        f"torchvision {vision} does not fit torch {torch}: {why}, and what imports it fails, "
        f"transformers and timm among them: {_remedy(environment)}"
    )


def _other_version(environment: Environment, torch: str) -> str | None:
    vision = environment.installed.find("torchvision")
    if vision is None:
        return None
    stated = importlib.metadata.Distribution.at(vision.folder).requires or []
    try:
        wanted = [Requirement(x) for x in stated if x.startswith("torch")]
    except InvalidRequirement:
        return None
    for one in wanted:
        if one.name == "torch" and not one.specifier.contains(torch, prereleases=True):
            return f"it was built for torch {one.specifier}"
    return None


def _other_build(environment: Environment, vision: str) -> str | None:
    label, cuda = vision.partition("+")[2], environment.torch_build.get("cuda")
    if not label.startswith("cu") or not label[2:].isdecimal():
        return None
    built = f"{label[2:-1]}.{label[-1]}"
    if not cuda:
        return f"it was built for CUDA {built}"
    if cuda.partition(".")[0] != built.partition(".")[0]:
        return f"it was built for CUDA {built}, and torch for {cuda}"
    return None


def _remedy(environment: Environment) -> str:
    torch = str(environment.torch_build.get("__version__"))
    public, _, label = torch.partition("+")
    index = f" --index-url https://download.pytorch.org/whl/{label}" if label else ""
    return f"pip install --force-reinstall torch=={public} torchvision{index}"
