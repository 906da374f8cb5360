#!/usr/bin/env python3
"""Small changes to Part I of dtrain.h: what share of them do the unit tests notice?

    python3 tests/mutate_header.py [--sample 400] [--seed 1] [--tests "sums data net"] [--jobs 2] [--only 17]

A mutant differs from the header in one operator, bound, sign or constant of a function's body in Part I. All that there are are
listed, and a random sample is built into the header at once, as schemata: a < b becomes (DTM(17) ? (a <= b) : (a < b)), and the
environment chooses: DTRAIN_MUTANT=17. So each test is compiled once. A first run of each test, with no mutant, says which of
them it reaches; a mutant is then tried only on those, the quickest first, until one notices: fails, crashes, or takes ten times as
long. What survives is printed; those that tests/mutants_equivalent.txt answers (the same function in other words, or a reason) do not
count. Exit code 1 if fewer than 90 of 100 are noticed. Works in build/mutation."""
import argparse
import math
import os
import random
import re
import subprocess
import sys
import threading
import time

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OUT = os.path.join(TOP, "build", "mutation")
TESTS = "sums steps kernels contract numbers data net norm checkpoint train"
TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|0[xX][0-9a-fA-F.]+(?:[pP][+-]?\d+)?[uUlLfF]*|\d[\d.]*(?:[eE][+-]?\d+)?[uUlLfF]*|'
                   r"[A-Za-z_]\w*|->|\+\+|--|<<=|>>=|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|\.\.\.|[-+*/%&|^~!<>=?:;,.(){}\[\]]")
PREC = {"*": 10, "/": 10, "%": 10, "+": 9, "-": 9, "<<": 8, ">>": 8, "<": 7, ">": 7, "<=": 7, ">=": 7, "==": 6, "!=": 6, "&": 5, "^": 4,
        "|": 3, "&&": 2, "||": 1, "?": 0, ":": 0, "=": -1, "+=": -1, "-=": -1, "*=": -1, "/=": -1, "%=": -1, "&=": -1, "|=": -1, "^=": -1,
        "<<=": -1, ">>=": -1, ",": -2, ";": -3, "{": -3, "}": -3}
OTHERS = {"<": ["<=", ">"], "<=": ["<"], ">": [">=", "<"], ">=": [">", "<"], "==": ["!="], "!=": ["=="], "&&": ["||"], "||": ["&&"],
          "+": ["-"], "-": ["+"], "*": ["+", "/"], "/": ["*"], "%": ["/"], "<<": [">>"], ">>": ["<<"], "&": ["|"], "|": ["&"]}
TYPES = set("int unsigned char short long float double bool void size_t const struct uint8_t uint16_t uint32_t uint64_t int32_t int64_t "
            "uintptr_t dti_v".split())


def part_one(text):
    """Offset where Part I ends."""
    return text.index("/* ==== [E1]")


def tokens_of(text, end):
    """(token, offset) of the code outside of comments and preprocessor lines, of Part I."""
    blank = lambda m: re.sub(r"[^\n]", " ", m.group(0))
    code = re.sub(r"/\*.*?\*/", blank, text[:end], flags=re.S)
    code = re.sub(r"//[^\n]*", blank, code)
    code = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", blank, code, flags=re.M)
    return [(m.group(0), m.start()) for m in TOKEN.finditer(code)]


def bodies(tokens):
    """Index ranges of function bodies: a { behind ) at file level, to its }."""
    depth, begin, last = 0, None, ""
    for i, (t, _) in enumerate(tokens):
        if t == "{" and last.startswith('"'):
            pass  # extern "C"
        elif t == "{":
            if depth == 0 and last == ")":
                begin = i
            depth += 1
        elif t == "}":
            depth -= 1
            if depth == 0 and begin is not None:
                yield begin, i
                begin = None
        last = t


def is_cast(tokens, close):
    """Is the ) at that index the end of a cast?"""
    i, words = close - 1, []
    while tokens[i][0] != "(":
        words.append(tokens[i][0])
        i -= 1
        if i < 0 or len(words) > 6:
            return False
    return bool(words) and all(w in TYPES or w == "*" or re.match(r"dti?_\w+$", w) for w in words) and any(w in TYPES or w.startswith("dt") for w in words) \
        and not re.match(r"[A-Za-z_]\w*$", tokens[i - 1][0]) or (bool(words) and all(w in TYPES or w == "*" for w in words))


