import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.local import ComponentDiedError, LocalError
from millrace.local import processes as local_processes
from millrace.local.component import Component
from millrace.local.guard import descendants
from millrace.local.processes import Process, WorkFolder, release_port, reserve_port, tail
from tests.service_process import is_alive

PYTHON = sys.executable


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_output_goes_to_the_log(tmp_path: Path) -> None:
    process = Process("p", [PYTHON, "-c", "print('out'); import sys; sys.exit(3)"], log=tmp_path / "log")
    assert process.wait(120) == 3
    assert process.log_tail() == "out"


def test_the_child_is_in_a_session_of_its_own(tmp_path: Path) -> None:
    process = Process("p", ["sleep", "600"], log=tmp_path / "log")
    assert os.getsid(process.pid) != os.getsid(0)
    assert process.stop() == -signal.SIGTERM


def test_a_child_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    started: list[Process] = []
    thread = threading.Thread(
        target=lambda: started.append(Process("p", ["sleep", "600"], log=tmp_path / "log"))
    )
    thread.start()
    thread.join()
    until(lambda: "sleep" in Path(f"/proc/{started[0].pid}/cmdline").read_text())
    time.sleep(0.2)
    assert started[0].poll() is None
    assert started[0].kill() == -signal.SIGKILL


def test_a_program_that_does_not_exist_is_told_in_the_log(tmp_path: Path) -> None:
    process = Process("p", ["/no/such/program"], log=tmp_path / "log")
    assert process.wait(120) == 1
    assert "/no/such/program" in process.log_tail()


START_TREE = """
import sys, time
from pathlib import Path
from millrace.local.processes import Process
child = "import subprocess, time; subprocess.Popen(['sleep', '600'], start_new_session=True); time.sleep(600)"
process = Process("tree", [sys.executable, "-c", child], log=Path(sys.argv[1]), tree=True)
print(process.pid, flush=True)
time.sleep(600)
"""


