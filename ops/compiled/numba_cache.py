"""How Numba compiles, stores and loads the loops of this package.

Numba compiles a function for one list of argument types when it is first called. For functions of this package alone,
four things differ from plain Numba:

* A function that only compiled code calls is not compiled separately. Numba optimises and assembles every function
  separately and again in each caller; here its intermediate code goes into its callers, and is optimised there. That
  saves two fifths of the time for the longest loops.
* A signature in a decorator is not compiled when its module is imported, but when it is first called.
* Only machine code of functions that Python called is stored, in files of its own (`store`), by a stamp of all sources
  that it was compiled from. Numba stores every function with its intermediate code, by the source of the function
  alone; its index loses entries if processes write at the same time; and it refuses to run if it cannot write.
* Stored code is loaded without initialising Numba's compiler.

All hooks are set by `install`; a Numba version without the hooked functions is left as it is, with its own cache.
"""

# Numba has no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="method-assign, call-arg, attr-defined"

from __future__ import annotations

import gc
import os
import pickle
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from . import store, target
from .interrupts import hold_interrupts
from .signatures import Loop, in_words
from .stamp import PACKAGE, stamp
from .times import client, tell, times


class _State:
    """State of the current compilation. Guarded by Numba's lock, which only one thread holds at a time."""

    depth = 0
    """Number of this package's functions that are being compiled now: compiling one may require compiling another."""
    inner = 0
    """Number of functions, among those in `depth`, that only compiled code calls."""

    def __init__(self) -> None:
        self.defined: dict[tuple[str, str], Any] = {}
        """All Numba dispatchers and C callbacks of this package whose code is cached, by (module name, function
        name)."""


state = _State()


_LONG = 5.0
"""Seconds of compiling after which the user gets a message."""


def _announce() -> None:
    """Tell the user that Numba functions are being compiled, once per machine."""
    if not times.announced:
        times.announced = True
        if not store.announce_once():
            return
        kept = (
            "kept for later runs" if store.writable_folder() else "compiled again on every start: no cache is writable"
        )
        tell(f"compiling CPU kernels for this machine. They are {kept}; `dali-run warm` compiles them ahead")


@contextmanager
def _announced_if_long() -> Iterator[None]:
    """Context manager around compiling: tell the user if it takes long. The message comes while compiling, because the
    first function alone may take ten seconds."""
    if times.announced:
        yield
        return
    alarm = threading.Timer(max(_LONG - times.seconds, 0), _announce)
    alarm.daemon = True
    alarm.start()
    try:
        yield
    finally:
        alarm.cancel()


@contextmanager
def _without_collector() -> Iterator[None]:
    """Context manager: suspend garbage collection while Numba compiles. Nearly all objects that Numba creates live
    until it is done; searching them for garbage took 5 to 10 % of its time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def compile_listed(found: Any, args: tuple[Any, ...]) -> None:
    """Compile the dispatcher ``found`` for the argument types ``args``, and store the code. Does nothing for a C
    callback, which was compiled when it was defined."""
    if hasattr(found, "py_func"):
        found.compile(args)


def declared(dispatcher: Any) -> Any:
    """Return the signatures that the decorator of a function of this package names, else nothing. Numba would compile
    all of them when the module is imported; here each is compiled when it is first called."""
    return getattr(dispatcher, "declared", ())


def _record(function: Any, args: Any) -> None:
    """Append a called function, with the operator or writer that called it, to the file that DALI_RUN_RECORD_LOOPS
    names, if that variable is set."""
    if into := os.environ.get("DALI_RUN_RECORD_LOOPS"):
        words = tuple(in_words(kind) for kind in args)
        if None not in words:
            module = function.__module__.split(".", 1)[1]
            loop = Loop(module, function.__qualname__, words, frozenset(filter(None, [client()])))  # type: ignore[arg-type]
            with open(into, "a") as file:
                file.write(loop.line() + "\n")


class _Inner:
    """Placeholder for the entry point of a function that only compiled code calls, so that Python cannot call it."""


def mine(dispatcher: Any) -> bool:
    """Return whether the dispatcher's function belongs to this package."""
    return str(dispatcher.py_func.__module__).startswith(PACKAGE + ".")


def key_of(function: Any, args: Any) -> str:
    """Return the key under which compiled code is stored: the function's name and its argument types, such as
    ``module.function(int64, float32[:])``."""
    words = [in_words(kind) or repr(kind) for kind in args]
    return f"{function.__module__}.{function.__qualname__}({', '.join(words)})"


