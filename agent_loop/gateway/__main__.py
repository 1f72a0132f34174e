"""The gateway's process: settings on standard input, one line on standard output, ends with its parent."""

from __future__ import annotations

import asyncio
import datetime
import os
import signal
import sys
import time
from pathlib import Path

from aiohttp import web

from agent_loop.gateway.accounts import LEDGER, Accounts
from agent_loop.gateway.app import Gateway
from agent_loop.gateway.prices import load_prices
from agent_loop.gateway.settings import Ready, Settings
from agent_loop.gateway.transcripts import Transcripts
from agent_loop.gateway.upstream import Upstream
from harness.codec import canonical_json, from_json
from harness.errors import HarnessError, UsageError


def main() -> int:
    """Serve until standard input ends."""
    try:
        settings = from_json(sys.stdin.buffer.readline(), Settings, "settings")
        key = _key(settings)
        prices = load_prices(None if settings.prices is None else Path(settings.prices))
        folder = Path(settings.folder)
        folder.mkdir(parents=True, exist_ok=True)
        accounts = Accounts(folder / LEDGER, time.monotonic)
        transcripts = Transcripts(folder / "transcripts", key)
    except HarnessError as error:
        print(f"gateway: {error}", file=sys.stderr)
        return error.exit_code
    asyncio.run(
        _serve(
            settings,
            Gateway(
                accounts=accounts,
                transcripts=transcripts,
                upstream=Upstream(settings.upstream, key, settings.patience),
                prices=prices,
                longest=settings.longest,
                now=lambda: datetime.datetime.now(datetime.UTC),
            ),
        )
    )
    return 0


async def _serve(settings: Settings, gateway: Gateway) -> None:
    gateway.accounts.open(settings.campaign, settings.budget)
    for name, guest in settings.explorers.items():
        gateway.tokens[guest.token] = gateway.accounts.open(f"{settings.campaign}/{name}", guest.budget)
    runner = web.AppRunner(gateway.application(), access_log=None, shutdown_timeout=2.0)
    await runner.setup()
    async with gateway.upstream:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        if settings.socket is not None:
            Path(settings.socket).unlink(missing_ok=True)
            await web.UnixSite(runner, settings.socket).start()
        host, port = runner.addresses[0][:2]
        ready = Ready(url=f"http://{host}:{port}", socket=settings.socket)
        sys.stdout.buffer.write(canonical_json(ready) + b"\n")
        sys.stdout.buffer.flush()
        await _parent_has_left()
        await runner.cleanup()


async def _parent_has_left() -> None:
    """Wait for the end of standard input, or for a signal to end."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    os.set_blocking(sys.stdin.fileno(), False)

    def heard() -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            over.set()

    loop.add_reader(sys.stdin.fileno(), heard)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    await over.wait()
    loop.remove_reader(sys.stdin.fileno())


def _key(settings: Settings) -> str:
    """The API key, from the settings or from the file that they name.

    Raises:
        UsageError: there is none.
    """
    if settings.key:
        return settings.key
    if settings.key_file is None:
        raise UsageError("there is no API key; give --key-file, or set ANTHROPIC_API_KEY")
    try:
        key = Path(settings.key_file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"key file {settings.key_file}: cannot be read: {error}") from None
    if not key:
        raise UsageError(f"key file {settings.key_file}: is empty")
    return key


if __name__ == "__main__":
    sys.exit(main())
