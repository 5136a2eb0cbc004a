"""What there is: images × GPUs × stacks, and how far each got."""

from __future__ import annotations

from dataclasses import dataclass

from kiln import engines, result, versions
from kiln import plan as planning
from kiln.errors import UserError
from kiln.patches import DEFAULT, Choice
from kiln.plan import Plan
from kiln.settings import Settings

HEADINGS = ("stack", "gpu", "kernels", "locked", "plan", "built", "digest", "tests", "pushed")


@dataclass(frozen=True)
class Row:
    """One line of `inv list`."""

    stack: str
    gpu: str
    kernels: str
    locked: bool
    plan: str = ""
    digest: str = ""
    tests: str = ""
    pushed: str = ""

    def cells(self) -> tuple[str, ...]:
        yes = {True: "yes", False: "no"}
        built = yes[bool(self.digest)]
        return (self.stack, self.gpu, self.kernels, yes[self.locked], self.plan[:12], built, self.digest[7:19],
                self.tests, yes[bool(self.pushed)])  # fmt: skip

    def as_dict(self) -> dict[str, object]:
        return {**self.__dict__}


def plan_for(settings: Settings, *, gpu: str, stack: str, kernel_set: str, image: str,
             choice: Choice = DEFAULT) -> Plan:  # fmt: skip
    """Load versions.yaml and make one plan."""
    loaded = versions.load(settings.root / "versions.yaml")
    return planning.make(settings, loaded, gpu=gpu, stack=stack, kernel_set=kernel_set, image=image, choice=choice)


def built_images(settings: Settings, plan: Plan) -> dict[str, bool]:
    """Ask the engine, if one answers, which images of the chain it has."""
    found = engines.quietly(settings)
    return {image.name: bool(found and found.image_id(image.ref)) for image in plan.chain}


def collect(settings: Settings) -> list[Row]:
    """Plan every supported pair of stack and GPU with its default kernel set."""
    loaded = versions.load(settings.root / "versions.yaml")
    pairs = [(stack, gpu) for stack in loaded.stacks.values() for gpu in loaded.gpus if stack.supports(gpu)]
    rows = []
    for stack, gpu in pairs:
        try:
            plan = planning.make(settings, loaded, gpu=gpu, stack=stack.name, kernel_set="", image="")
        except UserError:
            rows.append(Row(stack.name, gpu, stack.kernels, locked=False))
            continue
        built = result.load(settings, plan.id)
        done = (built.digest, built.tests, built.pushed) if built else ("", "", "")
        rows.append(Row(stack.name, gpu, plan.kernels, True, plan.id, *done))
    return rows
