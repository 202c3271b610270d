"""Processes that compile kernels into Triton's cache, where the process that asked for them finds them.

Half of a compilation is Python that holds the interpreter's lock, so threads do not divide it among cores: 36 s of work
took 16 s on 16 of them. One process imports the kernels, never touching a GPU, and forks as many as are wanted. Each
answers at its own end of a pipe until the other end is closed. What a process fails at, or does not live to answer, is
compiled by the process that asked: it learns the reason there.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Lock
from typing import Any, NamedTuple

import triton
from triton._C.libtriton import get_cache_invalidating_env_vars
from triton.compiler import ASTSource, make_backend
from triton.runtime.cache import get_cache_key, get_cache_manager
from triton.runtime.jit import JITFunction

from gradus.device import program

Options = Mapping[str, Any]


class Task(NamedTuple):
    """A compilation: a kernel by its module and name, and the arguments of Triton's `ASTSource` and `compile`.

    kind: `ASTSource`, or what Gluon, Triton's lower level, has for it.
    """

    kind: type[ASTSource]
    module: str
    name: str
    signature: dict[str, Any]
    constants: dict[tuple[int, ...], Any]
    attributes: dict[tuple[int, ...], Any]
    target: Any
    options: dict[str, Any]

    @classmethod
    def of(cls, source: ASTSource, target: Any, options: Options) -> "Task":
        kernel = source.fn
        return cls(
            type(source), kernel.__module__, kernel.__name__, source.signature, source.constants, source.attrs,
            target, dict(options),
        )  # fmt: skip

    def compile(self) -> None:
        kernel = getattr(import_module(self.module), self.name)
        source = self.kind(kernel, self.signature, self.constants, self.attributes)
        triton.compile(source, target=self.target, options=self.options)


class Compilers:
    """One process per requesting thread, started with the first request. Close it after use."""

    def __init__(self, count: int, modules: Sequence[str]) -> None:
        """modules: to import before the fork, those of the kernels among them."""
        self.count, self.modules = count, modules
        self._started, self._free = Lock(), SimpleQueue[Connection]()
        self._process: subprocess.Popen[bytes] | None = None

    def compile(self, source: ASTSource, target: Any, options: Options) -> None:
        """Compile the kernel into Triton's cache, if another process can, and wait until it is there."""
        with self._started:
            if self._process is None:
                self._start()
        connection = self._free.get()
        try:
            connection.send(Task.of(source, target, options))
            connection.recv()
        except Exception:  # the process is gone, or a constant cannot be sent
            return
        finally:
            self._free.put(connection)

    def _start(self) -> None:
        pipes = [Pipe() for _ in range(self.count)]
        theirs = [their.fileno() for _, their in pipes]
        ends = ",".join(map(str, theirs))
        self._process = program.start(__name__, ends, *self.modules, descriptors=theirs, quiet=True)
        for our, their in pipes:
            their.close()
            self._free.put(our)

    def close(self) -> None:
        if self._process is not None:
            for _ in range(self.count):
                self._free.get().close()
            self._process.wait()


def kernels_of(modules: Sequence[str]) -> list[Any]:
    """List the kernels that these imported modules define or import, without duplicates."""
    values = [value for name in modules for value in vars(sys.modules[name]).values()]
    return list({id(value): value for value in values if isinstance(value, JITFunction)}.values())


def settle_key(kernel: Any) -> None:
    """Have Triton compute the kernel's key in its cache, after the keys of the functions that the kernel calls.

    A key covers the constants of called functions only if their own keys exist by then. Without a fixed order, a key
    would depend on the kernels that the process has launched before, and no other process would find it.
    """
    for name in kernel.fn.__code__.co_names:
        if isinstance(called := kernel.fn.__globals__.get(name), JITFunction):
            settle_key(called)
    kernel.cache_key  # noqa: B018


def is_cached(source: ASTSource, target: Any, options: Options) -> bool:
    """Whether Triton's cache has the kernel, so that `triton.compile` only reads it."""
    backend = make_backend(target)
    key = get_cache_key(source, backend, backend.parse_options(dict(options)), get_cache_invalidating_env_vars())
    file = f"{source.name[:150]}.json"
    return file in (get_cache_manager(hashlib.sha256(key.encode()).hexdigest()).get_group(file) or {})


# -- the processes -----------------------------------------------------------------------------------------------------


def main(descriptors: Sequence[int], modules: Sequence[str]) -> None:
    """Import the modules, and fork a process for each end of a pipe."""
    for module in modules:
        import_module(module)
    for kernel in kernels_of(modules):
        settle_key(kernel)
    children = []
    for mine in descriptors:
        child = os.fork()
        if not child:
            for other in descriptors:
                if other != mine:
                    os.close(other)
            try:
                answer(Connection(mine))
            finally:
                os._exit(0)
        children.append(child)
    for each in descriptors:
        os.close(each)
    for child in children:
        os.waitpid(child, 0)


def answer(asking: Connection) -> None:
    """Compile the requested kernels until the other end is closed, and report for each whether it compiled."""
    while True:
        try:
            task = asking.recv()
        except (EOFError, OSError):
            return
        try:
            task.compile()
            done = True
        except Exception:
            done = False
        asking.send(done)


if __name__ == "__main__":
    main([int(each) for each in sys.argv[1].split(",")], sys.argv[2:])
