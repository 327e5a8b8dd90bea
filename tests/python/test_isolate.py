"""Functions in processes of their own."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import gpuheap
import support_isolate as support
from gpuheap import Isolate, IsolateCrash, IsolateError, IsolateMemory, IsolateTimeout, _child, isolate

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No child, not even a dead one, no file descriptor, nothing in shared memory."""
    before = leftovers()
    yield
    # What a killed program leaves is cleaned up by others, in their own time.
    deadline = time.monotonic() + 20
    while leftovers() != before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert leftovers() == before


def leftovers() -> tuple[set[str], int, set[str]]:
    if sys.platform != "linux":
        return set(), 0, set()
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return set(children), len(os.listdir("/proc/self/fd")), set(os.listdir("/dev/shm"))


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def test_a_result_comes_back() -> None:
    assert isolate(support.add, 1, two=2) == 3
    assert isolate(functools.partial(support.add, 5)) == 5
    assert isolate(os.getpid) != os.getpid()


def test_large_values_cross() -> None:
    data = os.urandom(30_000_000)
    assert isolate(bytes, data) == data


def test_lambdas_and_closures() -> None:
    base = 40

    def inner(value: int) -> int:
        return value + base

    assert isolate(lambda value: inner(value), 2) == 42


def test_exceptions_come_back_as_what_they_were() -> None:
    with pytest.raises(KeyError, match="missing") as caught:
        isolate(support.fail, "missing")
    text = str(caught.value.__cause__)
    assert "support_isolate.py" in text
    assert "raise KeyError(text)" in text
    assert "_worker.py" not in text


def test_exceptions_that_cannot_be_made_again_come_back_as_text() -> None:
    with pytest.raises(IsolateError, match=r"support_isolate.Odd: 1 and 2") as caught:
        isolate(support.fail_oddly)
    assert caught.value.traceback is not None
    assert "fail_oddly" in caught.value.traceback


def test_a_result_that_cannot_be_sent_is_an_error() -> None:
    with pytest.raises(gpuheap.Error, match=r"The result \(`lock`\) cannot be sent back"):
        isolate(threading.Lock)


def test_an_exit_does_not_end_this_program() -> None:
    with pytest.raises(IsolateError, match="called for the end of the program: SystemExit: 3"):
        isolate(support.exit_with, 3)
    with pytest.raises(IsolateCrash, match="exit code 3") as caught:
        isolate(os._exit, 3)
    assert caught.value.exit_code == 3


def test_a_crash_says_how() -> None:
    with pytest.raises(IsolateCrash, match="signal 11, SIGSEGV"):
        isolate(support.die, signal.SIGSEGV)
    with pytest.raises(IsolateCrash, match="SIGKILL") as caught:
        isolate(support.die, signal.SIGKILL)
    assert caught.value.hint is not None
    assert "host memory" in caught.value.hint


def test_output_goes_where_this_program_prints(capsys: pytest.CaptureFixture[str]) -> None:
    isolate(support.talk, "hello")
    captured = capsys.readouterr()
    assert sorted(captured.out.split("\n")) == ["", "hello", "hello below"]
    assert captured.err == "HELLO\n"


def test_output_goes_to_the_same_descriptors() -> None:
    code = "import gpuheap, support_isolate as s; gpuheap.isolate(s.talk, 'hello')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parent, check=True
    )
    assert sorted(done.stdout.split()) == ["below", "hello", "hello"]
    assert done.stderr == "HELLO\n"


def test_much_output_does_not_block() -> None:
    with contextlib.redirect_stdout(None):
        assert isolate(lambda: print("x" * 3_000_000)) is None


def test_a_time_limit() -> None:
    start = time.monotonic()
    with pytest.raises(IsolateTimeout, match=r"longer than 0\.5 s") as caught:
        isolate(time.sleep, 60, timeout=0.5)
    assert isinstance(caught.value, TimeoutError)
    assert time.monotonic() - start < 10


@linux
def test_a_host_memory_limit() -> None:
    assert isolate(support.hold, 1 << 20, 0.3, host_memory="1GiB") == 1 << 20
    with pytest.raises(IsolateMemory, match=r"over its limit of 200 MiB") as caught:
        isolate(support.hold, 400 << 20, 60, host_memory="200MiB")
    assert isinstance(caught.value, MemoryError)


