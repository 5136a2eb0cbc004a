"""The build: fetch → context → engine, image by image → canonical layout → image tests → push. It can be resumed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path, PurePath

from filelock import FileLock

from kiln import attest, context, fetch, imagetest, layout, patchlocks, result, sources
from kiln.compression import Compression
from kiln.engines import Engine
from kiln.engines.progress import Line
from kiln.engines.request import Request
from kiln.errors import CheckFailed
from kiln.meter import Meter
from kiln.plan import ImagePlan, Plan
from kiln.registry import Registry
from kiln.result import Result, StageCost
from kiln.settings import Settings
from kiln.store import Store
from kiln.view import View


@dataclass(frozen=True)
class Options:
    """How to build; nothing here changes the image. `jobs` 0 means as many as memory allows.

    `compression` gzip makes a variant with gzip layers and the tag `…-gz` beside the image.
    """

    jobs: int = 0
    test: bool = True
    push: bool = True
    no_cache: bool = False
    compression: Compression = "zstd"


@dataclass
class Build:
    """One run of the build for one plan."""

    settings: Settings
    plan: Plan
    engine: Engine
    registry: Registry | None
    options: Options
    view: View
    costs: list[StageCost] = field(default_factory=list)
    started: datetime = field(default_factory=lambda: datetime.now(UTC))

    def run(self) -> Result:
        """Build what is not built. Raises CheckFailed, UserError; whatever was finished before stays usable."""
        store = Store(self.settings.store)
        tried = self._try_patches(store)
        with self._lock(self.plan.id):
            with self._stage("fetch"):
                fetch.fetch(
                    self.settings, store, self.plan.artefacts(), fetch.ViewProgress(view=self.view, stage="fetch")
                )
            if not tried:
                self._try_patches(store)
            for image in self.plan.chain:
                self._image(image, store)
            return self._keep(self._push(self._test(self._layout())))

    def _try_patches(self, store: Store) -> bool:
        """Try every patch before any stage; says whether each had its source in the store already."""
        pinned = patchlocks.pinned((*self.plan.lock.wheels, *self.plan.lock.sources), self.plan.stack.components)
        return sources.preflight(pinned, self.plan.patches, self.plan.patched, store)

    def _image(self, image: ImagePlan, store: Store) -> None:
        with self._stage(image.name, image.key) as stage, self._lock(image.key):
            if self.engine.image_id(image.ref) and not self.options.no_cache:
                stage.state = "cached"
                return
            folder = self.settings.builds / self.plan.id[:12] / "context" / image.name
            log = self.log(image.name)
            log.unlink(missing_ok=True)
            self.view.update(image.name, "preparing its inputs")
            context.prepare(self.settings, self.plan, image, store, folder, log)
            self._build(image, folder, log)
            shutil.rmtree(folder)

    def _build(self, image: ImagePlan, folder: Path, log: Path) -> None:
        parent = self._parent(image)
        args = {"SOURCE_DATE_EPOCH": str(image.epoch)}
        if parent:
            args["PARENT"] = parent.ref
        if "sources" in image.inputs:
            args["LOCAL_VERSION"] = self.plan.local_version
        # No labels: the canonical layout carries them, and a label rebuilds nothing.
        request = Request(
            folder, image.ref, log, args, secrets=self._secrets(folder.parent), no_cache=self.options.no_cache
        )
        self.engine.build(request, _Watcher(self.view, image.name, self.plan).line)

    def _secrets(self, folder: Path) -> dict[str, Path]:
        """The number of jobs enters as a build secret: the one input that no cache key contains (docs/adr/0001)."""
        if not self.options.jobs:
            return {}
        file = folder / "jobs"
        file.write_text(f"{self.options.jobs}\n")
        return {"kiln-jobs": file}

    def _parent(self, image: ImagePlan) -> ImagePlan | None:
        index = self.plan.chain.index(image)
        return self.plan.chain[index - 1] if index else None

    def _layout(self) -> Result:
        with self._stage("layout") as stage:
            found = result.load(self.settings, self.plan.id)
            if found and not self.options.no_cache:
                stage.state = "cached"
            else:
                found = layout.write(self.settings, self.plan, self.engine, self._say_layout)
                result.save(self.settings, found)
                attest.record(self.settings, self.plan, found, self.engine.describe(), self.started)
            return self._gzip(found)

    def _gzip(self, built: Result) -> Result:
        if self.options.compression != "gzip":
            return built
        made = layout.write_gzip(self.settings, built, self._say_layout)
        result.save(self.settings, made)
        return made

    def _say_layout(self, text: str) -> None:
        self.view.update("layout", text)

    def _test(self, built: Result) -> Result:
        with self._stage("test") as stage:
            if built.tests or not self.options.test:
                stage.state = "cached"
                return built
            summary = imagetest.test_layout(self.settings, self.plan, built, self.engine, self.log("test"))
            stage.detail = summary
            return self._keep(replace(built, tests=summary))

    def _push(self, built: Result) -> Result:
        with self._stage("push") as stage:
            if self.registry is None or not self.options.push:
                stage.state = "cached"
                return built
            if self.options.compression == "gzip" and not self.registry.exists(built.repository, built.gzip):
                self.registry.push(Path(built.gzip_layout), built.repository, built.gzip_tag)
                attest.publish(self.settings, self.registry, self.plan, built, built.gzip)
            name = f"{self.registry.address}/{built.repository}@{built.digest}"
            if built.pushed == name and self.registry.exists(built.repository, built.digest):
                stage.state = "cached"
                if self.settings.signing_key:
                    stage.detail = attest.publish(self.settings, self.registry, self.plan, built, built.digest)
                return built
            digest = self.registry.push(Path(built.layout), built.repository, built.tag)
            if digest != built.digest:
                raise CheckFailed(f"the registry holds {digest}, built was {built.digest}\n  hint: inv push")
            stage.detail = attest.publish(self.settings, self.registry, self.plan, built, digest)
            return self._keep(replace(built, pushed=name))

    def _keep(self, built: Result) -> Result:
        """Save a result with the costs so far; a stage that was cached keeps what an earlier run says of it."""
        before = {cost.name: replace(cost, state="cached") for cost in built.stages}
        costs = (before.get(cost.name, cost) if cost.state == "cached" else cost for cost in self.costs)
        kept = replace(built, stages=tuple(costs))
        result.save(self.settings, kept)
        return kept

    def log(self, stage: str) -> Path:
        return self.settings.logs / self.plan.id[:12] / f"{stage}.log"

    @contextmanager
    def _stage(self, name: str, key: str = "") -> Iterator[_Outcome]:
        """Time one stage and show it; on an error the stage is shown as failed, with its log. `key`: an image's."""
        outcome = _Outcome()
        self.view.start(name)
        meter = Meter()
        try:
            with meter:
                yield outcome
        except BaseException:
            log = self.log(name)
            self.view.finish(name, "failed", f"log: {log}" if log.exists() else "")
            raise
        self.view.finish(name, outcome.state, outcome.detail)
        cost = StageCost(name, outcome.state, meter.cost.wall_s, meter.cost.cpu_s, meter.cost.peak_bytes)
        if key and outcome.state == "done":
            result.remember_cost(self.settings, key, cost)
        known = result.recall_cost(self.settings, key) if key and outcome.state == "cached" else None
        self.costs.append(known or cost)

    @contextmanager
    def _lock(self, key: str) -> Iterator[None]:
        """Hold an image's key or the plan's id, so that a second build waits for the result instead of repeating it."""
        locks = self.settings.home / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        with FileLock(locks / f"{key[:12]}.lock"):
            yield