def binary(tokens, i):
    before = tokens[i - 1][0]
    if before == ")":
        return not is_cast(tokens, i - 1)
    return bool(re.match(r"[A-Za-z_0-9\"'.]", before)) and before not in ("return", "case", "sizeof") or before in ("]",)


def left_end(tokens, i, p):
    """Index of the first token of the left operand of a binary operator at i, of that precedence."""
    depth, j = 0, i - 1
    while True:
        t = tokens[j][0]
        if t in (")", "]"):
            depth += 1
        elif t in ("(", "["):
            if depth == 0:
                return j + 1
            depth -= 1
        elif depth == 0 and (t == "return" or t in PREC and PREC[t] < p and (t in (";", "{", "}", ",", "?", ":", "=") or PREC[t] < 0 or binary(tokens, j))):
            return j + 1
        elif depth == 0 and t in ("{", "}"):
            return None
        j -= 1


def right_end(tokens, i, p):
    """Index behind the last token of the right operand."""
    depth, j = 0, i + 1
    while True:
        t = tokens[j][0]
        if t in ("(", "["):
            depth += 1
        elif t in (")", "]"):
            if depth == 0:
                return j
            depth -= 1
        elif t in ("{", "}"):
            return None
        elif depth == 0 and j > i + 1 and t in PREC and PREC[t] <= p and (PREC[t] <= 0 or binary(tokens, j)):
            return j
        j += 1


def constants(t):
    if re.fullmatch(r"\d+[uUlL]*", t):
        n = int(re.match(r"\d+", t).group(0))
        tail = t[len(str(n)):] if str(n) == re.match(r"\d+", t).group(0) else ""
        return [f"{n + 1}{tail}"] + ([f"{n - 1}{tail}"] if n > 0 else [])
    if re.fullmatch(r"\d[\d.]*f?", t) and "." in t:
        return [("1.0" if float(t.rstrip("f")) == 0 else "0.0") + ("f" if t.endswith("f") else "")]
    return []


def list_mutants(text):
    """(begin, end, original, changed) of every place."""
    end = part_one(text)
    tokens = tokens_of(text, end)
    found = []
    for begin, stop in bodies(tokens):
        for i in range(begin + 1, stop):
            t, at = tokens[i]
            if t in OTHERS and binary(tokens, i) and tokens[i + 1][0] not in (")", ",", ";"):
                a, b = left_end(tokens, i, PREC[t]), right_end(tokens, i, PREC[t])
                if a is None or b is None or a >= i or b <= i + 1:
                    continue
                left, right = tokens[a][1], tokens[b - 1][1] + len(tokens[b - 1][0])
                # a declaration's star is no product
                if t in ("*", "&") and a == i - 1 and (tokens[a][0] in TYPES or tokens[a][0].startswith("dt")) and tokens[a - 1][0] in ("{", "}", ";", "(", ",", "const"):
                    continue
                if "{" in text[left:right]:
                    continue
                for other in OTHERS[t]:
                    found.append((left, right, text[left:right], text[left:at] + other + text[at + len(t):right]))
            elif t in ("-",) and not binary(tokens, i) and re.match(r"[A-Za-z_(]", tokens[i + 1][0]) and tokens[i + 1][0] != "(":
                j = i + 2
                while tokens[j][0] in (".", "->"):
                    j += 2
                if tokens[j][0] not in ("[", "("):
                    right = tokens[j - 1][1] + len(tokens[j - 1][0])
                    found.append((at, right, text[at:right], text[at + 1:right]))
            elif t == "!" and re.match(r"[A-Za-z_]", tokens[i + 1][0]) and tokens[i + 2][0] in (")", "&&", "||", ";"):
                right = tokens[i + 1][1] + len(tokens[i + 1][0])
                found.append((at, right, text[at:right], "!!" + text[at + 1:right]))
            else:
                for other in constants(t) if tokens[i - 1][0] not in ("case", ".") else []:
                    found.append((at, at + len(t), t, other))
    return found


