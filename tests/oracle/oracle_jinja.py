#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""oracle_jinja.py DRIVER: the template interpreter against Python's jinja2, set up as chat
templates expect it (sandbox, trim_blocks, lstrip_blocks, loop controls, tojson without escapes).

1. Templates of public model families (jinja_families.py) over many conversations.
2. Whitespace: every combination of signs around tags.
3. Thousands of small expressions, drawn by a fixed seed from a grammar.

Where jinja2 renders, the bytes must be equal, or the driver must refuse with KVS_E_UNSUPPORTED (a
refusal is counted; for families none is allowed). Where jinja2 fails, the driver must fail too."""
import collections
import datetime
import itertools
import json
import random
import subprocess
import sys

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

import jinja_families

NOW = 1751968800 + 3723  # a Tuesday in July
UNSUPPORTED = -4
LIMIT = -9


class Generation(jinja2.ext.Extension):
    """{% generation %}: a scope, nothing more."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    def _same(self, caller):
        return caller()


class Raised(Exception):
    pass


def raise_exception(message):
    raise Raised(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def strftime_now(form):
    return datetime.datetime.utcfromtimestamp(NOW).strftime(form)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.filters["from_json"] = json.loads
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


class Driver:
    def __init__(self, path):
        self.p = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def render(self, template, variables):
        """(status, text or message)"""
        line = json.dumps({"t": template, "v": json.dumps(variables, ensure_ascii=False),
                           "now": NOW})
        self.p.stdin.write(line.encode() + b"\n")
        self.p.stdin.flush()
        head = self.p.stdout.readline().split()
        if not head:
            raise SystemExit("the driver ended on: %r %r" % (template, variables))
        body = self.p.stdout.read(int(head[-1]) + 1)[:-1].decode()
        return (0 if head[0] == b"O" else int(head[1])), body


class Check:
    def __init__(self, driver):
        self.env = environment()
        self.driver = driver
        self.counts = collections.Counter()
        self.failures = []

    def same(self, what, template, variables, may_refuse):
        try:
            want = self.env.from_string(template).render(**variables)
        except RecursionError:
            return
        except Exception as e:  # pylint: disable=broad-except
            want = e
        status, text = self.driver.render(template, variables)
        self.counts[what] += 1
        if status == UNSUPPORTED and may_refuse:
            self.counts[what + ": refused"] += 1
            return
        if isinstance(want, Exception):
            self.counts[what + ": both fail"] += 1
            good = status != 0
            if isinstance(want, Raised):
                good = good and str(want)[:100] in text
        else:
            good = status == 0 and text == want
        if not good:
            self.failures.append((what, template, variables, want, status, text))


# ---- conversations

def conversations():
    user = {"role": "user", "content": "Hello there"}
    bot = {"role": "assistant", "content": "Hi! How can I help?"}
    more = {"role": "user", "content": "  What is 2+2?\n"}
    system = {"role": "system", "content": "Be brief. /no_think "}
    think = {"role": "assistant", "content": "<think>\nlet me see\n</think>\n\nIt is 4."}
    tools = [{"type": "function", "function": {
        "name": "get_weather", "description": "the weather of a \"place\" & <time>",
        "parameters": {"type": "object", "properties": {
            "place": {"type": "string", "description": "where\nit is"},
            "days": {"type": "integer"}, "units": {"type": ["string", "null"]},
            "tags": {"type": "array", "items": {"type": "string"}}},
            "required": ["place"]}, "return": {"type": "number"}}},
             {"type": "function", "function": {
                 "name": "now", "description": "Zeit überall 时间",
                 "parameters": {"type": "object", "properties": {}}}}]
    call = {"role": "assistant", "content": None, "tool_calls": [
        {"id": "abcdefghi", "type": "function", "function": {
            "name": "get_weather", "arguments": {"place": "Zürich \"Süd\"", "days": 2, "x": 1.5,
                                                 "ok": True, "no": None}}}]}
    call_text = {"role": "assistant", "content": "One moment.", "tool_calls": call["tool_calls"]}
    call_two = {"role": "assistant", "content": "", "tool_calls": call["tool_calls"] * 2}
    result = {"role": "tool", "content": "{\"t\": 21}", "name": "get_weather",
              "tool_call_id": "abcdefghi"}
    result_map = {"role": "tool", "content": {"t": [1, 2.0, 1e22, -0.0, 1e-7]}}
    parts = {"role": "user", "content": [{"type": "text", "text": " look "}, {"type": "image"},
                                         {"type": "text", "text": "at this"}]}
    unicode = {"role": "user", "content": "héllo 世界 🎉 \u00a0ß İ ǆ ﬁ\u2028end"}
    empty = {"role": "user", "content": ""}
    none = {"role": "user", "content": None}
    tricky = {"role": "user", "content": "<|im_end|>{{ 1 }}{% raw %}<tool_response>\r\n\t'\"\\"}
    lists = [[user], [system, user], [user, bot, more], [system, user, bot, more, bot],
             [user, think, more], [user, think], [system, user, think, more, think, user], [unicode],
             [system, unicode, bot, unicode], [empty], [none], [parts], [system, parts, bot, user],
             [tricky], [system, tricky, bot, tricky], [user, call, result, bot, more],
             [user, call_text, result, result, bot], [user, call_two, result_map, bot],
             [system], [user, user], [bot], [user, bot], [], [user, {"role": "assistant"}],
             [{"role": "user", "content": "x" * 3000}], [user, bot] * 6 + [more]]
    for messages in lists:
        for with_tools in (None, tools):
            for prompt in (True, False):
                v = {"messages": messages, "add_generation_prompt": prompt, "bos_token": "<s>",
                     "eos_token": "</s>"}
                if with_tools:
                    v["tools"] = with_tools
                yield v
    v = {"messages": [user, think, more], "add_generation_prompt": True, "bos_token": "<s>",
         "eos_token": "</s>"}
    yield dict(v, enable_thinking=False)
    yield dict(v, enable_thinking=True)
    yield dict(v, date_string="1 Jan 2020", tools=tools, tools_in_user_message=False)
    yield dict(v, documents=[{"doc_id": 7, "text": "Dokument"}], controls={"length": "long"})
    yield dict(v, tools=tools, documents=[{"doc_id": "a", "text": ""}])
    yield {"messages": [user]}


def families(check):
    for name, template in jinja_families.FAMILIES.items():
        for variables in conversations():
            check.same("family " + name, template, variables, False)


# ---- whitespace

def whitespace(check):
    signs = ("", "-", "+")
    for a, b in itertools.product(signs, signs):
        b_var = "" if b == "+" else b
        tags = ["{%%%s if x %s%%}" % (a, b), "{{%s x %s}}" % (a, b_var), "{#%s x %s#}" % (a, b),
                "{%%%s set y = 1 %s%%}" % (a, b), "{%%%s raw %s%%} {{ x }} \n {%%%s endraw %s%%}"
                % (a, b_var, a, b)]
        for tag in tags:
            end = "{%- endif %}" if " if " in tag else ""
            for left in ("", "a", "a ", " ", "a\n", "a\n  ", "\n\n \t", "  \n a \u00a0", "\r\n "):
                for right in ("", "b", " b", "\n", "\n\n", "\n  b", " \n b", "\r\nb"):
                    check.same("whitespace", left + tag + right + end, {"x": "v"}, False)
    for tail in ("", "\n", "\n\n", " \n", "\r\n", "\r", "{# c #}\n", "{{ x }}\n\n"):
        check.same("whitespace", "text" + tail, {"x": 1}, False)


# ---- expressions

class Grammar:
    """Draws expressions over VARIABLES; most of them make sense."""
    VARIABLES = {
        "i": 7, "j": -3, "z": 0, "f": 2.5, "g": -0.125, "t": True, "n": None, "s": "Hello World",
        "e": "", "u": "Grüße 世界 ß", "w": "  pad\t\n", "l": [3, 1, 2], "m": ["b", "A", "c", "a"],
        "d": {"b": 1, "a": "x", "C": [1, 2]}, "x": [{"k": 1, "v": {"y": "q"}}, {"k": 2}, {"k": None}],
        "nest": [[1, "two"], [3.0, None]], "lines": "one\n\ntwo\r\nthree", "num": "42", "real": "3.5"}

    def __init__(self, seed):
        self.r = random.Random(seed)

    def pick(self, *options):
        return self.r.choice(options)

    def number(self, depth):
        p = self.pick
        if depth <= 0:
            return p("i", "j", "z", "f", "g", "t", "1", "2", "10", "0", "3.0", "1e3", "0x1f", "1_000")
        k = self.r.randrange(12)
        n = lambda: self.number(depth - 1)
        if k < 4:
            return "(%s %s %s)" % (n(), p("+", "-", "*", "/", "//", "%"), n())
        if k == 4:
            return "-" + n()
        if k == 5:
            return "(%s ** %s)" % (n(), p("2", "3", "0", "-1", "0.5"))
        if k == 6:
            return "%s|length" % self.anything(depth - 1)
        if k == 7:
            return "(%s)|%s" % (n(), p("abs", "int", "float", "round", "round(2)", "round(1, 'floor')",
                                      "round(1, 'ceil')", "int(5)"))
        if k == 8:
            return "(%s)|%s" % (self.sequence(depth - 1), p("sum", "min", "max", "first", "last"))
        if k == 9:
            return "(%s).%s" % (self.text(depth - 1), p("find('o')", "count('l')", "rfind('l')",
                                                        "find('e', 2)", "count('')", "index('l')"))
        if k == 10:
            return "%s %s %s %s" % (n(), p("-", "+", "*"), n(), p("", "* 2", "// 2", "% 4", "- 1"))
        return "(%s)|int(default=%s)" % (self.text(depth - 1), p("0", "-1"))

    def text(self, depth):
        p = self.pick
        if depth <= 0:
            return p("s", "e", "u", "w", "lines", "num", "real", "'a'", '"it\'s"', "'l'", "'o W'",
                     "'\\n\\t\\x41\\u00e9\\\\'", "'<b>&'", "'x' 'y'", "'a-b c_d 9z'", "'ǅǆ İıſ ﬁ Σας ΑΣ'")
        t = lambda: self.text(depth - 1)
        k = self.r.randrange(14)
        if k == 0:
            return "(%s + %s)" % (t(), t())
        if k == 1:
            return "(%s ~ %s)" % (self.anything(depth - 1), t())
        if k in (2, 3):
            return "(%s)|%s" % (t(), p(
                "trim", "upper", "lower", "title", "capitalize", "string", "replace('l', 'L')",
                "replace('', '-')", "replace('l', '', 1)", "indent", "indent(2, true)",
                "indent(3, blank=true)", "indent('> ')", "trim('Hd')", "reverse", "safe", "first",
                "last", "default('q')", "default('q', true)", "tojson", "wordcount", "tojson(indent=1)"))
        if k in (4, 5):
            return "(%s).%s" % (t(), p(
                "strip()", "lstrip()", "rstrip()", "strip('Hd ')", "lstrip('He')", "rstrip('ld\\n')",
                "upper()", "lower()", "title()", "capitalize()", "replace('o', '0')",
                "replace('o', '0', 1)", "zfill(8)", "ljust(9, '.')", "rjust(9)", "center(12, '*')",
                "removeprefix('He')", "removesuffix('ld')", "split()[0]", "split('l')[-1]",
                "partition(' ')[2]", "rpartition('l')[0]"))
        if k in (6, 7):
            a = p("", "0", "1", "-1", "-2", "3", "100", "-100", "i", "j")
            b = p("", "2", "-1", "5", "-3", "100", "z")
            c = p("", "", "", ":", ":1", ":2", ":-1", ":-2", ":3")
            return "(%s)[%s:%s%s]" % (t(), a, b, c)
        if k == 8:
            return "(%s)[%s]" % (t(), p("0", "1", "-1", "50"))
        if k == 9:
            return "(%s)|join(%s)" % (self.sequence(depth - 1), p("", "', '", "1", "s"))
        if k == 10:
            return "%s * %s" % (t(), p("2", "0", "-1", "3"))
        if k == 11:
            return "%s|format(%s, %s)" % (p("'%s-%s'", "'%r %s'", "'%5s|%-5s|'", "'%s %.2s'"),
                                          self.anything(depth - 1), t())
        if k == 12:
            return p("'%%d %%5.2f%%%%' %% (%s, %s)" % (self.number(0), self.number(0)),
                     "'%%03d' %% %s" % self.number(0), "'%%x' %% i", "'%%-6s|' %% %s" % t(),
                     "'{} {}'.format(%s, %s)" % (t(), self.number(0)), "'{0}{x}{{}}'.format(i, x=s)",
                     "'%%e %%g' %% (%s, %s)" % (self.number(0), self.number(0)))
        return "(%s if %s else %s)" % (t(), self.boolean(depth - 1), t())

    def sequence(self, depth):
        p = self.pick
        if depth <= 0:
            return p("l", "m", "x", "nest", "[1, 2, 3]", "[]", "(1, 'a')", "(5,)", "range(4)",
                     "range(5, 0, -2)", "d", "d.items()", "d.keys()", "d.values()", "s", "'abc'")
        q = lambda: self.sequence(depth - 1)
        k = self.r.randrange(10)
        if k in (0, 1):
            a, b = p("", "1", "-1", "-2", "9"), p("", "2", "-1", "0", "9")
            return "(%s)[%s:%s%s]" % (q(), a, b, p("", "", ":-1", ":2"))
        if k == 2:
            return "(%s)|%s" % (q(), p("list", "reverse|list", "sort", "sort(reverse=true)", "unique|list",
                                      "sort(case_sensitive=true)", "map('string')|list", "select|list",
                                      "reject('none')|list", "map('upper')|list", "select('string')|list"))
        if k == 3:
            return "x|%s" % p("map(attribute='k')|list", "selectattr('v')|list", "selectattr('k')|list",
                              "selectattr('k', 'equalto', 2)|list", "rejectattr('k', 'none')|list",
                              "rejectattr('v', 'defined')|list", "map(attribute='v.y')|list",
                              "selectattr('v', 'defined')|map(attribute='v.y', default='-')|list",
                              "map(attribute='z', default=0)|list", "map(attribute='v.y')|join(',')",
                              "selectattr('k', 'gt', 1)|list", "selectattr('k', 'in', [1, 5])|list")
        if k == 4:
            return "(%s + %s)" % (p("l", "m", "[1]"), p("l", "m", "['z']", "nest"))
        if k == 5:
            return "(%s).%s" % (self.text(depth - 1), p("split()", "split('l')", "split('o', 1)",
                                                        "rsplit('l', 1)", "splitlines()", "split(' ', 0)",
                                                        "rsplit(None, 1)", "partition('o')", "split(None, 1)"))
        if k == 6:
            return "d|%s" % p("dictsort", "items|list", "dictsort(true)", "dictsort(reverse=true)", "list",
                              "dictsort(case_sensitive=true)")
        if k == 7:
            return "[%s, %s]" % (self.anything(depth - 1), self.anything(depth - 1))
        if k == 8:
            return "{'a': %s, %s: 2}" % (self.anything(depth - 1), p("1", "'b'", "none", "(1, 2)", "1.5"))
        return "(%s * 2)" % p("l", "[0]", "(1, 2)")

    def boolean(self, depth):
        p = self.pick
        a = lambda: self.anything(depth - 1)
        k = self.r.randrange(8)
        if depth <= 0:
            return p("t", "true", "False", "n is none", "qq is defined", "s", "i")
        if k == 0:
            return "(%s %s %s)" % (self.number(depth - 1), p("<", ">", "<=", ">=", "==", "!="),
                                   self.number(depth - 1))
        if k == 1:
            return "(%s %s %s)" % (a(), p("==", "!="), a())
        if k == 2:
            return "(%s %s %s)" % (self.pick(self.text(depth - 1), self.number(depth - 1)),
                                   p("in", "not in"), self.pick(self.text(0), self.sequence(depth - 1)))
        if k == 3:
            return "(%s %s %s)" % (self.boolean(depth - 1), p("and", "or"), self.boolean(depth - 1))
        if k == 4:
            return "(not %s)" % self.boolean(depth - 1)
        if k == 5:
            return "(%s is %s%s)" % (a(), p("", "not "), p(
                "defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number",
                "integer", "float", "boolean", "true", "false", "equalto 7", "eq('a')", "in [1, 7, 'a']",
                "sameas none", "callable"))
        if k == 6:
            return "(%s is %s)" % (self.number(depth - 1), p("odd", "even", "divisibleby 3", "gt 2", "ge 2",
                                                             "lessthan(4)", "le 0", "ne 1"))
        return "(%s).%s" % (self.text(depth - 1), p("startswith('He')", "endswith(('d', 'e'))", "isdigit()",
                                                    "isupper()", "islower()", "isspace()", "startswith('')"))

    def anything(self, depth):
        k = self.r.randrange(20)
        if k < 5:
            return self.number(depth)
        if k < 11:
            return self.text(depth)
        if k < 15:
            return self.sequence(depth)
        if k < 18:
            return self.boolean(depth)
        return self.pick("d.a", "d['b']", "d.get('zz')", "d.get('zz', 5)", "d.nothing", "qq", "x[0].v.y",
                         "x[1].v", "nest[0][1]", "n", "d.C[-1]", "l.0", "none", "x[0]['v']['none']",
                         "namespace(a=1).a", "dict(p=1, q=s)", "(i, s)", "l|first", "d.items", "[n, t, f]")

    def expression(self):
        e = self.anything(self.r.randrange(1, 4))
        form = self.r.randrange(10)
        if form < 6:
            return "{{ %s }}" % e
        if form == 6:
            return "{{ (%s)|tojson }}" % e
        if form == 7:
            return "{%% for q in %s %%}<{{ loop.index }}{{ q }}{{ ',' if not loop.last }}{%% else %%}-{%% endfor %%}" % self.sequence(2)
        if form == 8:
            return "{%% if %s %%}yes{%% elif %s %%}maybe{%% else %%}no{%% endif %%}" % (self.boolean(2), e)
        return "{%% set v = %s %%}{{ v }}|{{ v is string }}|{{ [v] }}" % e


HAND = [
    "{% set x = 1 %}{% for i in l %}{% set x = i %}{{ x }}{% endfor %}{{ x }}",
    "{% set ns = namespace(c=0) %}{% for i in l %}{% set ns.c = ns.c + i %}{% endfor %}{{ ns.c }}",
    "{% macro a(x, y=2, z='q') %}({{ x }}{{ y }}{{ z }}{{ i }}){% endmacro %}{{ a(1) }}{{ a(1, z=3) }}{{ a() }}",
    "{% macro a() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ a(1, 2, b=3) }}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
    "{% macro a() %}{{ later }}{% endmacro %}{% set later = 3 %}{{ a() }}",
    "{% macro a(x) %}{% set x = x ~ 1 %}{{ x }}{% endmacro %}{{ a('p') }}{{ x is defined }}",
    "{{ a(1) }}{% macro a(x) %}{% endmacro %}", "{% macro a(x) %}{% endmacro %}{{ a(1, 2) }}",
    "{% macro a(x) %}{% endmacro %}{{ a(y=2) }}", "{% macro a(x) %}{% endmacro %}{{ a(1, x=2) }}",
    "{% for a, b in nest %}{{ a }}={{ b }};{% endfor %}", "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in l %}{% endfor %}", "{% for k in d %}{{ k }}{% endfor %}", "{% for c in u %}{{ c }}.{% endfor %}",
    "{% for i in n %}{% endfor %}", "{% for i in 5 %}{% endfor %}", "{% for i in qq %}x{% else %}none{% endfor %}",
    "{% for i in l if i > 1 %}{{ loop.index }}/{{ loop.length }}:{{ i }} {% else %}e{% endfor %}",
    "{% for i in l %}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }}{{ loop.cycle('a', 'b') }}{{ loop.changed(i // 2) }}{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}",
    "{% for i in l %}{% for j in m %}{{ loop.index }}{{ i }}{{ j }}{% if j == 'A' %}{% break %}{% endif %}{% endfor %}{% if i == 3 %}{% continue %}{% endif %}.{% endfor %}",
    "{% for i in l %}{% else %}never{% endfor %}{{ loop is defined }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a, b = l %}", "{% set a = 1, 2 %}{{ a }}",
    "{% set x %}  text {{ i }}\n{% endset %}[{{ x }}]", "{% set x | trim | upper %} a {% endset %}[{{ x }}]",
    "{% set x %}{% set y = 1 %}{% endset %}{{ y is defined }}", "{% with a = 1, b = i %}{{ a }}{{ b }}{% set c = 2 %}{% endwith %}{{ a is defined }}{{ c is defined }}",
    "{% with a = 1 %}{% with a = 2, b = a %}{{ b }}{% endwith %}{% endwith %}",
    "{% filter replace('a', 'b') | upper %}aXa{% endfilter %}", "{% if 1 %}{% set q = 1 %}{% endif %}{{ q }}",
    "{% for i in l %}{% if loop.first %}{% set v = i %}{% endif %}{{ v }};{% endfor %}",
    "{{ 1 if false }}|{{ (1 if false) is defined }}", "{{ qq }}{{ qq.a }}", "{{ d.qq.a }}", "{{ qq + 1 }}",
    "{{ 1 < 2 < 3 }}{{ 1 < 3 < 2 }}{{ 1 == 1.0 == true }}", "{{ not 1 == 2 }}", "{{ -2 ** 2 }}", "{{ 2 ** 3 ** 2 }}",
    "{{ -1|abs }}", "{{ -j.x }}", "{{ 'a' ~ 1 + 2 }}", "{{ 1 + 2 ~ 'a' }}", "{{ 7 // -2 }}{{ -7 % 3 }}{{ 7.5 % -2 }}{{ -7 // 2.0 }}",
    "{{ 1/0 }}", "{{ 1 // 0 }}", "{{ 1.0 % 0 }}", "{{ 0.1 + 0.2 }}", "{{ 1e16 }}{{ 1e15 }}{{ 123456789.123 }}{{ 1e-5 }}{{ 0.0001 }}{{ 1.0 }}{{ 5e-324 }}",
    "{{ 'abc'[1] }}{{ 'abc'[-1] }}{{ 'abc'[5] }}{{ u[6] }}{{ u[-1] }}", "{{ l[true] }}", "{{ d[qq] }}", "{{ l['a'] }}", "{{ s.foo }}",
    "{{ s.upper is defined }}{{ d.items is callable }}", "{{ d.append }}", "{{ l.append(1) }}", "{{ d.update({}) }}", "{{ d.pop('a') }}",
    "{{ ''.__class__ }}", "{{ d.__class__.__mro__ }}", "{{ range(100001) }}", "{{ range(3) }}{{ range(1, 9, 3) }}{{ range(3)[1] }}",
    "{{ range(3) is iterable }}{{ range(3) is sequence }}", "{{ d.items() }}{{ d.keys() }}{{ d.values() }}", "{{ d.items()[0] }}",
    "{{ d|length }}{{ (l|map('string'))|length }}", "{{ l|map('string') is iterable }}{% set g = l|map('string') %}{{ g|list }}{{ g|list }}{{ 'y' if g else 'n' }}",
    "{{ x|selectattr('k', 'none')|first }}", "{{ x|selectattr('k', 'gt', 5)|first is defined }}", "{{ []|first }}{{ []|last }}{{ []|min }}",
    "{{ 'a\\'b' }}{{ ['a\\'b', 'a\"b', 'a\\'\"b', '\\n\\x00\\x7f\\xa0\\u2028é\\U0001f389'] }}", "{{ '\\101\\q' }}",
    "{{ {'a': 1, 'a': 2, 1: 'x', true: 'y'} }}", "{{ {[1]: 2} }}", "{{ (1,) }}{{ () }}{{ (1) }}", "{{ [1, 2,] }}{{ {'a': 1,} }}",
    "{{ true }}{{ none }}{{ True is true }}{{ 1 is true }}{{ None is none }}", "{{ 'a' in 'abc' and 'd' not in 'abc' }}", "{{ 1 in 'abc' }}",
    "{{ 'x' in n }}", "{{ 'a' in d }}{{ 'k' in x[0] }}", "{{ 'a' < 1 }}", "{{ [1, 2] < [1, 3] }}{{ 'a' < 'b' }}{{ n < 1 }}",
    "{{ x|tojson }}", "{{ d|tojson(indent=2) }}", "{{ d|tojson(indent=2, sort_keys=true) }}", "{{ d|tojson(separators=(',', ':')) }}",
    "{{ u|tojson }}{{ u|tojson(ensure_ascii=true) }}{{ '\\x01\\x7f\\u2028</script>🎉'|tojson }}{{ '🎉\\x7f'|tojson(ensure_ascii=true) }}", "{{ [1.0, 1e30, -0.0, true, none, {}, []]|tojson }}", "{{ [[], {}]|tojson(indent=2) }}",
    "{{ qq|tojson }}", "{{ (1, 2)|tojson }}", "{{ {1: 2, true: 3, none: 4, 1.5: 5}|tojson }}", "{{ range(2)|tojson }}", "{{ d.items()|tojson }}",
    "{{ '[1, {\"a\": null}]'|from_json }}", "{{ '{'|from_json }}", "{{ s|nofilter }}", "{{ s is notest }}", "{% if false %}{{ s|nofilter }}{% endif %}",
    "{{ raise_exception('No: ' ~ i) }}", "{{ strftime_now('%Y-%m-%d %H:%M:%S %j %a %A %b %B %y %I %p %e %-d %% %-m %D %F %T') }}",
    "{% raw %}{{ x }}{% if %}{% endraw %}", "{# comment {{ x }} #}a", "{{ '{{' }}{{ '}}' }}{{ '%}' }}", "{ {", "{{ {'a': {'b': 1}}.a.b }}", "{{ {'a': {}} }}",
    "{% if %}", "{% endif %}", "{% if 1 %}", "{% for %}", "{{", "{{ }}", "{{ 'a\\", "{{ 1 2 }}", "{% foo %}", "{{ 'a }}", "{{ (1 }}", "{{ 1) }}", "{# open", "{% raw %}x",
    "{% set 1 = 2 %}", "{% set d.x = 1 %}", "{% break %}", "{{ a.1b }}", "{{ 1.5.x }}", "{{ l.1 }}", "{{ l.1 }}", "{{ 'a' is string is true }}", "{{ loop }}", "{% for i in l recursive %}{% endfor %}",
    "{% block a %}{% endblock %}", "{% include 'x' %}", "{% extends 'x' %}", "{% import 'x' as y %}", "{% call x() %}{% endcall %}",
    "{{ 3 is odd }}{{ 4 is divisibleby 2 }}{{ 'a' is eq 'a' }}{{ 5 is in [5] }}{{ 5 is not in [5] }}", "{{ not none is none }}", "{{ 1 is defined and 2 }}",
    "{{ ('<' ~ s)|safe ~ '<' }}", "{{ s|safe + 'b' }}", "{{ s|safe + '<b>' }}", "{{ '%s' % qq }}", "{{ '%s %s' % (1,) }}", "{{ '%s' % (1, 2) }}", "{{ '%(a)s' % {'a': 5} }}", "{{ '%d' % 'x' }}",
    "{{ 'a,b,,c'.split(',') }}{{ ''.split(',') }}{{ ''.split() }}{{ ' a  b '.split() }}{{ ' a b c '.split(None, 1) }}{{ 'abc'.split('') }}",
    "{{ 'a,b,c'.rsplit(',', 1) }}{{ ' a b c '.rsplit(None, 1) }}{{ ' a b c '.rsplit() }}{{ lines.splitlines(true) }}", "{{ 'abc'.replace('', '-') }}{{ 'aaa'.replace('a', 'b', 2) }}{{ u.replace('', '.', 3) }}",
    "{{ 'a' * 3 }}{{ 3 * 'a' }}{{ [1] * 2 }}{{ 'a' * -1 }}{{ 'a' * 1.5 }}", "{{ [1] + (2,) }}", "{{ 'a' + 1 }}", "{{ l + n }}",
    "{{ (l|sort)[0] }}{{ m|sort|join }}{{ m|sort(case_sensitive=true)|join }}{{ x|map(attribute='k')|list|sort }}", "{{ m|unique|list }}{{ ['a', 'A', 'a']|unique|list }}",
    "{{ '1_000'|int }}{{ ' 12 '|int }}{{ '0x1f'|int(base=16) }}{{ '1e3'|int }}{{ 'x'|int(7) }}{{ none|int }}{{ 3.99|int }}{{ -3.99|int }}{{ ''|int }}{{ '-5'|int }}{{ 'inf'|int }}{{ l|int(3) }}{{ qq|int }}",
    "{{ '1.5'|float }}{{ 'x'|float }}{{ ' 1e5 '|float }}{{ '0x10'|float }}{{ 'nan'|float }}{{ '1_0.5'|float }}{{ none|float(2.5) }}",
    "{{ 2.5|round }}{{ 3.5|round }}{{ 2.675|round(2) }}{{ 7|round }}{{ 42.55|round(1, 'ceil') }}{{ -1.5|round(0, 'floor') }}{{ 7|round(1, 'ceil') }}",
    "{{ 'foo bar-baz (qux) [a] {b} <c> d_e 1f'|title }}{{ \"it's 1st o'clock\".title() }}", "{{ 9223372036854775807 + 1 }}{{ 2 ** 63 }}", "{{ 99999999999999999999 }}",
    "{{ 9007199254740993 == 9007199254740992.0 }}{{ 9007199254740993 < 9007199254740994.0 }}", "{{ (1, 2) == [1, 2] }}{{ {'a': 1} == {'a': 1.0} }}{{ [] == () }}{{ n == false }}",
    "{{ x[0] == x[0] }}{{ nest == [[1, 'two'], [3, none]] }}", "{{ d.a.b.c is defined }}", "{{ d.zz.b is defined }}", "{{ (d.zz or {}).b is defined }}", "{{ d.zz|default({}) }}",
    "{{ [1, 2, 3, 4][::-1] }}{{ [1, 2, 3][-2:] }}{{ (1, 2, 3)[1:] }}{{ range(6)[1:5:2] }}{{ 'abc'[::-1] }}{{ l['a':] }}", "{{ n[1:] }}", "{{ qq[1:] }}", "{{ l[::0] }}", "{{ d[:1] }}",
    "{{ 'abc'|list }}{{ d|list }}{{ u|list }}{{ n|list }}", "{{ l|join(', ') }}{{ [1, none, 'a', qq]|join('-') }}{{ x|join(',', attribute='k') }}", "{{ ','.join(m) }}{{ ','.join(l) }}",
    "{{ [3, 1]|max }}{{ m|max }}{{ x|map(attribute='k')|select|max }}{{ [1, 'a']|max }}", "{{ l|sum }}{{ x|sum(attribute='k') }}{{ l|sum(start=10) }}",
    "{{ s|first }}{{ s|last }}{{ d|first }}{{ d.items()|first }}{{ (l|map('string'))|first }}{{ (l|map('string'))|last }}", "{{ namespace() }}", "{{ namespace(a=1).b is defined }}", "{{ dict(a=1, b=2) }}{{ dict({'x': 1}, y=2) }}",
    "{% set ns = namespace(a=1) %}{% set ns.b = ns.a %}{{ ns.b }}{{ ns['a'] }}{{ ns is mapping }}", "{{ s|upper|lower|title|length }}", "{{ (s|upper)(1) }}", "{{ i() }}", "{{ s.startswith() }}", "{{ s.split(1) }}",
    "{{ 'a' if i == 7 else 'b' if i == 8 else 'c' }}", "{{ [i for i in l] }}", "{{ lambda: 1 }}", "{{ l|batch(2)|list }}", "{{ s|truncate(5) }}", "{{ s|escape }}", "{{ i if }}",
    "{{ i\n+\n1 }}{% set y = [\n1,\n2] %}{{ y }}", "{{ l|map('nofilter')|list }}", "{{ l|select('notest')|list }}", "{{ n|map('string')|list }}{{ qq|selectattr('a')|list }}",
    "{% generation %}a{{ i }}{% endgeneration %}b", "{{ 1 }}\n{% if true %}\n  x\n{% endif %}\n  {# c #}\n y", "{{ -0.0 }}{{ 0 * -1 }}{{ -z }}{{ +t }}{{ -t }}", "{{ t + t }}{{ t * 2.0 }}",
]


def expressions(check, count):
    for template in HAND:
        check.same("by hand", template, Grammar.VARIABLES, True)
    grammar = Grammar(20)
    for _ in range(count):
        check.same("generated", grammar.expression(), Grammar.VARIABLES, True)


# ---- bombs: bounded time and memory, a clear error

BOMBS = [
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(50) }}",
    "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}",
    "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
    "{{ 'a' * 1000000000 }}", "{{ [0] * 1000000000 }}", "{{ 'x' * 100000000 * 100000000 }}",
    "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(1000) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x=[]) %}{% for i in range(90000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x|tojson }}{{ ns.x == ns.x }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x == [1] }}{{ ns.x }}",
    "{% set s = 'ab' * 1000000 %}{% for i in range(100000) %}{{ 'zz' in s }}{% endfor %}",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "{{ " + "-" * 50000 + "1 }}", "{{ " + "not " * 50000 + "1 }}",
    "{% if 1 %}" * 5000 + "{% endif %}" * 5000, "{{ 1" + " + 1" * 100000 + " }}", "{{ '%9999999999d' % 1 }}",
    "{{ 'a'|indent(1000000000) }}{{ 'a'.zfill(1000000000) }}", "{{ 9 ** 9 ** 9 ** 9 }}", "{{ range(1000000000000) }}",
    "{% set a = 'x' * 1000000 %}{{ a.replace('x', a) }}", "{% set a = 'x' * 1000000 %}{{ a|list|join(a) }}", "{{ '" + "x" * 2000000 + "' }}",
]


def bombs(check):
    import time
    for bomb in BOMBS:
        began = time.monotonic()
        status, text = check.driver.render(bomb, {})
        took = time.monotonic() - began
        check.counts["bombs"] += 1
        if status == 0 or took > 60:
            check.failures.append(("bomb", bomb[:200], {}, "an error", status, text[:200] + " %.1f s" % took))


def main():
    check = Check(Driver(sys.argv[1]))
    families(check)
    whitespace(check)
    expressions(check, 6000)
    bombs(check)
    for what in sorted(check.counts):
        print("%-40s %d" % (what, check.counts[what]))
    for what, template, variables, want, status, text in check.failures[:10]:
        shown = "" if variables is Grammar.VARIABLES else " %.600r" % (variables,)
        print("FAIL %s: %.400r%s\n  jinja2: %.600r\n  here:   %d %.600r" % (what, template, shown, want, status, text))
    refused = sum(n for k, n in check.counts.items() if k.startswith("generated: refused"))
    if refused > 600:
        print("FAIL: %d of the generated expressions were refused" % refused)
        return 1
    print("%d failures" % len(check.failures))
    return 1 if check.failures else 0


sys.exit(main())
