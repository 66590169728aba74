"""The commands that the package installs behave as the program `prelude` does."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import common
import prelude_serve
from prelude_serve import _program

COMMANDS = {
    "prelude": [common.PROGRAM],
    "prelude-serve": [common.PROGRAM.with_name("prelude-serve")],
    "python -m": [sys.executable, "-m", "prelude_serve"],
}

# Not at its end when the client has read its beginning.
LONG = {"prompt": "Where", "max_tokens": 400, "ignore_eos": True, "stream": True}


def run(*arguments, command="prelude", **options):
    """Run a command to its end."""
    line = [*COMMANDS[command], *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, **options)


class Commands(unittest.TestCase):
    def test_three_names_are_one_program(self):
        for command in COMMANDS:
            done = run("--version", command=command)
            said = (done.returncode, done.stdout, done.stderr)
            self.assertEqual(said, (0, f"prelude {prelude_serve.__version__}\n", ""), command)

    def test_answers_and_exit_codes_are_the_programs(self):
        done = run("classify", "Where is my card?")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("card_arrival", done.stdout)
        done = run("classify", input="Where is my card?\nMy top-up is pending\n")
        self.assertEqual((done.returncode, len(done.stdout.splitlines())), (0, 2), done.stderr)
        for arguments, code, part in [
            (["serve", "--prot", "1"], 2, "--port"),
            (["serve", "--help"], 0, ""),
            (["serve", "./nothing-is-here", "--port", "0"], 3, "nothing-is-here"),
            # A name that is not UTF-8 is a file's all the same.
            (["serve", b"./nothing-\xff", "--port", "0"], 3, "nothing-"),
        ]:
            done = run(*arguments)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(part, done.stderr)
            self.assertNotIn("Traceback", done.stderr)

    def test_a_reader_that_has_seen_enough_ends_it_quietly(self):
        reader, writer = os.pipe()
        os.close(reader)
        try:
            line = [common.PROGRAM, "completions", "bash"]
            done = subprocess.run(line, stdout=writer, stderr=subprocess.PIPE, timeout=120)
        finally:
            os.close(writer)
        self.assertEqual((done.returncode, done.stderr), (0, b""))

    def test_python_takes_no_part(self):
        """Ctrl-C is the program's, and NVIDIA's libraries are looked for in this environment."""
        seen = []

        def program(arguments):
            seen.append((arguments, signal.getsignal(signal.SIGINT), os.environ["PATH"]))
            return 7

        before = signal.getsignal(signal.SIGINT)
        folder = os.path.dirname(sys.executable)
        try:
            with (
                mock.patch.object(_program, "run", program),
                mock.patch.object(sys, "argv", ["prelude-serve", "a", "b"]),
                mock.patch.dict(os.environ, PATH="/somewhere"),
            ):
                signal.signal(signal.SIGINT, signal.default_int_handler)
                self.assertEqual(_program.main(), 7)
                # Whoever started the program wants it to ignore Ctrl-C.
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                self.assertEqual(_program.main(), 7)
        finally:
            signal.signal(signal.SIGINT, before)
        path = f"{folder}{os.pathsep}/somewhere"
        self.assertEqual(seen[0], (["a", "b"], signal.SIG_DFL, path))
        self.assertEqual(seen[1][:2], (["a", "b"], signal.SIG_IGN))


class Signals(unittest.TestCase):
    def setUp(self):
        self.server = common.Server("lm", "--drain-delay", "0s", "--drain-timeout", "600s")
        self.addCleanup(self.server.close)
        host, port = self.server.address.removeprefix("http://").split(":")
        self.address = host, int(port)

    def ended(self):
        """Wait for the server's end, and return its exit code and what it said."""
        said = self.server.process.stderr.read()
        return self.server.process.wait(60), said

    def test_a_server_told_to_stop_ends_what_it_began(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(number):
                self.doCleanups()
                self.setUp()
                with contextlib.closing(http.client.HTTPConnection(*self.address, timeout=60)) as connection:
                    connection.request("POST", "/v1/completions", json.dumps(LONG), {"Content-Type": "application/json"})
                    answer = connection.getresponse()
                    self.assertTrue(answer.readline().startswith(b"data: {"))
                    self.server.process.send_signal(number)
                    self.assertTrue(answer.read().endswith(b"data: [DONE]\n\n"))
                code, said = self.ended()
                self.assertEqual(code, 0, said)
                self.assertIn("draining", said)
                self.assertNotIn("KeyboardInterrupt", said)

    def test_told_twice_it_ends_at_once(self):
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n"
        with socket.create_connection(self.address, timeout=60) as connection:
            connection.sendall(head)
            # The server waits for the body of this request, which does not come.
            self.assertTrue(connection.recv(4096).startswith(b"HTTP/1.1 100"))
            self.server.process.send_signal(signal.SIGINT)
            for line in self.server.process.stderr:
                if "draining" in line:
                    break
            self.server.process.send_signal(signal.SIGINT)
            self.assertEqual(self.ended(), (0, ""))

    def test_a_service_manager_is_told(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as manager:
            path = Path(folder) / "socket"
            manager.bind(str(path))
            manager.settimeout(60)
            with mock.patch.dict(os.environ, NOTIFY_SOCKET=str(path)):
                server = common.Server("lm")
            self.addCleanup(server.close)
            self.assertEqual(manager.recv(4096), b"READY=1\nSTATUS=serving demo-lm\n")
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(manager.recv(4096), b"STOPPING=1\nSTATUS=draining\n")


if __name__ == "__main__":
    unittest.main()