PRELUDE = """
#include <stdio.h>
#include <stdlib.h>
enum { DTM_MOST = 4096 };
static __attribute__((unused)) int dtm_mutant;
static __attribute__((unused)) unsigned char dtm_reached[DTM_MOST];
#define DTM(k) (dtm_reached[k] = 1, dtm_mutant == (k))
static void dtm_end(void) {
    const char *path = getenv("DTRAIN_REACHED");
    FILE *f = path ? fopen(path, "a") : NULL;
    for (int i = 0; f && i < DTM_MOST; ++i)
        if (dtm_reached[i]) fprintf(f, "%d\\n", i);
    if (f) fclose(f);
}
__attribute__((constructor)) static void dtm_begin(void) {
    const char *which = getenv("DTRAIN_MUTANT");
    dtm_mutant = which ? atoi(which) : 0;
    atexit(dtm_end);
}
"""


def write_header(text, chosen):
    """chosen: {number: mutant}. The changed header."""
    pieces, at = [], 0
    for number, (left, right, was, other) in sorted(chosen.items(), key=lambda c: c[1][0]):
        pieces.append(text[at:left])
        pieces.append(f"(DTM({number}) ? ({other}) : ({was}))")
        at = right
    return "".join(pieces) + text[at:]


def build_flags():
    return ["-std=c11", "-D_DEFAULT_SOURCE", "-ffp-contract=off", "-w", "-I.", "-O0", "-march=native", "-include", os.path.join(OUT, "prelude.h")]


def compile_header(text, chosen):
    """Takes out of `chosen` what does not compile; writes the header."""
    while True:
        body = write_header(text, chosen)
        open(os.path.join(OUT, "dtrain.h"), "w", encoding="utf-8").write(body)
        r = subprocess.run(["gcc", *build_flags(), "-DDTRAIN_IMPLEMENTATION", "-DDTRAIN_WITH_THREADS", "-DDTRAIN_WITH_CHARTS", "-fsyntax-only", "-fmax-errors=0", "-x", "c", "dtrain.h"],
                           cwd=OUT, capture_output=True, text=True)
        lines = {int(m.group(1)) for m in re.finditer(r"^dtrain\.h:(\d+):\d+: error", r.stderr, re.M)}
        if r.returncode == 0:
            return
        all_lines = body.split("\n")
        bad = set()
        for n in lines:
            for k in range(max(0, n - 3), min(len(all_lines), n + 2)):
                if k == n - 1 or not re.search(r"DTM\(", all_lines[n - 1]):
                    bad |= {int(x) for x in re.findall(r"DTM\((\d+)\)", all_lines[k])}
        if not bad:
            sys.exit("the header with mutants does not compile:\n" + r.stderr[:2000])
        for number in bad:
            chosen.pop(number, None)


UNDER = []


