"""Expected digests: the manifest digest that the same inputs must give, whichever engine builds them, committed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints

from kiln import inventory, result, schema, versions, yamlfile
from kiln.errors import UserError, raise_all
from kiln.plan import Plan
from kiln.settings import Settings

FILE = Path("receipts") / "expected.yaml"
_HEAD = """\
# The manifest digest of each image, whichever engine built it. Written by `inv receipts.expect`; `inv test --image`
# fails when a build gives another one.
"""
Digests = Mapping[tuple[str, str], "Expected"]


class Expected(BaseModel):
    """The digest that the inputs named by a plan's id give."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    plan: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    digest: Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    images: dict[str, dict[str, Expected]]


def load(root: Path) -> Digests:
    """Return what is expected of each (stack, GPU); nothing if nothing was recorded yet. Raises Problems."""
    if not (root / FILE).exists():
        return {}
    found, problems = schema.validate(yamlfile.read(root / FILE, root), _File)
    raise_all(problems)
    assert found is not None
    return {(stack, gpu): one for stack, gpus in found.images.items() for gpu, one in gpus.items()}


def fault(expected: Digests, plan: Plan, digest: str, engine: str) -> str:
    """Return what is wrong with a digest that an engine's build gave; empty if it is the expected one."""
    stack, gpu = plan.stack.name, plan.gpu.name
    one = expected.get((stack, gpu))
    if one and (one.plan, one.digest) == (plan.id, digest):
        return ""
    where = f"{FILE}: {stack} for {gpu}, built by {engine}"
    command = f"to record it on purpose: inv receipts.expect --stack {stack} --gpu {gpu}"
    if one is None:
        return f"{where}: no digest is expected yet, got {digest}\n  hint: {command}"
    text = f"{where}:\n  expected {one.digest}\n  got      {digest}"
    if one.plan != plan.id:
        return f"{text}\n  the inputs changed: plan {one.plan[:12]} before, {plan.id[:12]} now\n  hint: {command}"
    again = f"inv reproduce --stack {stack} --gpu {gpu}"
    return f"{text}\n  the inputs are the same, the bytes are not\n  hint: {again} shows what differs; {command}"


def expect(settings: Settings, *, stack: str, gpus: Iterable[str]) -> list[str]:
    """Record the digests that were built here (of all the stack's GPUs if none is named); returns one line a change.

    Raises UserError for one that is not built.
    """
    loaded = versions.load(settings.root / "versions.yaml")
    chosen = loaded.stack(stack or loaded.defaults.stack)
    known = dict(load(settings.root))
    changes = []
    for gpu in tuple(gpus) or tuple(gpu for gpu in loaded.gpus if chosen.supports(gpu)):
        new, old = _built(settings, chosen.name, gpu), known.get((chosen.name, gpu))
        if new != old:
            known[chosen.name, gpu] = new
            changes.append(f"{chosen.name} {gpu}: {old.digest if old else 'none'} -> {new.digest}")
    _write(settings.root / FILE, known)
    return changes


def _built(settings: Settings, stack: str, gpu: str) -> Expected:
    plan = inventory.plan_for(settings, gpu=gpu, stack=stack, kernel_set="", image="")
    found = result.load(settings, plan.id)
    if found is None:
        raise UserError(
            f"{stack} for {gpu} is not built: plan {plan.id[:12]}", hint=f"inv build --stack {stack} --gpu {gpu}"
        )
    return Expected(plan=plan.id, digest=found.digest)


def _write(file: Path, known: Digests) -> None:
    lines = ["images:"]
    for stack in sorted({stack for stack, _ in known}):
        lines.append(f"  {stack}:")
        for gpu in sorted(gpu for name, gpu in known if name == stack):
            one = known[stack, gpu]
            lines += [f"    {gpu}:", f'      plan: "{one.plan}"', f'      digest: "{one.digest}"']
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(_HEAD + "\n".join(lines) + "\n", encoding="utf-8")