@dataclass
class _Outcome:
    state: str = "done"
    detail: str = ""


@dataclass
class _Watcher:
    """Turn what the engine says into the view's numbers; work is counted in the CPU seconds of the kernel table."""

    view: View
    stage: str
    plan: Plan
    done_s: float = 0.0

    def line(self, said: Line) -> None:
        if said.kind == "start":
            self.view.update(self.stage, said.text.partition("] ")[2][:60] or said.text[:60])
        elif said.kind == "output" and said.text.startswith("KILN "):
            self._output(*said.text.split(maxsplit=2)[1:])

    def _output(self, what: str = "", rest: str = "") -> None:
        fields = rest.split()
        if what == "kernels":
            self._show("compiling")
        elif what == "cost":
            self.done_s += self._cost(rest)
        elif what == "unit" and len(fields) >= 2:
            self._show(f"unit {fields[0]} of {fields[1]}")
        elif what == "module" and len(fields) >= 3:
            self._show(f"module {fields[0]} of {fields[1]}: {fields[2]}")

    def _show(self, detail: str) -> None:
        self.view.update(self.stage, detail, self.done_s, sum(module.core_s for module in self.plan.modules))

    def _cost(self, text: str) -> float:
        """Return what a finished unit counts; nothing for the linking of a module, and for what is not known."""
        try:
            output = PurePath(json.loads(text)["output"])
        except (ValueError, KeyError, TypeError):
            return 0.0
        units = {module.name: module.core_s / module.units for module in self.plan.modules}
        return units.get(output.parent.name, 0.0) if output.suffix == ".o" else 0.0


def stages(plan: Plan) -> tuple[str, ...]:
    """The stages of a build in order, as the view and the timing table name them."""
    return ("fetch", *(image.name for image in plan.chain), "layout", "test", "push")


def write_plan(settings: Settings, plan: Plan) -> Path:
    """Write the plan's description where image tests read it."""
    path = settings.builds / plan.id[:12] / "plan.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(plan.describe(), indent=1, sort_keys=True) + "\n")
    return path