def key_in_words(loop: Loop) -> str:
    """Return the key under which the code of ``loop``, a function of loops.json, is stored; see `key_of`."""
    return f"{PACKAGE}.{loop.module}.{loop.function}({', '.join(loop.types)})"


def function_of(found: Any) -> Any:
    """Return the Python function from which a Numba dispatcher or C callback was made."""
    return getattr(found, "py_func", None) or found._pyfunc


def file_of(function: Any) -> Path:
    """Return the path of the source file of a Python function."""
    return Path(function.__code__.co_filename)


class LoopCache:
    """Cache of one function's compiled code, with the methods that Numba's dispatcher calls. The hook in Numba's
    ``enable_caching`` creates one for each cached function."""

    cache_path = None

    def __init__(self, dispatcher: Any) -> None:
        function = dispatcher.py_func
        self._function = function
        self._closure = function.__closure__ is not None  # the stamp does not cover the variables of a closure
        self._file = file_of(function)

    def enable(self) -> None: ...
    def disable(self) -> None: ...
    def flush(self) -> None: ...

    def load(self, args: Any, context: Any) -> Any:
        """Return the function compiled for the argument types ``args``, loaded from the wheel or from a cache folder;
        None if neither has it."""
        if self._closure or not (made_from := stamp(self._file)):
            return None
        key = key_of(self._function, args)
        for pack in store.packs():
            if (entry := pack.find(key, made_from)) is not None:
                break
        else:
            entry = store.find(key, made_from, target.host(context.codegen()))
        if entry is None:
            return None
        try:
            return self.rebuilt(context, pickle.loads(entry))
        except Exception:  # whatever is wrong with the entry, the function can be compiled again
            return None

    def save(self, args: Any, compiled: Any) -> None:
        """Store compiled code for later processes, unless these cannot load it, for example because the function is a
        closure."""
        from numba.core.serialize import dumps

        made_from = "" if self._closure else stamp(self._file)
        if not made_from or compiled.lifted or compiled.reload_init or compiled.library.has_dynamic_globals:
            return
        environments = {e.env_name: e for e in (compiled.environment, *compiled._find_referenced_environments())}
        entry = (compiled.library._get_compiled_object(), self.wrapper(compiled.fndesc), compiled.signature,
                 compiled.environment, tuple(environments.values()))  # fmt: skip
        key = key_of(self._function, args)
        store.keep(key, made_from, target.host(compiled.target_context.codegen()), bytes(dumps(entry)))

    def wrapper(self, description: Any) -> str:
        """Return the symbol name of the wrapper through which Python calls the compiled function."""
        return str(description.llvm_cpython_wrapper_name)

    def rebuilt(self, context: Any, entry: Any) -> Any:
        """Return stored code as a CompileResult that Python can call. Other compiled code cannot call it, because it
        contains no code that could be inlined."""
        from numba import _dynfunc
        from numba.core.compiler import CompileResult

        code, wrapper, signature, environment, environments = entry
        name, module = self._function.__name__, sys.modules[self._function.__module__]
        address = _loaded(context, code, wrapper, environments)
        called = _dynfunc.make_function(module, name, f"compiled {name}", address, environment, ())
        return CompileResult(
            typing_context=context.typing_context, target_context=context, entry_point=called, typing_error=None,
            type_annotation=None, signature=signature, objectmode=False, lifted=(), fndesc=None, library=None,
            call_helper=None, environment=environment, metadata=None, reload_init=[], referenced_envs=environments,
        )  # fmt: skip


class CallbackCache(LoopCache):
    """Cache for one callback that C code calls (`numba.cfunc`), with the methods that `numba.core.ccallback` uses."""

    def __init__(self, callback: Any) -> None:
        self._function = callback._pyfunc
        self._closure = callback._pyfunc.__closure__ is not None
        self._file = file_of(callback._pyfunc)

    def load_overload(self, signature: Any, context: Any) -> Any:
        _record(self._function, signature.args)
        return self.load(signature.args, context)

    def save_overload(self, signature: Any, compiled: Any) -> None:
        self.save(signature.args, compiled)

    def wrapper(self, description: Any) -> str:
        return str(description.llvm_cfunc_wrapper_name)

    def rebuilt(self, context: Any, entry: Any) -> Any:
        code, wrapper, _, _, environments = entry
        address = _loaded(context, code, wrapper, environments)
        return SimpleNamespace(
            fndesc=SimpleNamespace(llvm_cfunc_wrapper_name=wrapper),
            library=SimpleNamespace(get_pointer_to_function=lambda _: address),
            environments=environments,
        )


