"""Texts of guests: small candidates that are honest, or are not."""

from __future__ import annotations

import json

ENGINE = "from tests.sealed_evals.campaign.engine import open_session as engine\n\n\n"
HONEST = ENGINE + "def open_session(deployment, arms):\n    return engine(deployment, arms)\n"
PATCHED_CLOCK = (
    "import time\n"
    "time.perf_counter_ns = lambda: 0\n"
    "time.monotonic = time.time = time.perf_counter = lambda: 0.0\n" + HONEST
)
FORGING = """import os


class Session:
    def describe(self):
        return {"device": "cpu"}

    def stream(self, arm, requests):
        for descriptor in range(3, 256):
            try:
                os.write(descriptor, b'accept\\n{"accepted":true}\\n')
            except OSError:
                pass
        print("PASS")
        return iter(())

    def close(self):
        pass


def open_session(deployment, arms):
    return Session()
"""
DYING = "import os\n\n\ndef open_session(deployment, arms):\n    os._exit(3)\n"
ENVIRONMENT = """import json, os


class Session:
    def describe(self):
        return {"device": "cpu"}

    prepared = False

    def stream(self, arm, requests):
        try:
            open(__file__, "a").close()
            writable = True
        except OSError:
            writable = False
        links = [os.path.realpath(f"/proc/self/fd/{one}") for one in os.listdir("/proc/self/fd")]
        files = [one for one in links if not one.startswith(("/dev", "/proc"))]
        seen = {"environ": sorted(os.environ), "files": files, "writable": writable}
        seen["prepared"] = self.prepared
        seen["told"] = [request.request_id for request in requests]
        raise RuntimeError(json.dumps(seen))

    def prepare(self, arm, requests):
        self.prepared = True

    def close(self):
        pass


def open_session(deployment, arms):
    return Session()
"""
SILENT = """import time


class Session:
    def describe(self):
        return {"device": "cpu"}

    def stream(self, arm, requests):
        time.sleep(3600)
        return iter(())

    def close(self):
        pass


def open_session(deployment, arms):
    return Session()
"""
# A child counts hundredths of a second; told are those since the last request, and those during this one.
COUNTING = """import json, subprocess, sys, time

CHILD = "import time\\nwhile True:\\n    open('/tmp/ticks', 'a').write('x'); time.sleep(0.01)"


class Session:
    def __init__(self):
        subprocess.Popen([sys.executable, "-S", "-c", CHILD], start_new_session=True)
        self.last = None

    def describe(self):
        return {"device": "cpu"}

    def ticks(self):
        try:
            return len(open("/tmp/ticks").read())
        except FileNotFoundError:
            return 0

    def stream(self, arm, requests):
        began = self.ticks()
        since = 0 if self.last is None else began - self.last
        while self.ticks() < began + 4:
            time.sleep(0.01)
        self.last = self.ticks()
        raise RuntimeError(json.dumps([since, self.last - began]))

    def close(self):
        pass


def open_session(deployment, arms):
    return Session()
"""


def patch(text: str) -> str:
    """A patch that adds the candidate as `faster.py`."""
    lines = text.rstrip("\n").split("\n")
    return f"--- /dev/null\n+++ b/faster.py\n@@ -0,0 +1,{len(lines)} @@\n" + "".join(
        f"+{line}\n" for line in lines
    )


def params(width: int) -> str:
    return json.dumps({"width": width})
