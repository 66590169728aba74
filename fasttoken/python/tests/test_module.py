"""What needs no other package: errors, buffers, threads, files, and the stubs."""

import _thread
import ast
import inspect
import pickle
import sys
import tempfile
import threading
import unittest
import warnings
from pathlib import Path

import common
import fasttoken
from fasttoken import AddedToken, EncodeError, LoadError, Tokenizer, UnsupportedError

DATA = common.REPOSITORY / "fasttoken" / "tests" / "data"
FILE = DATA / "tokenizer.json"


class Errors(unittest.TestCase):
    def setUp(self):
        self.tokenizer = Tokenizer.from_file(FILE)

    def fails(self, kind, text, call, *args, **kwargs):
        with self.assertRaisesRegex(kind, text):
            call(*args, **kwargs)

    def test_texts(self):
        t = self.tokenizer
        self.fails(ValueError, "sequence has a lone surrogate at character 3", t.encode, "abc\ud800")
        self.fails(ValueError, r"input\[1\] has a lone surrogate at char", t.encode_batch, ["a", "\udfff"])
        pair = ("a", "bc\ud800")
        self.fails(ValueError, r"input\[0\]\[1\] has .* at character 2", t.encode_batch_fast, [pair])
        self.fails(ValueError, "lone surrogate", t.encode_ids, "\ud83d")
        self.fails(ValueError, "lone surrogate", t.encode_batch_ids, ["\ud83d"])
        self.fails(ValueError, "lone surrogate", t.encode_ordinary_ids, "\ud83d")
        self.fails(TypeError, "sequence must be a str, not int", t.encode, 5)
        self.fails(TypeError, "sequence must be a str, not bytes; decode it", t.encode, b"a")
        self.fails(TypeError, "sequence must be a str, not list; text that was split", t.encode, ["a"])
        self.fails(TypeError, "pair must be a str, not int", t.encode, "a", 5)
        self.fails(TypeError, r"input\[1\] must be a str, not int", t.encode_batch, ["a", 5])
        self.fails(TypeError, r"input\[0\] must be a str, not tuple", t.encode_batch, [("a", "b", "c")])
        self.fails(TypeError, "not one str", t.encode_batch, "abc")
        words = {"is_pretokenized": True}
        self.fails(UnsupportedError, "is_pretokenized=True", t.encode, ["a"], **words)
        self.fails(UnsupportedError, "is_pretokenized=True", t.encode_batch, [["a"]], **words)
        self.fails(UnsupportedError, "is_pretokenized=True", t.encode_batch_fast, [["a"]], **words)

    def test_ids(self):
        for call in (self.tokenizer.decode, lambda ids: self.tokenizer.decode_batch([ids])):
            self.fails(OverflowError, "-1 is no id", call, [-1])
            self.fails(OverflowError, "4294967296 is no id", call, [2**32])
            self.fails(OverflowError, "", call, [2**70])
            self.fails(TypeError, "", call, [1.5])
            self.fails(TypeError, "not a str", call, "12")
            self.fails(TypeError, "", call, 12)

    def test_settings(self):
        t = self.tokenizer
        self.fails(ValueError, "direction must be 'left' or 'right', not \"up\"", t.enable_padding, "up")
        strategy = {"strategy": "x"}
        self.fails(ValueError, "'longest_first', 'only_first' or", t.enable_truncation, 5, **strategy)
        self.fails(EncodeError, "stride 6 is greater than the 5 ids", t.enable_truncation, 5, 6)
        self.fails(OverflowError, "", t.enable_truncation, -1)
        self.assertIsNone(t.truncation)
        t.enable_truncation(2, strategy="only_second")
        self.fails(EncodeError, "there is only one", t.encode, "one and two and three")
        self.fails(EncodeError, "there is only one", t.encode_ids, "one and two and three")
        self.fails(UnsupportedError, "neither truncates nor pads", t.encode_ordinary_ids, "a")
        t.enable_truncation(4, stride=3)
        encoding = t.encode("one and two", "three and four and five")
        self.assertEqual(len(encoding), 4)
        self.fails(EncodeError, "a stride of 3", lambda: encoding.overflowing)
        t.no_truncation()
        t.enable_padding(length=2**30)
        self.fails(EncodeError, "the most is 16777216", t.encode, "a")
        t.no_padding()
        with self.assertRaisesRegex(UnsupportedError, "encode_ordinary_ids"):
            t.encode_special_tokens = True
        t.encode_special_tokens = False
        with self.assertRaises(AttributeError):
            t.truncation = {}

    def test_loading(self):
        with self.assertRaises(FileNotFoundError) as raised:
            Tokenizer.from_file("no/such/file.json")
        self.assertEqual(raised.exception.filename, "no/such/file.json")
        self.fails(IsADirectoryError, "", Tokenizer.from_file, DATA)
        self.fails(LoadError, "malformed tokenizer JSON", Tokenizer.from_str, "{")
        self.fails(LoadError, "malformed tokenizer JSON", Tokenizer.from_buffer, b"\xff")
        word_level = '{"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}'
        self.fails(LoadError, r"at \$\.model\.type: model WordLevel", Tokenizer.from_str, word_level)
        self.fails(ValueError, "no encoding of tiktoken", Tokenizer.from_tiktoken, FILE, "x")
        self.fails(LoadError, "", Tokenizer.from_tekken, FILE)
        self.fails(TypeError, "list of str or AddedToken", self.tokenizer.add_tokens, "abc")
        self.fails(TypeError, "must be a str or an AddedToken", self.tokenizer.add_tokens, [5])

    def test_reprs(self):
        token = AddedToken("a'b", lstrip=True)
        self.assertEqual(eval(repr(token)), token)
        self.assertEqual(str(token), "a'b")
        self.assertRegex(repr(self.tokenizer), r"<fasttoken\.Tokenizer of \d+ tokens>")
        self.assertIn("num_tokens=", repr(self.tokenizer.encode("a")))