def _loaded(context: Any, code: bytes, wrapper: str, environments: Any) -> int:
    """Load machine code, which stays in memory until the process ends. Return the address of its function
    ``wrapper``."""
    from llvmlite import binding
    from numba.core.runtime import rtsys

    rtsys.initialize(context)
    engine = context.codegen()._engine
    engine._ee.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    if not (address := engine.get_function_address(wrapper)):
        raise LookupError(wrapper)
    for environment in environments:
        _set_environment(context.codegen(), environment)
    return int(address)


def _set_environment(codegen: Any, environment: Any) -> None:
    if codegen._engine.get_global_value_address(environment.env_name):
        codegen.set_env(environment.env_name, environment)


# -- hooks ------------------------------------------------------------------------------------------------------------


@cache
def install() -> bool:
    """Install the hooks in Numba that cache compiled code; return False for a Numba version without the hooked
    functions. From now on, signals that arrive while Numba compiles are handled after it."""
    from numba.core import ccallback, codegen, dispatcher

    hold_interrupts()
    base, compiler, library = dispatcher._DispatcherBase, dispatcher._FunctionCompiler, codegen.CPUCodeLibrary
    places = (
        (dispatcher.Dispatcher, "compile enable_caching"),
        (base, "get_call_template"),
        (compiler, "_customize_flags"),
        (library, "add_linking_library"),
        (ccallback.CFunc, "enable_caching"),
    )
    if not all(hasattr(owner, name) for owner, names in places for name in names.split()):
        return False
    _CompileHooks(dispatcher.Dispatcher, compiler, library)
    _hook_caches(dispatcher.Dispatcher, ccallback.CFunc)
    return True


def _hook_caches(dispatcher: Any, callback: Any) -> None:
    numbas = dispatcher.enable_caching

    def enable_caching(self):
        if mine(self):
            self._cache = LoopCache(self)
            state.defined[self.py_func.__module__, self.py_func.__qualname__] = self
        else:
            numbas(self)

    numbas_callback = callback.enable_caching

    def enable_callback_caching(self):
        if str(self._pyfunc.__module__).startswith(PACKAGE + "."):
            self._cache = CallbackCache(self)
            state.defined[self._pyfunc.__module__, self._pyfunc.__qualname__] = self
        else:
            numbas_callback(self)

    dispatcher.enable_caching, callback.enable_caching = enable_caching, enable_callback_caching


class _CompileHooks:
    """Replacements for methods with which Numba compiles, and the replaced methods. Created by `install`.

    Numba has no public hook for any of them: when a signature is compiled, whether a function gets an entry point for
    Python, what is linked into its callers, and whether stored code is used, is decided in `Dispatcher.compile` and
    below.
    """

    def __init__(self, dispatcher: Any, compiler: Any, library: Any) -> None:
        self._compile, self._get_call_template = dispatcher.compile, dispatcher.get_call_template
        self._disable_compile = dispatcher.disable_compile
        self._customize_flags, self._add_linking_library = compiler._customize_flags, library.add_linking_library
        dispatcher.compile = lambda its, sig: self.compile(its, sig)
        dispatcher.get_call_template = lambda its, args, kws: self.get_call_template(its, args, kws)
        dispatcher.disable_compile = lambda its, val=True: None if declared(its) else self._disable_compile(its, val)
        compiler._customize_flags = lambda its, flags: self.customize_flags(its, flags)
        library.add_linking_library = lambda its, other: self.add_linking_library(its, other)

    def compile(self, dispatcher: Any, sig: Any) -> Any:
        """Compile a function, or load its stored code, as `Dispatcher.compile` does."""
        from numba.core import sigutils, typing
        from numba.core.compiler_lock import global_compiler_lock

        began = time.perf_counter()
        with global_compiler_lock:
            times.waited(time.perf_counter() - began, compiled=False)
            if not (state.depth or mine(dispatcher)):
                return self._compile(dispatcher, sig)
            args, return_type = sigutils.normalize_signature(sig)
            if state.inner and declared(dispatcher) and isinstance(sig, tuple):
                # Numba asks for the types of a call in compiled code. All declared signatures are compiled already, see
                # `get_call_template`; Numba selects one. (Its flag against compiling is read by other threads, too.)
                return None
            if not state.inner and not isinstance(sig, tuple):  # called by the decorator
                dispatcher.declared = [*declared(dispatcher), typing.Signature(return_type, args, None)]
                return None
            if not state.inner and declared(dispatcher):
                # If another thread has compiled all signatures meanwhile, Numba selects one of them, and converts.
                return self._compile_declared(dispatcher, args) if dispatcher._can_compile else dispatcher
            return _compile_now(dispatcher, args, return_type)

    def _compile_declared(self, dispatcher: Any, args: Any) -> Any:
        """Compile the signature that has these types, else all of them: then Numba selects one, and converts."""
        for signature in dispatcher.declared:
            if signature.args == args:
                return _compile_now(dispatcher, args, signature.return_type)
        for signature in dispatcher.declared:
            _compile_now(dispatcher, signature.args, signature.return_type)
        self._disable_compile(dispatcher)
        return dispatcher

    def get_call_template(self, dispatcher: Any, args: Any, kws: Any) -> Any:
        """Called by Numba when compiled code calls a function of this package: compile that function for the caller."""
        from numba.core.compiler_lock import global_compiler_lock

        with global_compiler_lock:
            state.inner += 1
            able = dispatcher._can_compile
            try:
                if mine(dispatcher):
                    dispatcher._can_compile = True
                    for signature in declared(dispatcher):  # all of them are candidates
                        dispatcher.compile(signature)
                    for known in [known for known in dispatcher.overloads.values() if known.library is None]:
                        dispatcher.compile(known.signature)
                return self._get_call_template(dispatcher, args, kws)
            finally:
                dispatcher._can_compile = able
                state.inner -= 1

    def customize_flags(self, compiler: Any, flags: Any) -> Any:
        """Leave out entry points that nobody calls."""
        flags = self._customize_flags(compiler, flags)
        if state.depth:
            flags.no_cfunc_wrapper = True
            if state.inner:
                flags.no_compile = flags.no_cpython_wrapper = True
        return flags

    def add_linking_library(self, library: Any, other: Any) -> None:
        """Link unoptimised code of an inner function into its caller."""
        if state.depth and not other._finalized:
            _gather(other)
        self._add_linking_library(library, other)