@linux
@pytest.mark.parametrize("start", [support.start_sleepers, support.nest_sleeper])
def test_everything_below_ends_with_a_timeout(start: Callable[[str], None], tmp_path: Path) -> None:
    path = tmp_path / "processes"
    ended = threading.Event()

    def call() -> None:
        with Isolate() as own:
            closer = threading.Thread(target=lambda: (wait_for(path.exists), own.close()))
            closer.start()
            with pytest.raises(IsolateError, match="closed during the call"):
                own.call(start, str(path))
            closer.join()
        ended.set()

    thread = threading.Thread(target=call)
    thread.start()
    wait_for(path.exists)
    processes = [int(pid) for pid in path.read_text().split()]
    assert len(processes) == 4
    thread.join(20)
    assert ended.is_set()
    assert not any(is_alive(pid) for pid in processes)


@linux
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_everything_ends_with_this_program(number: signal.Signals, tmp_path: Path) -> None:
    path = tmp_path / "processes"
    code = "import sys, gpuheap, support_isolate as s; gpuheap.isolate(s.nest_sleeper, sys.argv[1])"
    with subprocess.Popen([sys.executable, "-c", code, str(path)], cwd=Path(__file__).parent) as process:
        wait_for(path.exists)
        processes = [int(pid) for pid in path.read_text().split()]
        process.send_signal(number)
    wait_for(lambda: not any(is_alive(pid) for pid in processes))


@linux
def test_no_semaphore_and_no_shared_memory_is_left(tmp_path: Path) -> None:
    path = tmp_path / "names"
    with pytest.raises(IsolateTimeout):
        isolate(support.use_semaphore, str(path), timeout=4)
    semaphore, memory = path.read_text().split()
    left = os.listdir("/dev/shm")
    assert f"sem.{semaphore.lstrip('/')}" not in left
    assert memory.lstrip("/") not in left


def test_ctrl_c_reaches_the_call(tmp_path: Path) -> None:
    path = tmp_path / "state"
    code = "import sys, gpuheap, support_isolate as s; gpuheap.isolate(s.say_interrupted, sys.argv[1])"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], cwd=Path(__file__).parent, stderr=subprocess.PIPE, text=True
    )
    with process:
        wait_for(path.exists)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert process.returncode == -signal.SIGINT
    assert path.read_text() == "interrupted"
    assert err.rstrip().endswith("KeyboardInterrupt")


def interrupting(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, times: int) -> None:
    """Ctrl-C where a function is called next, so many times."""
    original = getattr(owner, name)
    left = [KeyboardInterrupt] * times

    def function(*args: object, **kwargs: object) -> object:
        if left:
            raise left.pop()
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, function)


