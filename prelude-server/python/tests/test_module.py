"""What needs no other package: errors, threads, interruption, processes, progress, stubs."""

import _thread
import ast
import contextlib
import inspect
import io
import json
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import unittest
import weakref
from pathlib import Path

import common
import prelude_serve
from fake_hub import FakeHub
from prelude_serve import LLM, Choice, EngineFailed, InvalidRequest, LoadError, Noul, Overloaded, RequestError, Score
from prelude_serve import _batches, _prelude_serve, _progress

DEMO = common.REPOSITORY / "prelude-server" / "demo" / "demo-classifier"


class Loading(unittest.TestCase):
    def fails(self, error, text, /, *args, **kwargs):
        with self.assertRaisesRegex(error, text):
            LLM(*args, progress=False, **kwargs)

    def test_wrong_options_are_named(self):
        self.fails(ValueError, "kind: unknown variant `judge`, expected one of `lm`, `reranker`", "demo-lm", kind="judge")
        self.fails(ValueError, "pooling: unknown variant `max`, expected one of `cls`, `last`, `mean`", "demo-lm", pooling="max")
        self.fails(ValueError, "device: must be cpu, cuda or cuda:N", "demo-lm", device="tpu")
        self.fails(ValueError, "max_model_len: .*string", "demo-lm", max_model_len="long")
        self.fails(ValueError, r"settings\.scheduler\S*: unknown field `polcy`", "demo-lm", settings={"scheduler": {"polcy": "fcfs"}})
        self.fails(ValueError, r"settings\.server\S*: unknown field `port`", "demo-lm", settings={"server": {"port": 1}})
        self.fails(ValueError, "unknown field `models`", "demo-lm", settings={"models": {}})
        self.fails(ValueError, "cannot be served as classifier", "demo-lm", kind="classifier")
        self.fails(ValueError, "is for names on the Hub", "demo-lm", revision="v1")
        self.fails(TypeError, "unexpected keyword argument 'port'", "demo-lm", port=1)

    def test_models_that_are_not_there(self):
        self.fails(LoadError, "is not a folder", "no-such-model")
        with tempfile.TemporaryDirectory() as folder:
            self.fails(LoadError, "config.json|tokenizer.json", Path(folder))
        self.fails((ValueError, LoadError), "no NVIDIA driver|no GPU 4000|driver supports|built without CUDA", "demo-lm", device="cuda:4000")

    def test_settings_are_obeyed(self):
        with LLM("demo-lm", settings={"limits": {"rows": 2}}) as llm:
            with self.assertRaises(InvalidRequest) as caught:
                llm.ask("/v1/completions", {"prompt": ["a", "b", "c"], "max_tokens": 1})
            self.assertEqual(caught.exception.reason, "too_many_rows")
        with LLM("demo-lm", max_model_len=32) as llm:
            self.assertEqual(llm.max_model_len, 32)

    def test_a_folder_is_a_model(self):
        with LLM(DEMO) as llm:
            self.assertEqual((llm.name, llm.kind), ("demo-classifier", "classifier"))
            self.assertEqual(llm.tasks, ["classify", "score", "pooling"])
            self.assertIn("MiB planned", llm.memory)
            self.assertEqual(repr(llm), f"LLM('demo-classifier', kind='classifier', tasks={llm.tasks})")

    def test_models_share_threads(self):
        with LLM("demo-classifier") as one, LLM("demo-lm", beside=one) as other:
            one.close()
            self.assertEqual(len(other.generate("a", max_tokens=2, temperature=0)), 1)
            with self.assertRaisesRegex(ValueError, "closed"):
                LLM("demo-lm", beside=one)

    def test_a_model_of_the_hub_is_fetched(self):
        hub = FakeHub(DEMO)
        self.addCleanup(hub.close)
        script = (
            "import io, sys\n"
            "from prelude_serve import LLM, _llm\n"
            "seen = []\n"
            "_llm.Bar.set = lambda self, done, total: seen.append((done, total))\n"
            "llm = LLM('owner/model')\n"
            "done, total = seen[-1]\n"
            "print(llm.name, done == total > 0, llm.ask('/classify', {'input': 'Where is my card?'})['data'][0]['label'])\n"
        )
        with tempfile.TemporaryDirectory() as home:
            variables = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": home, "HF_HUB_OFFLINE": "0"}
            self.assertEqual(common.run_python(script, **variables), "owner/model True card_arrival\n")

    def test_a_download_can_be_interrupted(self):
        hub = FakeHub(DEMO, stalls=True)
        self.addCleanup(hub.close)
        script = (
            "import _thread, signal, threading, sys\n"
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "from prelude_serve import LLM\n"
            "threading.Thread(target=lambda: (sys.stdin.readline(), _thread.interrupt_main()), daemon=True).start()\n"
            "try:\n"
            "    LLM('owner/model')\n"
            "except KeyboardInterrupt:\n"
            "    print('interrupted')\n"
        )
        import subprocess

        with tempfile.TemporaryDirectory() as home:
            variables = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": home, "HF_HUB_OFFLINE": "0"}
            process = subprocess.Popen(
                [sys.executable, "-B", "-c", script],
                env={**os.environ, **variables},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            try:
                self.assertTrue(hub.stalled.wait(60))
                # The weights are under way and never end.
                out, _ = process.communicate("now\n", timeout=60)
            finally:
                process.kill()
            self.assertEqual((out, process.returncode), ("interrupted\n", 0))


class Requests(unittest.TestCase):
    def test_refusals_are_typed(self):
        llm = common.model("lm")

        def check(kind, status, reason, path, body, **more):
            with self.assertRaises(kind) as caught:
                llm.ask(path, body, **more)
            error = caught.exception
            self.assertEqual((error.status, error.reason), (status, reason), error)
            again = pickle.loads(pickle.dumps(error))
            self.assertEqual((type(again), again.status, str(again)), (type(error), status, str(error)))
            return error

        error = check(InvalidRequest, 400, "invalid_type", "/v1/completions", {"prompt": "a", "temperature": "hot"})
        self.assertEqual(error.param, "temperature")
        self.assertIsInstance(error, ValueError)
        check(InvalidRequest, 404, "not_found", "/nothing", {})
        check(InvalidRequest, 400, "unsupported_task", "/v1/embeddings", {"input": "a"})
        check(InvalidRequest, 400, "unknown_field", "/classify", {"input": "a", "labels": ["a", "b"], "x": 1}, strict=True)
        check(InvalidRequest, 422, "missing_field", "/v1/systemone", {"state": "a"})
        # Another dialect of errors.
        with self.assertRaises(InvalidRequest):
            llm.ask("/predict", {"inputs": "a"})

    def test_unknown_fields_of_methods_are_refused(self):
        with self.assertRaisesRegex(InvalidRequest, "temprature"):
            common.model("lm").generate("a", temprature=0)
        with self.assertRaisesRegex(InvalidRequest, "hurry"):
            common.model("lm").decide("a", {"q": "Is it?"}, hurry=True)

    def test_decisions(self):
        questions = {
            "lost": "Is a card missing?",
            "late": Noul("Is it late?", true="after a week", false={"days": 3}),
            "topic": Choice("Which topic?", ["card", "transfer"]),
            "described": Choice("Which topic?", {"card": "a card", "transfer": None}),
            "anger": Score("How angry?", ["Calm", "Cross", "Furious"]),
            "raw": {"type": "noul", "instructions": "Is it?"},
        }
        found = common.model("lm").decide("Where is my card? I ordered it two weeks ago.", questions)
        self.assertEqual(list(found), list(questions))
        self.assertEqual(found["topic"].value, "card")
        self.assertEqual(set(found["topic"].probabilities), {"card", "transfer"})
        self.assertEqual(found["lost"].value, found.raw["answers"]["lost"]["noul"])
        self.assertIsNone(found["lost"].probabilities)
        self.assertTrue(0 <= found["anger"].value <= 2)
        self.assertEqual(found["anger"].type, "score")
        self.assertIn("'topic': 'card'", repr(found))
        asked = questions["late"].to_json()
        self.assertEqual(asked["criteria"], {"true": "after a week", "false": {"days": 3}})
        for wrong in (Choice("q", "abc"), Choice("q", ["a", "a"]), Score("q", "abc")):
            with self.assertRaises(ValueError):
                common.model("lm").decide("a", {"q": wrong})
        with self.assertRaisesRegex(TypeError, "mapping of ids"):
            common.model("lm").decide("a", ["Is it?"])

    def test_generation(self):
        llm = common.model("lm")
        message = {"role": "user", "content": "Where is my card?"}
        one, two = llm.generate([[message], [message, {"role": "assistant", "content": "a"}, message]], max_tokens=4, temperature=0)
        self.assertEqual(one.raw["object"], "chat.completion")
        self.assertEqual(str(one), one.text)
        (alone,) = llm.generate([message], max_tokens=4, temperature=0)
        self.assertEqual(alone.text, one.text)
        (continued,) = llm.generate("Where is", max_tokens=3, n=2, seed=1, ignore_eos=True)
        self.assertEqual((len(continued.texts), continued.finish_reasons[0]), (2, "length"))
        by_ids = llm.generate([[5, 6], [7]], max_tokens=2, temperature=0)
        self.assertEqual([len(by_ids), by_ids[0].raw["object"]], [2, "text_completion"])
        for wrong in (["a", [message]], [[message], "a"], [1.5], b"a", [["a"]], 5, [["a", 1]]):
            with self.assertRaises(TypeError, msg=wrong):
                llm.generate(wrong)
        with self.assertRaisesRegex(ValueError, "empty"):
            llm.generate([])
        with self.assertRaisesRegex(ValueError, "stream"):
            llm.generate("a", stream=True)

    def test_text_that_is_no_text(self):
        with self.assertRaisesRegex(ValueError, "lone surrogate, which is no character, behind .*abc"):
            common.model("lm").generate("abc\ud800")
        with self.assertRaises(TypeError):
            common.model("lm").ask("/tokenize", {"prompt": object()})
        with self.assertRaises(ValueError):
            common.model("lm").generate("a", temperature=float("nan"))

    def test_texts_that_are_no_json(self):
        page = common.model("lm").ask("/metrics", method="GET")
        self.assertIn("prelude:steps_total", page)

    def test_closed(self):
        with LLM("demo-classifier") as llm:
            call = llm._engine.send("POST", "/classify", b'{"input": "a"}', True)
        # What was sent before is answered.
        self.assertEqual(call.wait()[0], 200)
        with self.assertRaisesRegex(ValueError, "taken"):
            call.wait()
        llm.close()
        with self.assertRaisesRegex(ValueError, "closed"):
            llm.ask("/classify", {"input": "a"})


class Batches(unittest.TestCase):
    def answers(self, count, size, most, at_once=3):
        """Ask about numbers; requests of more than `most` are refused."""
        sent, under_way = [], [0, 0]

        def ask(start, stop):
            sent.append(stop - start)
            under_way[0] += 1
            under_way[1] = max(under_way)

            def wait():
                under_way[0] -= 1
                if stop - start > most:
                    raise InvalidRequest(400, "too_many_rows", "too many")
                return list(range(start, stop))

            return wait

        found = [n for _, _, some in _batches.answers(ask, count, size, at_once) for n in some]
        return found, sent, under_way[1]

    def test_answers_come_in_order(self):
        for count, size, most in ((10, 3, 3), (10, 64, 64), (1, 1, 1), (7, 7, 1), (100, 16, 5)):
            found, sent, under_way = self.answers(count, size, most)
            self.assertEqual(found, list(range(count)))
            self.assertLessEqual(under_way, 4)
        # After a refusal, requests are smaller from the start.
        self.assertEqual(sent[-3:], [4, 4, 4])
        with self.assertRaisesRegex(InvalidRequest, "too many"):
            self.answers(5, 2, 0)
        with self.assertRaisesRegex(ValueError, "batch_size"):
            self.answers(5, 0, 1)

    def test_what_was_sent_is_let_go_with_an_error(self):
        alive = weakref.WeakSet()

        def ask(start, stop):
            def wait():
                raise KeyboardInterrupt

            alive.add(wait)
            return wait

        try:
            list(_batches.answers(ask, 10, 1, 5))
        except KeyboardInterrupt as error:
            # An interpreter and a notebook keep the error, and with it the variables of all functions.
            kept = error.__traceback__
            self.assertEqual(len(alive), 1)
            del kept

    def test_a_full_queue_is_waited_for(self):
        refusals = [2]

        def ask(start, stop):
            def wait():
                refusals[0] -= 1
                if refusals[0] >= 0:
                    raise Overloaded(429, "queue_full", "full")
                return "answer"

            return wait

        self.assertEqual(list(_batches.answers(ask, 1, 1, 1)), [(0, 1, "answer")])

        def late(start, stop):
            def wait():
                raise Overloaded(429, "deadline_expired", "late")

            return wait

        with self.assertRaisesRegex(Overloaded, "late"):
            list(_batches.answers(late, 1, 1, 1))

    def test_a_small_queue_is_enough(self):
        with LLM("demo-lm", settings={"limits": {"queued_rows": 8, "rows": 8}}) as llm:
            found = llm.generate(["a"] * 100, max_tokens=2, temperature=0)
            self.assertEqual(len({one.text for one in found}), 1)


class Threads(unittest.TestCase):
    def test_other_threads_run_meanwhile(self):
        llm = common.model("lm")
        calls = [
            lambda: llm.generate("Where", max_tokens=5),
            lambda: llm._engine.send("POST", "/tokenize", b'{"prompt": "a"}', True).wait(),
            lambda: LLM("demo-classifier").close(),
        ]
        interval = sys.getswitchinterval()
        for call in calls:
            ran = []
            # So long that only a call that lets go lets the other thread run.
            sys.setswitchinterval(1e6)
            try:
                _thread.start_new_thread(ran.append, (True,))
                # A busy machine may give the other thread no core for a while.
                until = time.monotonic() + 60
                while not ran and time.monotonic() < until:
                    call()
                self.assertTrue(ran, call)
            finally:
                sys.setswitchinterval(interval)

    def test_many_threads_get_their_own_answers(self):
        llm = common.model("lm")
        prompts = [f"Card {i} is" for i in range(8)]
        expected = [llm.generate(p, max_tokens=6, temperature=0)[0].text for p in prompts]
        found = {}

        def ask(i):
            found[i] = [llm.generate(prompts[i], max_tokens=6, temperature=0)[0].text for _ in range(5)]

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(found, {i: [text] * 5 for i, text in enumerate(expected)})

    def test_ctrl_c_ends_what_is_waited_for(self):
        # A shell starts what runs in its background with the signal ignored.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        llm = common.model("lm")
        long = {"max_tokens": 400, "ignore_eos": True}
        for call in (
            lambda: llm.generate(["Where is my card?"] * 5000, **long),
            lambda: llm.ask("/v1/completions", {"prompt": ["Where"] * 4000, **long}),
        ):
            timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            with self.assertRaises(KeyboardInterrupt):
                call()
            timer.join()
            # What was under way is given up, not computed to its end.
            for _ in range(500):
                page = llm.ask("/metrics", method="GET")
                running = [line for line in page.splitlines() if line.startswith("vllm:num_requests_running")]
                self.assertTrue(running)
                if all(line.endswith((" 0", " 0.0")) for line in running):
                    break
                time.sleep(0.01)
            else:
                self.fail(f"requests still run: {running}")
        self.assertEqual(llm.decide("a", {"q": "Is it?"})["q"].type, "noul")

    def test_a_fork_says_that_it_has_no_threads(self):
        llm = common.model("classifier")
        call = llm._engine.send("POST", "/classify", b'{"input": "a"}', True)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for ask in (lambda: llm.ask("/classify", {"input": "a"}), call.wait):
                    try:
                        ask()
                    except RuntimeError as error:
                        status = 0 if "forked" in str(error) else 2
                llm.close()
            finally:
                os._exit(status)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        self.assertEqual(call.wait()[0], 200)


class Progress(unittest.TestCase):
    def drawn(self, shown, count=4, pause=0.0):
        text = io.StringIO()
        with contextlib.redirect_stderr(text), _progress.Bar("work", count, shown) as bar:
            bar._drawn -= 1
            for _ in range(count):
                bar.advance(1)
                time.sleep(pause)
        return text.getvalue()

    def test_a_bar_is_drawn_where_it_is_wanted(self):
        self.assertEqual(self.drawn(False), "")
        # What is redirected is no terminal.
        self.assertEqual(self.drawn(None), "")
        shown = self.drawn(True)
        self.assertIn("work [" + "#" * 30 + "] 4/4, ", shown)
        self.assertTrue(shown.endswith("\n"))
        self.assertEqual([_progress.seconds(n) for n in (5, 65, 3700)], ["5 s", "1:05 min", "1:01 h"])

    def test_methods_draw_bars_if_told(self):
        text = io.StringIO()
        with contextlib.redirect_stderr(text):
            common.model("lm").generate(["Where"] * 300, max_tokens=30, ignore_eos=True, progress=True)
        self.assertIn("generate [", text.getvalue())


class Stubs(unittest.TestCase):
    """The stub of the compiled module says what the module has."""

    def test_the_stub_describes_the_module(self):
        stub = Path(inspect.getfile(prelude_serve)).with_name("_prelude_serve.pyi")
        stated = ast.parse(stub.read_text()).body
        nodes = {node.name: node for node in stated if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
        public = {name for name in vars(_prelude_serve) if not name.startswith("__")}
        self.assertEqual(set(nodes), public)
        for name, node in nodes.items():
            found = getattr(_prelude_serve, name)
            self.compare(node, found, name)
            if isinstance(node, ast.FunctionDef):
                self.assertEqual([a.arg for a in node.args.args], list(inspect.signature(found).parameters), name)
                continue
            methods = {method.name: method for method in node.body if isinstance(method, ast.FunctionDef)}
            own = {name for name in vars(found) if not name.startswith("_")}
            self.assertEqual(set(methods), own, name)
            for method, stated in methods.items():
                self.compare(stated, getattr(found, method), f"{name}.{method}")
                if any(ast.unparse(d) == "property" for d in stated.decorator_list):
                    continue
                shown = [p for p in inspect.signature(getattr(found, method)).parameters if p != "self"]
                self.assertEqual([a.arg for a in stated.args.args if a.arg != "self"], shown, method)

    def compare(self, stub, found, name):
        words = lambda text: (text or "").split()
        self.assertEqual(words(ast.get_docstring(stub)), words(inspect.getdoc(found)), name)

    def test_everything_public_is_described(self):
        for name in prelude_serve.__all__:
            found = getattr(prelude_serve, name)
            if inspect.isclass(found):
                self.assertTrue(found.__doc__, name)
        for name, method in vars(LLM).items():
            if not name.startswith("_"):
                self.assertTrue(method.__doc__, name)
        self.assertTrue(issubclass(EngineFailed, RequestError))


if __name__ == "__main__":
    unittest.main()