def test_a_tree_ends_with_a_killed_parent(tmp_path: Path) -> None:
    with subprocess.Popen(
        [PYTHON, "-c", START_TREE, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        guard = int(parent.stdout.readline())
        until(lambda: len(descendants(guard)) == 2)
        everyone = [guard, *descendants(guard)]
        parent.kill()
    until(lambda: not any(is_alive(pid) for pid in everyone))


def test_a_tree_ends_with_its_program_and_gives_its_exit_code(tmp_path: Path) -> None:
    program = (
        "import subprocess; print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid); exit(5)"
    )
    process = Process("tree", [PYTHON, "-c", program], log=tmp_path / "log", tree=True)
    assert process.wait(120) == 5
    assert not is_alive(int(process.log_tail()))


def test_tail_gives_the_last_lines(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("".join(f"{number}\n" for number in range(1000)))
    assert tail(file, 2) == "998\n999"
    assert tail(tmp_path / "none", 2) == ""


def test_a_work_folder_is_removed() -> None:
    folder = WorkFolder("test")
    (folder.path / "file").touch()
    folder.remove()
    folder.remove()
    assert not folder.path.exists()


def test_folders_of_killed_processes_are_removed_others_stay() -> None:
    script = "import sys, time; from millrace.local.processes import WorkFolder; f = WorkFolder('test');"
    script += "print(f.path, flush=True); time.sleep(600)"
    with subprocess.Popen([PYTHON, "-c", script], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        path = Path(other.stdout.readline().strip())
        WorkFolder("test").remove()
        assert path.is_dir()
        other.kill()
    WorkFolder("test").remove()
    assert not path.exists()


def test_ports_are_free_distinct_and_below_the_outgoing_range() -> None:
    ports = [reserve_port() for _ in range(20)]
    try:
        assert len(set(ports)) == 20
        assert max(ports) < 32_768
        script = "from millrace.local.processes import reserve_port\n"
        script += "print(*[reserve_port() for _ in range(50)])"
        others = subprocess.run([PYTHON, "-c", script], capture_output=True, text=True, check=True).stdout
        assert not set(ports).intersection(map(int, others.split()))
    finally:
        for port in ports:
            release_port(port)


class Listener(Component):
    """Listens on its port; the first time another program is quicker."""

    def __init__(self, program: str, *, thief: bool = False) -> None:
        super().__init__("listener")
        self.program = program
        self.thief = thief
        self.stolen: socket.socket | None = None

    def _prepare(self) -> None:
        (self.folder / "prepared").touch(exist_ok=False)

    def _launch(self) -> None:
        if self.thief and self.stolen is None:
            self.stolen = socket.create_server(("127.0.0.1", self.ports[0]))
        command = [PYTHON, "-c", self.program, str(self.ports[0])]
        self.processes = [Process("listener", command, log=self.folder / "log")]

    def _is_ready(self) -> bool:
        return "serving" in self.log_tail()


LISTEN = """
import socket, sys, time
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("serving", flush=True)
time.sleep(600)
"""


def test_a_component_takes_another_port_when_its_own_is_taken() -> None:
    with Listener(LISTEN, thief=True) as listener:
        assert listener.stolen is not None
        assert listener.stolen.getsockname()[1] != listener.ports[0]
        assert listener.running
        listener.stolen.close()


def test_a_component_that_dies_is_reported_with_its_log() -> None:
    with Listener(LISTEN) as listener:
        listener.check()
        listener.kill()
        with pytest.raises(ComponentDiedError, match=r"listener was killed by signal 9(.|\n)*serving"):
            listener.check()


def test_a_component_that_never_starts_is_reported_with_its_log_and_leaves_nothing() -> None:
    listener = Listener("import sys; sys.exit('no luck')")
    with pytest.raises(ComponentDiedError, match=r"listener ended with exit code 1(.|\n)*no luck"):
        listener.start()
    assert listener.ports == []


def test_a_component_that_is_slow_is_given_up() -> None:
    class Slow(Listener):
        def _launch(self) -> None:
            super()._launch()
            until(lambda: "so far" in self.log_tail())

    listener = Slow("import time; print('so far', flush=True); time.sleep(600)")
    listener.start_timeout_s = 1
    with pytest.raises(ComponentDiedError, match=r"not ready after 1 s(.|\n)*so far"):
        listener.start()


def test_a_component_that_is_closed_while_it_starts_does_not_start() -> None:
    class Closed(Listener):
        def _prepare(self) -> None:
            self.close()

    with pytest.raises(LocalError, match="closed while it started"):
        Closed(LISTEN).start()


def test_a_component_that_was_closed_while_it_started() -> None:
    class Closed(Listener):
        def _prepare(self) -> None:
            self.close()

    with pytest.raises(LocalError, match=r"^listener was closed while it started$"):
        Closed(LISTEN).start()


def test_a_component_whose_port_is_taken_whenever_it_starts() -> None:
    listener = Listener(LISTEN)
    with listener:
        listener.kill()
        (listener.folder / "log").unlink()
        with (
            socket.create_server(("127.0.0.1", listener.ports[0])),
            pytest.raises(ComponentDiedError) as caught,
        ):
            listener.start()
        ports = listener.ports
    assert str(caught.value).startswith(f"listener found its ports {ports} taken:\n")


def test_a_component_that_dies_without_a_word() -> None:
    with pytest.raises(ComponentDiedError, match=r"exit code 4(.|\n)*\n\(it wrote nothing\)$"):
        Listener("import os; os._exit(4)").start()


def test_no_port_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_processes, "_is_free", lambda _port: False)
    with pytest.raises(LocalError, match=r"^found no free port between \d+ and \d+ on 127\.0\.0\.1$"):
        local_processes.reserve_port()


def test_a_folder_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_processes.tempfile, "gettempdir", lambda: str(tmp_path))
    folder = tmp_path / "millrace-4242"
    if len(str(folder)) > local_processes._LONGEST_BASE:
        monkeypatch.setattr(local_processes, "_LONGEST_BASE", len(str(folder)))
    monkeypatch.setattr(local_processes.os, "getuid", lambda: 4242)
    with pytest.raises(LocalError) as caught:
        local_processes._base_folder()
    assert str(caught.value) == (
        f"{folder} is not your folder, but another user's or a link: set TMPDIR to a folder of your own"
    )


def test_a_folder_behind_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies in it is removed when its servers are gone: it must not be somewhere else."""
    monkeypatch.setattr(local_processes.tempfile, "gettempdir", lambda: str(tmp_path))
    folder = tmp_path / f"millrace-{os.getuid()}"
    monkeypatch.setattr(local_processes, "_LONGEST_BASE", len(str(folder)))
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LocalError, match="or a link: set TMPDIR"):
        local_processes._base_folder()
    folder.unlink()
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    assert local_processes._base_folder() == folder
    assert folder.stat().st_mode & 0o777 == 0o700