def _compile_now(dispatcher: Any, args: Any, return_type: Any) -> Any:
    """Compile a function for these types, or load its stored code, unless that was done. Return its entry point; a
    placeholder if only compiled code calls it."""
    known = dispatcher.overloads.get(args)
    if known is not None and (known.library is not None if state.inner else not _is_inner(known)):
        return known.entry_point
    if not dispatcher._can_compile:
        raise RuntimeError("compilation disabled")
    if not state.inner:
        return _compile_for_python(dispatcher, args, return_type)
    found = _compiled(dispatcher, args, return_type)
    found = found._replace(entry_point=_Inner())
    dispatcher.targetctx.insert_user_function(found.entry_point, found.fndesc, [found.library])
    dispatcher.overloads[args] = found
    return found.entry_point


def _compiled(dispatcher: Any, args: Any, return_type: Any) -> Any:
    from numba.core import errors

    state.depth += 1
    try:
        with dispatcher._compiling_counter:
            return dispatcher._compiler.compile(args, return_type)
    except errors.ForceLiteralArg as e:
        fold = dispatcher._compiler.fold_argument_types
        raise e.bind_fold_arguments(lambda args, kws: fold(args, kws)[1]) from None
    finally:
        state.depth -= 1


def _compile_for_python(dispatcher: Any, args: Any, return_type: Any) -> Any:
    from numba.core.caching import NullCache

    cache = None if isinstance(dispatcher._cache, NullCache) else dispatcher._cache
    if cache is not None and (found := cache.load(args, dispatcher.targetctx)) is not None:
        times.loaded += 1
        dispatcher._cache_hits[args] += 1
    else:
        began = time.perf_counter()
        with _announced_if_long(), _without_collector():
            found = _compiled(dispatcher, args, return_type)
        for env in found._find_referenced_environments():
            _set_environment(found.library.codegen, env)
        if cache is not None:
            cache.save(args, found)
        times.compiled += 1
        times.waited(time.perf_counter() - began)
        dispatcher._cache_misses[args] += 1
    dispatcher.add_overload(found)
    # The dispatcher calls the loaded code without a reference to it. Its table of overloads, which has references,
    # may replace a loaded function by newly compiled code that can be inlined.
    dispatcher.__dict__.setdefault("loaded", []).append(found)
    if cache is not None:
        _record(dispatcher.py_func, args)
    return found.entry_point


def _is_inner(compiled: Any) -> bool:
    return isinstance(compiled.entry_point, _Inner)


def _gather(library: Any) -> None:
    """Prepare a Numba code library for linking into others: add the functions that it calls, but do not optimise it."""
    seen = set()
    for other in library._linking_libraries:
        if other not in seen:
            seen.add(other)
            library._reload_init.update(other._reload_init)
            library._final_module.link_in(other._get_module_for_linking(), preserve=True)
    library._finalize_dynamic_globals()
    library._finalized = True
