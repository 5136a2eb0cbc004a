"""Bring the image to the node, by digest, and read what it says of itself there."""

from __future__ import annotations

import json
import shlex
import time

from kiln.facts.image import ImageFacts, from_labels
from kiln.smoke.access import Access
from kiln.smoke.connection import TimedOut, call
from kiln.verdict import Finding, failed, passed

LIMIT_S = 3600
# What an engine says when a pull fails -> cause, cure.
_MEANINGS = (
    ("no space left", "the disk with the engine's images is full", "free space there, or move data-root"),
    ("manifest unknown", "the registry does not have this digest", "inv push, then name the digest that it prints"),
    ("not found", "the registry does not have this digest", "inv push, then name the digest that it prints"),
    ("unauthorized", "the node is not logged in to the registry", "docker login there, as the user of the connection"),
    ("denied", "the node's login may not read this repository", "docker login there with an account that may"),
    ("HTTP response to HTTPS", "the registry speaks plain HTTP, and the engine there does not trust it",
     "add it to insecure-registries of the node's daemon.json, or put TLS before it"),
    ("certificate", "the engine there does not trust the registry's certificate",
     "put its CA into /etc/docker/certs.d/HOST/ca.crt on the node"),
    ("no such host", "the node cannot resolve the registry's name", "check DNS on the node"),
    ("connection refused", "nothing listens there as seen from the node: a loopback address is the node's own",
     "name a registry that the node can reach"),
    ("timeout", "the node cannot reach the registry", "check routes, proxy and firewall of the node"),
    ("unsupported", "the engine there is too old for zstd layers", "use the image's -gz tag, or Docker 23 and later"),
)  # fmt: skip


def inspect(access: Access) -> ImageFacts | None:
    """Return what the node's engine knows of the image; None if it is not there."""
    shape = "{{json .Config.Labels}}"
    command = f"{access.opened.runtime} image inspect --format {shlex.quote(shape)} {shlex.quote(access.job.image)}"
    answer = call(access.host, command, timeout_s=access.clock.left(30))
    if answer.rc != 0:
        return None
    job, labels = access.job, json.loads(answer.stdout) or {}
    return from_labels(labels, ref=job.image, digest=job.digest, size_bytes=job.size_bytes)


def pull(access: Access) -> tuple[Finding, ImageFacts | None]:
    """Pull unless the image is there. Raises what the connection raises."""
    if not access.opened.runtime:
        return _no_engine(access.opened.sudo), None
    access.say("looking for the image")
    if found := inspect(access):
        return passed("the image was there already"), found
    access.say("pulling the image")
    began = time.monotonic()
    limit_s = access.clock.left(LIMIT_S)
    try:
        answer = call(
            access.host, f"{access.opened.runtime} pull -q {shlex.quote(access.job.image)}", timeout_s=limit_s
        )
    except TimedOut:
        cause, cure = "the registry or the network is slow", "pull by hand on the node, then run again: inv smoke"
        return failed(f"not pulled within {limit_s:.0f} s", cause=cause, cure=cure), None
    if answer.rc != 0:
        return _explained(answer.stderr.strip() or answer.stdout.strip()), None
    seconds = round(time.monotonic() - began, 1)
    return passed(f"pulled in {seconds:.0f} s", pull_seconds=seconds), inspect(access)


def _explained(said: str) -> Finding:
    last = said.splitlines()[-1][-300:] if said else "the engine says nothing"
    for text, cause, cure in _MEANINGS:
        if text.lower() in said.lower():
            return failed(f"not pulled: {last}", cause=cause, cure=cure)
    return failed(f"not pulled: {last}", cause="the engine's own words", cure="try: docker pull IMAGE on the node")


def _no_engine(sudo: str) -> Finding:
    cause = "neither docker nor podman answers there for this user"
    if sudo == "no":
        cause += ", and sudo asks for a password"
    cure = "install docker and the NVIDIA container toolkit, start it, and let this user in: usermod -aG docker USER"
    return failed("no container engine answers on the node", cause=cause, cure=cure)