def run(test, number, limit, reached=None):
    env = dict(os.environ, DTRAIN_MUTANT=str(number))
    if reached:
        env["DTRAIN_REACHED"] = reached
    begin = time.time()
    r = subprocess.run([*UNDER, "timeout", "-k", "5", str(int(limit + 1)), os.path.join(OUT, "test_" + test)], cwd=TOP, env=env,
                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return r.returncode, time.time() - begin


def wilson(k, n):
    if n == 0:
        return 0.0, 1.0
    z, p = 1.96, k / n
    middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--sample", type=int, default=400)
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--tests", default=TESTS)
    a.add_argument("--jobs", type=int, default=2)
    a.add_argument("--only", type=int, default=0)
    a.add_argument("--under", default="", help="a command under which each test is compiled and run, such as nice")
    a.add_argument("--list", action="store_true", help="print all places, and stop")
    o = a.parse_args()
    UNDER.extend(o.under.split())
    os.makedirs(OUT, exist_ok=True)
    text = open(os.path.join(TOP, "dtrain.h"), encoding="utf-8").read()
    places = list_mutants(text)
    line = lambda m: text.count("\n", 0, m[0]) + 1
    if o.list:
        for m in places:
            print(f"{line(m)}: {m[2]!r} -> {m[3]!r}")
        print(len(places), "places")
        return
    answered = set()
    path = os.path.join(TOP, "tests", "mutants_equivalent.txt")
    if os.path.exists(path):
        answered = {l.split(" -- ")[0].strip() for l in open(path, encoding="utf-8") if " -- " in l}
    name = lambda m: " ".join(m[2].split()) + " => " + " ".join(m[3].split())
    random.seed(o.seed)
    random.shuffle(places)
    chosen, taken = {}, []
    for m in places: # no two in one place
        if len(chosen) >= o.sample * 1.15:
            break
        if any(m[0] < r and l < m[1] for l, r in taken):
            continue
        taken.append((m[0], m[1]))
        chosen[len(chosen) + 1] = m
    open(os.path.join(OUT, "prelude.h"), "w").write(PRELUDE)
    compile_header(text, chosen)
    for number in sorted(chosen)[o.sample:]:
        chosen.pop(number)
    compile_header(text, chosen)
    print(f"{len(places)} places; {len(chosen)} of them drawn (seed {o.seed})", flush=True)

    tests = o.tests.split()
    lock, todo = threading.Lock(), list(tests)

    def builder():
        while True:
            with lock:
                if not todo:
                    return
                t = todo.pop(0)
            source = open(os.path.join(TOP, "tests", f"test_{t}.c"), encoding="utf-8").read()
            # the copy beside the changed header; what the test includes besides stands where it did
            copy = os.path.join(OUT, f"test_{t}.c")
            open(copy, "w", encoding="utf-8").write(source)
            for f in ("reference.h",):
                if os.path.exists(os.path.join(TOP, "tests", f)):
                    open(os.path.join(OUT, f), "w", encoding="utf-8").write(open(os.path.join(TOP, "tests", f), encoding="utf-8").read())
            r = subprocess.run([*UNDER, "gcc", *build_flags(), f"-I{OUT}", f"-I{TOP}/tests", f"-I{TOP}", "-o", os.path.join(OUT, f"test_{t}"), copy, "-lcmocka", "-lm", "-pthread"],
                               cwd=OUT, capture_output=True, text=True)
            if r.returncode:
                sys.stderr.write(r.stderr[:1500])

    threads = [threading.Thread(target=builder) for _ in range(o.jobs)]
    [t.start() for t in threads]
    [t.join() for t in threads]

    usual, reach = {}, {}
    for t in tests:
        if not os.path.exists(os.path.join(OUT, f"test_{t}")):
            sys.exit(f"test_{t} was not built")
        path = os.path.join(OUT, f"reached_{t}.txt")
        if os.path.exists(path):
            os.remove(path)
        code, usual[t] = run(t, 0, 600, path)
        if code != 0:
            sys.exit(f"test_{t} fails without a mutant: {code}")
        reach[t] = {int(l) for l in open(path)} if os.path.exists(path) else set()
        print(f"  {t}: {usual[t]:.1f} s, reaches {len(reach[t] & set(chosen))}", flush=True)
    order = sorted(tests, key=lambda t: usual[t])

    results, queue = {}, sorted(n for n in chosen if not o.only or n == o.only)

    def worker():
        while True:
            with lock:
                if not queue:
                    return
                n = queue.pop(0)
            found = None
            for t in order:
                if n in reach[t]:
                    code, _ = run(t, n, min(10 * usual[t] + 5, 120))
                    if code != 0:
                        found = t
                        break
            with lock:
                results[n] = found
                if not found:
                    m = chosen[n]
                    why = "answered" if name(m) in answered else "survives" if any(n in reach[t] for t in tests) else "no test reaches it"
                    print(f"line {line(m)}, mutant {n}, {why}: {name(m)}", flush=True)

    threads = [threading.Thread(target=worker) for _ in range(o.jobs)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    equal = [n for n in results if not results[n] and name(chosen[n]) in answered]
    n = len(results) - len(equal)
    k = sum(1 for v in results.values() if v)
    low, high = wilson(k, n)
    print(f"{k} of {n} noticed ({100 * k / max(1, n):.1f} %, 95 % interval {100 * low:.1f} to {100 * high:.1f}); {len(equal)} more are the same function, or answered")
    for t in order:
        print(f"  {t}: {sum(1 for v in results.values() if v == t)}")
    sys.exit(0 if n and k >= 0.9 * n else 1)


main()
