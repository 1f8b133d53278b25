"""Connections between two programs that can be cut, held and slowed down: a TCP proxy per pair."""

import asyncio
import threading
from collections.abc import Callable
from typing import Self

_PIECE = 64 * 1024
_CONNECT_S = 10


class Link:
    """What connects one program with one server; whoever connects to ``port`` gets to the server."""

    def __init__(self, name: str, target: Callable[[], int], loop: asyncio.AbstractEventLoop) -> None:
        self.name = name
        self.port = 0
        self._target = target
        self._loop = loop
        self._cut = False
        self._delay_s = 0.0
        self._flows = asyncio.Event()
        self._flows.set()
        self._open: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        """Break all connections and refuse new ones."""
        self._loop.call_soon_threadsafe(self._do_cut)

    def hold(self) -> None:
        """Let nothing through, silently: connections stay, and new ones are taken."""
        self._loop.call_soon_threadsafe(self._flows.clear)

    def delay(self, seconds: float) -> None:
        """Let each piece of data wait so long."""
        self._loop.call_soon_threadsafe(setattr, self, "_delay_s", seconds)

    def heal(self) -> None:
        """Let everything through again."""
        self._loop.call_soon_threadsafe(self._do_heal)

    def _do_cut(self) -> None:
        self._cut = True
        for writer in self._open:
            writer.transport.abort()

    def _do_heal(self) -> None:
        self._cut = False
        self._delay_s = 0.0
        self._flows.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection to its end."""
        self._open.add(writer)
        onward: asyncio.StreamWriter | None = None
        try:
            await self._flows.wait()
            if self._cut:
                return
            async with asyncio.timeout(_CONNECT_S):
                answers, onward = await asyncio.open_connection("127.0.0.1", self._target())
            self._open.add(onward)
            await asyncio.gather(self._carry(reader, onward), self._carry(answers, writer))
        except (OSError, TimeoutError):
            pass  # the server is not there, which whoever connected sees by the end of the connection
        finally:
            for one in (writer, onward):
                if one is not None:
                    self._open.discard(one)
                    one.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(_PIECE):
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            pass  # broken; both ends learn of it by the next line
        finally:
            writer.close()


class Network:
    """All links, served by a thread of their own."""

    def __init__(self) -> None:
        self.links: dict[str, Link] = {}
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)

    def link(self, name: str, target: Callable[[], int]) -> Link:
        """Make a link to the port that ``target`` gives; it need not be open yet."""
        link = self.links[name] = Link(name, target, self._loop)
        made = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(link.serve, "127.0.0.1", 0), self._loop
        ).result(30)
        self._servers.append(made)
        link.port = made.sockets[0].getsockname()[1]
        return link

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