@linux
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("moment", ["while it ends", "while it is killed", "while it is waited for"])
def test_ctrl_c_while_a_pool_is_closed_leaves_nothing(moment: str, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with Isolate(workers=2) as own:
        barrier = threading.Barrier(2)
        threads = [threading.Thread(target=lambda: (barrier.wait(), own.call(os.getpid))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # Its child outlives it, if nobody ends it.
        sleeper = own.call(support.start_sleeper)
        children = list(own._children)
        owner, name = {
            "while it ends": (_child.Child, "_has_exited"),
            "while it is killed": (_child._processes, "end"),
            "while it is waited for": (subprocess.Popen, "wait"),
        }[moment]
        with monkeypatch.context() as patched:
            interrupting(patched, owner, name, times)
            with pytest.raises(KeyboardInterrupt):
                own.close()
        assert all(child._ended and child._process.returncode is not None for child in children)
    wait_for(lambda: not is_alive(sleeper))


def test_calls_share_a_process() -> None:
    with Isolate() as own:
        assert [own.call(support.keep, value) for value in "abc"] == [1, 2, 3]
        with pytest.raises(KeyError):
            own.call(support.fail, "x")
        assert own.call(support.keep, "d") == 4
        with pytest.raises(IsolateCrash):
            own.call(os._exit, 1)
        assert own.call(support.keep, "a") == 1
    with pytest.raises(IsolateError, match="The pool is closed"):
        own.call(support.keep, "a")


def test_a_failed_call_holds_nothing() -> None:
    with Isolate() as own:
        with pytest.raises(ValueError, match="Large"):
            own.call(support.fail_while_holding)
        assert own.call(support.living_large) == 0


def test_calls_at_once() -> None:
    pids: list[int] = []
    with Isolate(workers=2) as own:
        start = time.monotonic()
        own.call(time.sleep, 0)
        threads = [threading.Thread(target=own.call, args=(time.sleep, 0.5)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.monotonic() - start
        pids = [own.call(os.getpid), own.call(os.getpid)]
    assert 1.0 <= took < 1.9
    assert len(set(pids)) == 1


def test_environment_variables() -> None:
    with Isolate(env={"CUDA_VISIBLE_DEVICES": "3"}) as own:
        assert own.call(os.getenv, "CUDA_VISIBLE_DEVICES") == "3"


def test_a_pool_that_is_forgotten_ends() -> None:
    own = Isolate()
    pid = own.call(os.getpid)
    del own
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="`workers` is 0"):
        Isolate(workers=0)
    with pytest.raises(ValueError, match="`timeout` is 0"):
        isolate(support.add, 1, timeout=0)
    with pytest.raises(ValueError, match="amount of memory"):
        isolate(support.add, 1, host_memory="a lot")


def test_isolate_within_isolate() -> None:
    assert isolate(support.nest, 2) != os.getpid()


def test_from_a_daemonic_process() -> None:
    code = """
import multiprocessing, support_isolate as support
context = multiprocessing.get_context("spawn")
results = context.SimpleQueue()
process = context.Process(target=support.in_daemon, args=(results,), daemon=True)
process.start()
print(results.get())
process.join()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parent, check=False
    )
    assert (done.stdout, done.stderr) == ("3\n", "")


def test_the_call_may_have_children() -> None:
    assert isolate(support.parallel_workers) == 45


SCRIPT = """
import dataclasses, sys
{no_cloudpickle}
import gpuheap

scale = 2

@dataclasses.dataclass
class Config:
    size: int

def double(config):
    return Config(helper(config.size))

def helper(size):
    return size * scale

def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)

{guard}
    result = gpuheap.isolate(double, Config(21))
    assert result == Config(42) and type(result) is Config, result
    assert gpuheap.isolate(fib, 10) == 55
    def with_default(a, *, b=scale): return a + b
    assert gpuheap.isolate(with_default, 1) == 3
    print("fine")
"""
NO_CLOUDPICKLE = "sys.modules['cloudpickle'] = None"


@pytest.mark.parametrize("cloudpickle", [True, False])
def test_from_a_script(cloudpickle: bool, tmp_path: Path) -> None:
    if cloudpickle:
        pytest.importorskip("cloudpickle")
    path = tmp_path / "script.py"
    # With cloudpickle the program is not loaded a second time, and needs no guard.
    guard = "if True:" if cloudpickle else 'if __name__ == "__main__":'
    path.write_text(SCRIPT.format(no_cloudpickle="" if cloudpickle else NO_CLOUDPICKLE, guard=guard))
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("fine\n", "")


def test_a_script_without_a_guard_is_told(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.format(no_cloudpickle=NO_CLOUDPICKLE, guard="if True:"))
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert '__name__ == "__main__"' in done.stderr


@pytest.mark.parametrize("cloudpickle", [True, False])
def test_from_a_prompt(cloudpickle: bool) -> None:
    """As in a REPL or a notebook: there is no file to load."""
    if cloudpickle:
        pytest.importorskip("cloudpickle")
    program = f"""
import sys
{"" if cloudpickle else NO_CLOUDPICKLE}
import gpuheap, math
half = 0.5
def circle(r): return math.floor(math.pi * r ** 2 * half * 2)

print(gpuheap.isolate(circle, 10))
print(gpuheap.isolate(lambda: [circle(i) for i in range(3)]))
class Thing: pass

try: print(type(gpuheap.isolate(lambda: Thing())).__name__)
except gpuheap.Error as error: print(error)

"""
    done = subprocess.run([sys.executable, "-i", "-q"], input=program, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert lines[:2] == ["314", "[0, 3, 12]"], done.stderr
    if cloudpickle:
        assert lines[2] == "Thing"
    else:
        assert lines[2] == "`Thing` of the main program is not known in the other process"
        assert "install `cloudpickle`" in lines[4]
