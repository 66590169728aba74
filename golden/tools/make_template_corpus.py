#!/usr/bin/env python3
"""Write renderings of templates as Jinja2 makes them where transformers sets it up.

  make_template_corpus.py --templates template_corpus.txt --out ../../prelude-text/tests/data/templates.json

The input has templates in the manner of published ones, each under a line
`=== NAME`, and single constructs, one a line, under `=== constructs`.  Every
template is rendered with every conversation below, and every construct with
the variables below.  Stored: the text, or null where Jinja2 fails.  Needs
jinja2 alone.
"""
import argparse
import json
import re

import jinja2
from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    """`{% generation %}`, which marks what the assistant said."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_said"), [], [], body).set_lineno(line)

    def _said(self, caller):
        return caller()


def environment():
    """The environment of transformers' chat templates, its settings by meaning."""
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"])

    def raise_exception(message):
        raise TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent,
                          separators=separators, sort_keys=sort_keys)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "The weather of a city, \"now\" & <later>.",
        "parameters": {"type": "object", "properties": {
            "city": {"type": "string", "description": "A city"},
            "unit": {"type": "string", "enum": ["°C", "°F"]},
            "days": {"type": ["integer", "null"], "default": 1}},
            "required": ["city"]}}},
    {"type": "function", "function": {
        "name": "noop", "parameters": {"type": "object", "properties": {}}}},
]


def call(name, arguments, id="call_12345"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def said(role, content, **more):
    return {"role": role, "content": content, **more}


CASES = [
    {"name": "one", "messages": [said("user", "Hi")], "add_generation_prompt": True},
    {"name": "system", "messages": [
        said("system", " Be kind.\n"), said("user", "  Where is my card?\n"),
        said("assistant", "On its way."), said("user", "When? It's 'late' \"now\" é")],
        "add_generation_prompt": True},
    {"name": "whole", "messages": [said("user", "1 + 1?"), said("assistant", "2\n")],
     "add_generation_prompt": False},
    {"name": "thought", "messages": [
        said("user", "a"), said("assistant", "<think>\nhm\n</think>\n\nb"), said("user", "c"),
        said("assistant", "d", reasoning_content="why\n")],
        "add_generation_prompt": False, "enable_thinking": False},
    {"name": "tools", "messages": [
        said("system", "Use tools."), said("user", "Weather in Rome?"),
        said("assistant", "", tool_calls=[
            call("get_weather", {"city": "Rome \"R\"", "days": 2, "wind": {"on": True, "x": [1.0, None]}})]),
        said("tool", "{\"t\": 21}", tool_call_id="call_12345", name="get_weather"),
        said("assistant", "21 degrees."), said("user", "Thanks")],
        "tools": TOOLS, "add_generation_prompt": True, "enable_thinking": True},
    {"name": "calls", "messages": [
        said("user", "Both"),
        said("assistant", "Wait.", tool_calls=[
            call("get_weather", {"city": "Bonn"}, "call_a1234"), call("noop", {}, "call_b1234")]),
        said("tool", "sun", tool_call_id="call_a1234"), said("tool", "", tool_call_id="call_b1234")],
        "tools": TOOLS, "add_generation_prompt": True},
    {"name": "documents", "messages": [said("user", "Who?")],
     "documents": [{"title": "T 1", "text": "One.\nTwo."}, {"title": "T2", "text": "É"}],
     "add_generation_prompt": True},
    {"name": "parts", "messages": [
        said("user", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])],
        "add_generation_prompt": True},
]

VARIABLES = {
    "s": "Hello, World", "u": "é ü\t'q' \"d\"\n", "blank": "  x \n", "empty": "", "digits": "42",
    "lines": "a\nb\r\nc\n\nd", "path": "a.b.c", "no": None, "yes": True, "n": 7, "f": 2.5,
    "whole": 3.0, "neg": -7, "l": [3, 1, 2], "words": ["b", "A", "c"], "none": [],
    "d": {"b": 1, "a": [True, None, 1.5], "C": {"x": "y"}},
    "people": [{"name": "Ann", "age": 30, "at": {"x": 1}}, {"name": "Bob", "age": 5, "at": {"x": 2}}],
    "call": {"name": "f", "arguments": {"city": "Rome", "n": 1}},
}

TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def rendered(env, source, variables):
    try:
        return env.from_string(source).render(**variables)
    except Exception:
        return None


def main():
    ap = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--templates", required=True)
    ap.add_argument("--out", required=True)
    a = ap.parse_args()
    env = environment()
    sections = open(a.templates, encoding="utf-8").read().split("=== ")[1:]
    templates, constructs = [], []
    for section in sections:
        name, source = section.split("\n", 1)
        if name == "constructs":
            # Expressions one after the other are constructs of their own.
            lines = [one for line in source.split("\n") if line for one in
                     ([line] if "{%" in line or "raw" in line else
                      re.split(r"(?<=\}\})\|?(?=\{\{)", line))]
            constructs = [{"source": line, "rendered": rendered(env, line, {**VARIABLES, **TOKENS})}
                          for line in lines]
            continue
        source = source.rstrip("\n")
        texts = []
        for case in CASES:
            variables = {"tools": None, "documents": None,
                         **{k: v for k, v in case.items() if k != "name"}, **TOKENS}
            texts.append(rendered(env, source, variables))
        templates.append({"name": name, "source": source, "rendered": texts})
    out = {"made_with": f"jinja2 {jinja2.__version__}", "tokens": TOKENS, "cases": CASES,
           "variables": VARIABLES, "constructs": constructs, "templates": templates}
    with open(a.out, "w", encoding="utf-8") as f:
        json.dump(out, f, indent=1, ensure_ascii=False)
        f.write("\n")
    failed = sum(t is None for one in templates for t in one["rendered"])
    total = sum(len(one["rendered"]) for one in templates)
    print(f"{len(templates)} templates, {total} renderings, {failed} refused; "
          f"{len(constructs)} constructs, {sum(c['rendered'] is None for c in constructs)} refused")


if __name__ == "__main__":
    main()
