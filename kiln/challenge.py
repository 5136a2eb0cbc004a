"""A registry's `WWW-Authenticate`, answered: Basic, or a Bearer token from the place that it names."""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kiln.registry_errors import Fault, Refused, error_of

if TYPE_CHECKING:
    import requests

    from kiln.credentials import Login

TIMEOUT_S = 30


def answer(challenge: str, login: Login, session: requests.Session) -> str:
    """Return the `Authorization` header that a challenge asks for, or "" if we have none to give.

    Raises Refused, Unavailable as the token's issuer does.
    """
    scheme, _, rest = challenge.partition(" ")
    fields = dict(re.findall(r'(\w+)="([^"]*)"', rest))
    if scheme.lower() == "bearer" and "realm" in fields:
        return f"Bearer {_token(fields, login, session)}"
    if scheme.lower() == "basic" and login.user:
        return "Basic " + base64.b64encode(f"{login.user}:{login.password}".encode()).decode()
    return ""


def _token(fields: dict[str, str], login: Login, session: requests.Session) -> str:
    import requests

    wanted: dict[str, str | None] = {key: fields[key] for key in ("service", "scope") if key in fields}
    if login.user or login.identity_token:
        _require_privacy(fields["realm"])
    try:
        if login.identity_token:
            form = {**wanted, "grant_type": "refresh_token", "client_id": "kiln", "refresh_token": login.identity_token}
            reply = session.post(fields["realm"], data=form, headers={"Authorization": None}, timeout=TIMEOUT_S)
        else:
            known = (login.user, login.password) if login.user else None
            reply = session.get(fields["realm"], params=wanted, auth=known, headers={"Authorization": None},
                                timeout=TIMEOUT_S)  # fmt: skip
    except requests.RequestException as error:
        raise error_of(str(error)) from None
    if reply.status_code != 200:
        raise error_of(f"HTTP status: {reply.status_code} {reply.reason} from {urlsplit(fields['realm']).netloc}")
    try:
        found = json.loads(reply.content)
        return str(found.get("token") or found["access_token"])
    except (ValueError, KeyError, AttributeError) as error:
        raise Refused(Fault("refused", f"no token came from {urlsplit(fields['realm']).netloc}: {error}")) from None


def _require_privacy(realm: str) -> None:
    """Refuse to send a password where others could read it."""
    from kiln.registry import is_loopback

    parts = urlsplit(realm)
    if parts.scheme != "https" and not is_loopback(parts.netloc):
        raise Refused(Fault("refused", f"it wants the login sent to {parts.netloc} over plain HTTP", "log out of it"))