class Buffers(unittest.TestCase):
    def setUp(self):
        self.tokenizer = Tokenizer.from_file(FILE)

    def test_views(self):
        ids = self.tokenizer.encode_ids("Where is my card?")
        self.assertEqual((ids.format, ids.itemsize, ids.ndim, ids.c_contiguous), ("I", 4, 1, True))
        self.assertEqual(ids.tolist(), self.tokenizer.encode("Where is my card?").ids)
        self.assertEqual(bytes(ids), b"".join(n.to_bytes(4, sys.byteorder) for n in ids))
        ids[0] = 7  # the caller's own
        self.assertEqual(ids[0], 7)
        self.assertEqual(len(self.tokenizer.encode_ids("")), 0)
        self.assertEqual(self.tokenizer.decode(ids[1:]), self.tokenizer.decode(ids.tolist()[1:]))
        self.assertEqual(self.tokenizer.decode(ids[::2]), self.tokenizer.decode(ids.tolist()[::2]))

    def test_batches(self):
        ids, offsets = self.tokenizer.encode_batch_ids(["one", "", ("two", "three")])
        self.assertEqual((offsets.format, offsets.itemsize, len(offsets)), ("q", 8, 4))
        first, empty = self.tokenizer.encode_ids("one"), self.tokenizer.encode_ids("")
        expected = first.tolist() + empty.tolist() + self.tokenizer.encode_ids("two", "three").tolist()
        self.assertEqual(ids.tolist(), expected)
        self.assertEqual(offsets[0], 0)
        self.assertEqual(offsets[3], len(ids))
        ids, offsets = self.tokenizer.encode_batch_ids([])
        self.assertEqual((ids.tolist(), offsets.tolist()), ([], [0]))

    def test_settings_hold(self):
        self.tokenizer.enable_truncation(3)
        self.tokenizer.enable_padding(pad_id=9, length=4)
        texts = ["one and two and three", "", "Where is my card?"]
        lists = [encoding.ids for encoding in self.tokenizer.encode_batch(texts)]
        ids, offsets = self.tokenizer.encode_batch_ids(texts)
        self.assertEqual(ids.tolist(), sum(lists, []))
        self.assertEqual(offsets.tolist(), [0, 4, 8, 12])
        self.assertEqual(self.tokenizer.encode_ids(texts[0]).tolist(), lists[0])
        self.assertEqual(self.tokenizer.count(texts[0]), 4)

    def test_encodings_keep_the_settings_of_their_call(self):
        texts = ["one and two and three", "", ("Where is my card?", "two")]

        def columns(encodings):
            return [
                (e.ids, e.offsets, e.word_ids, e.tokens, e.char_to_token(0), e.word_to_chars(0))
                + tuple((piece.ids, piece.offsets, piece.tokens) for piece in e.overflowing)
                for e in encodings
            ]

        self.tokenizer.enable_truncation(3)
        self.tokenizer.enable_padding(pad_id=9, pad_to_multiple_of=4)
        expected = columns(self.tokenizer.encode_batch(texts))
        found = self.tokenizer.encode_batch(texts)
        # Offsets are made when they are asked for, by a tokenizer that is another one by now.
        self.tokenizer.enable_truncation(5)
        self.tokenizer.no_padding()
        self.tokenizer.add_tokens(["two"])
        self.assertEqual(columns(found), expected)
        self.assertNotEqual(columns(self.tokenizer.encode_batch(texts)), expected)
        self.assertEqual([len(encoding) for encoding in found], [4, 4, 4])

    def test_numpy(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("SKIP: numpy is not installed")
        view = self.tokenizer.encode_ids("Where is my card?")
        array = numpy.asarray(view)
        self.assertEqual(array.dtype, numpy.uint32)
        array[0] = 5  # the same memory
        self.assertEqual(view[0], 5)
        del view
        expected = self.tokenizer.decode(array.tolist())
        for kind in (numpy.uint32, numpy.int64, numpy.int32, numpy.uint16):
            self.assertEqual(self.tokenizer.decode(array.astype(kind)), expected)
        strided = numpy.repeat(array, 2)[::2]
        self.assertEqual(self.tokenizer.decode(strided), expected)
        with self.assertRaisesRegex(ValueError, "one dimension, not 2"):
            self.tokenizer.decode(array.reshape(1, -1))
        texts = self.tokenizer.decode_batch(array.reshape(1, -1))
        self.assertEqual(texts, [expected])

    def test_plain_text_has_no_control_tokens(self):
        ids = self.tokenizer.encode_ordinary_ids("a<|im_end|>").tolist()
        self.assertNotIn(self.tokenizer.token_to_id("<|im_end|>"), ids)
        self.assertEqual(self.tokenizer.decode(ids), "a<|im_end|>")


class Threads(unittest.TestCase):
    def test_other_threads_run_meanwhile(self):
        tokenizer = Tokenizer.from_file(FILE)
        text = "Where is my card? " * 20_000
        calls = [
            lambda: tokenizer.encode(text),
            lambda: tokenizer.encode_ids(text),
            lambda: tokenizer.encode_ordinary_ids(text),
            lambda: tokenizer.count(text),
            lambda: tokenizer.encode_batch([text]),
            lambda: tokenizer.encode_batch_fast([text]),
            lambda: tokenizer.encode_batch_ids([text]),
            lambda: tokenizer.decode(ids),
            lambda: tokenizer.decode_batch([ids]),
        ]
        ids = tokenizer.encode_ids(text)
        interval = sys.getswitchinterval()
        for call in calls:
            ran = []
            # So long that only a call that lets go lets the other thread run.
            sys.setswitchinterval(1e6)
            try:
                _thread.start_new_thread(ran.append, (True,))
                for _ in range(2000):
                    if ran:
                        break
                    call()
                self.assertTrue(ran, call)
            finally:
                sys.setswitchinterval(interval)

    def test_settings_may_change_while_others_encode(self):
        tokenizer = Tokenizer.from_file(FILE)
        text = "Where is my card? " * 500
        lengths = {3, 5, len(tokenizer.encode(text))}
        wrong = []

        def encode():
            for _ in range(50):
                found = len(tokenizer.encode_batch([text])[0])
                if found not in lengths:
                    wrong.append(found)

        threads = [threading.Thread(target=encode) for _ in range(3)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            tokenizer.enable_truncation(3)
            tokenizer.enable_truncation(5)
            tokenizer.no_truncation()
        self.assertEqual(wrong, [])

    def test_number_of_threads_changes_nothing(self):
        tokenizer = Tokenizer.from_file(FILE)
        texts = common.texts(common.source("threads"), 300, 40)
        expected = [tokenizer.encode(text).ids for text in texts]
        for threads in (None, 1, 2, 7):
            found = [e.ids for e in tokenizer.encode_batch(texts, threads=threads)]
            self.assertEqual(found, expected)
            ids, _ = tokenizer.encode_batch_ids(texts, threads=threads)
            self.assertEqual(ids.tolist(), sum(expected, []))


class Files(unittest.TestCase):
    def test_compiled(self):
        plain = Tokenizer.from_file(str(FILE))
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(2):
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    cached = Tokenizer.from_file_cached(FILE, folder)
                self.assertEqual(len(list(Path(folder).iterdir())), 1)
                self.assertEqual(cached.encode("my card").ids, plain.encode("my card").ids)
                self.assertEqual(cached.add_tokens(["<x>"]), 1)
                again = pickle.loads(pickle.dumps(cached))
                self.assertEqual(again.token_to_id("<x>"), plain.get_vocab_size())
            file = Path(folder) / "a file"
            file.write_text("")
            with self.assertWarnsRegex(RuntimeWarning, "could not be stored in .*a file"):
                Tokenizer.from_file_cached(FILE, file)

    def test_saved(self):
        tokenizer = Tokenizer.from_file(FILE)
        tokenizer.add_special_tokens(["<x>"])
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "tokenizer.json"
            tokenizer.save(file)
            again = Tokenizer.from_file(file)
            with self.assertRaises(FileNotFoundError):
                tokenizer.save(Path(folder) / "no" / "folder")
        self.assertEqual(again.encode("a <x>").ids, tokenizer.encode("a <x>").ids)
        self.assertEqual(again.to_str(), tokenizer.to_str())

    def test_ranks(self):
        tokenizer = Tokenizer.from_tiktoken(DATA / "small.tiktoken", "gpt2")
        ids = tokenizer.encode_ids("Where is my card?<|endoftext|>").tolist()
        self.assertEqual(ids[-1], tokenizer.token_to_id("<|endoftext|>"))
        self.assertEqual(tokenizer.decode(ids), "Where is my card?")
        again = pickle.loads(pickle.dumps(tokenizer))
        self.assertEqual(again.encode_ids("Where is my card?").tolist(), ids[:-1])
        tekken = Tokenizer.from_tekken(DATA / "tekken.json")
        self.assertEqual(tekken.decode(tekken.encode_ids("Where is my card?")), "Where is my card?")

    def test_warnings(self):
        tokenizer = Tokenizer.from_file(FILE)
        self.assertEqual((tokenizer.warnings, tokenizer.is_exact), ([], True))


class Stubs(unittest.TestCase):
    def test_stubs_describe_the_module(self):
        stub = Path(inspect.getfile(fasttoken)).with_name("__init__.pyi")
        tree = ast.parse(stub.read_text(encoding="utf-8"))
        kinds = (ast.ClassDef, ast.FunctionDef)
        names = {node.name for node in tree.body if isinstance(node, kinds) and node.name[0] != "_"}
        self.assertEqual(names, set(fasttoken.__all__) - {"__version__"})
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name in ("AddedToken", "Encoding", "Tokenizer"):
                self.compare_class(node, getattr(fasttoken, node.name))

    def compare_class(self, stub, found):
        self.compare_doc(stub, found)
        methods = {}
        for method in stub.body:
            if isinstance(method, ast.FunctionDef):
                methods.setdefault(method.name, method)
        own = {name for name in vars(found) if not name.startswith("_")}
        self.assertEqual({name for name in methods if not name.startswith("_")}, own)
        for name, method in methods.items():
            if name.startswith("_"):
                continue
            with self.subTest(name=f"{stub.name}.{name}"):
                decorators = {ast.unparse(d) for d in method.decorator_list}
                self.compare_doc(method, getattr(found, name))
                if "property" in decorators:
                    self.assertTrue(inspect.isgetsetdescriptor(vars(found)[name]))
                    continue
                runtime = inspect.signature(getattr(found, name))
                shown = [p for p in runtime.parameters.values() if p.name != "self"]
                a = method.args
                stated = [x.arg for x in a.posonlyargs + a.args + a.kwonlyargs if x.arg != "self"]
                self.assertEqual(stated, [p.name for p in shown])
                defaults = [ast.literal_eval(d) for d in a.defaults + a.kw_defaults if d is not None]
                known = [p.default for p in shown if p.default is not p.empty]
                self.assertEqual(defaults, known)

    def compare_doc(self, stub, found):
        self.assertEqual(ast.get_docstring(stub), inspect.getdoc(found), stub.name)


if __name__ == "__main__":
    unittest.main()
