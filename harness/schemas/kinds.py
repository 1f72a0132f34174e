"""The JSON Schemas of the file formats, as `harness/schemas/` publishes them."""

from __future__ import annotations

import json

from harness.claims.records import ClaimFile
from harness.codec import json_schema
from harness.plan import Deployment, Plan
from harness.records import Response
from harness.results import Report

KINDS: dict[str, type] = {
    "plan": Plan,
    "deployment": Deployment,
    "report": Report,
    "response": Response,
    "claims": ClaimFile,
}


def schema_text(kind: str) -> str:
    """JSON Schema (2020-12) of a format, indented."""
    return json.dumps(json_schema(KINDS[kind]), indent=2)
