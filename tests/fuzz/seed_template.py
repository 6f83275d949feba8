# SPDX-License-Identifier: MIT
"""seed_template.py FOLDER: seeds of fuzz_template: the family templates with a conversation, and
some of the oracle's expressions."""
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "oracle"))
import jinja_families  # noqa: E402

EXTRA = ["{{ l|sort|join(',') }}{{ d|dictsort }}{{ '%5.2f %s' % (f, s) }}{{ '{} {a}'.format(1, a=s) }}",
         "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}{{ f() }}",
         "{{ s[::-1] }}{{ u|title }}{{ u.upper() }}{{ l[1:] + [1] }}{{ 7 // 2 ** 3 % 5 }}{{ u|tojson(indent=2) }}",
         "{% set x | trim %} a {% endset %}{% for a, b in d.items() if a != 'q' %}{{ loop.cycle(1, 2) }}{% else %}n{% endfor %}",
         "{%- raw -%} {{ }} {%- endraw -%} {#- c -#} {{ '\\u00e9\\x41\\101\\n' ~ 1.5e3 }}",
         "{{ x|map(attribute='v.y', default='-')|list }}{{ x|selectattr('k', 'gt', 1)|list|tojson }}{{ s|replace('l', 'L', 1)|indent(2, true) }}",
         "{{ 'a,b'.split(',') }}{{ s.partition(' ') }}{{ s.rsplit(None, 1) }}{{ lines.splitlines(true) }}{{ s.center(30, '*') }}{{ s.zfill(30) }}",
         "{{ '[1, {\"a\": 2.5}]'|from_json }}{{ strftime_now('%d %B %Y %j') }}{% with a = 1 %}{{ a }}{% endwith %}{% filter upper %}a{% endfilter %}"]
VARS = {"i": 7, "f": 2.5, "s": "Hello World", "u": "Gr\u00fc\u00dfe \u4e16\u754c", "l": [3, 1, 2], "d": {"b": 1, "a": "x"},
        "x": [{"k": 1, "v": {"y": "q"}}, {"k": 2}], "lines": "one\n\ntwo\r\nthree", "bos_token": "<s>", "eos_token": "</s>",
        "add_generation_prompt": True,
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " hi \u4e16 "},
                     {"role": "assistant", "content": "<think>\nx\n</think>\n\nyes"}, {"role": "user", "content": "more"}]}


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    head = json.dumps(VARS, ensure_ascii=False).encode() + b"\0"
    seeds = {"family_" + k.replace(".", "_"): v for k, v in jinja_families.FAMILIES.items()}
    seeds.update(("extra_%d" % i, t) for i, t in enumerate(EXTRA))
    for name, text in seeds.items():
        (folder / name).write_bytes(head + text.encode())
    (folder / "json_only").write_bytes(b'{"a": [1, -2.5e3, "\\u00e9\\ud83c\\udf89", null, true, {}]}\0{{ a }}')


main()
