#!/usr/bin/env python3
"""Small changes to the labs' solved files: what share of them do the graders notice?

    python3 tests/mutate_labs.py [--sample 200] [--seed 1] [--lab 05] [--keep FOLDER]

A mutant differs from the solved file, between BEGIN SOLUTION and END SOLUTION, in one operator,
bound or constant. All that there are are listed, a random sample over all labs is compiled and
graded, without points for speed; one that keeps full marks with three seeds has survived, and is
printed. Those that tests/lab_equivalents.txt names are the same function in other words, and do not
count. Exit code 1 if fewer than 90 of 100 are noticed."""
import argparse, os, random, re, subprocess, sys, tempfile
from concurrent.futures import ThreadPoolExecutor

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LABS = os.path.join(TOP, "chapters", "labs")
CHANGES = [  # what stands there, what else might
    (r"(?<![<>=!+\-*/&|])<(?![<=])", ["<=", ">"]), (r"<=", ["<"]),
    (r"(?<![\->])>(?![>=])", [">=", "<"]), (r">=", [">", "<"]),
    (r"==", ["!="]), (r"!=", ["=="]), (r"&&", ["||"]), (r"\|\|", ["&&"]),
    (r"(?<= )\+(?= )", ["-"]), (r"(?<= )-(?= )", ["+"]), (r"(?<= )\*(?= )", ["+", "/"]),
    (r"(?<= )/(?= )", ["*"]), (r"(?<= )%(?= )", ["/"]), (r"\+=", ["-=", "="]),
    (r"-=", ["+=", "="]), (r"\*=", ["+="]), (r"/=", ["*="]), (r"\+\+(?=\w)", ["--"]),
    (r"--(?=\w)", ["++"]), (r"(?<![\w.])0(?![\w.])", ["1"]), (r"(?<![\w.])1(?![\w.])", ["0", "2"]),
    (r"(?<![\w.])2(?![\w.])", ["1", "3"]), (r"(?<![\w.])(10|15|16)(?![\w.])", ["9", "17"]),
    (r"\b1\.0f?(?!\w)", ["2.0"]), (r"\b0\.0f?(?!\w)", ["1.0"]),
    (r"(?<=[(,] )-(?=\w)|(?<=\()-(?=\w)|(?<== )-(?=\w)", [""]),
]


def mutants(lab):
    """Every (line number, line, changed line) of the solutions, comments left alone."""
    inside, found = False, []
    for number, line in enumerate(open(os.path.join(LABS, f"lab{lab}.c")), 1):
        if "BEGIN SOLUTION" in line or "END SOLUTION" in line:
            inside = "BEGIN" in line
        elif inside and not line.lstrip().startswith("//"):
            for pattern, others in CHANGES:
                for hit in re.finditer(pattern, line.split("//")[0]):
                    for other in others:
                        found.append((number, line, line[:hit.start()] + other + line[hit.end():]))
    return found


def grade(lab, mutant, folder):
    """None if the mutant has full marks with all seeds, else the grader's first complaint."""
    name = os.path.join(folder, f"lab{lab}.c")
    lines = open(os.path.join(LABS, f"lab{lab}.c")).readlines()
    lines[mutant[0] - 1] = mutant[2]
    open(name, "w").writelines(lines)
    for seed in ("1", "2", "3"):
        command = ["sh", os.path.join(LABS, "grade.sh"), lab, name, f"{TOP}/build/labs"]
        run = subprocess.run(command + ["--seed", seed, "--no-timing"], stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True,
                             env={**os.environ, "LABFLAGS": "-std=c11 -O1 -march=native"})
        if run.returncode != 0:
            complaints = [l for l in run.stdout.splitlines() if l.startswith("  0 of")]
            return complaints[0] if complaints else run.stdout[-200:]
    return None


def equivalents():
    """lab | line of the solved file | changed line, without their indentation"""
    known = set()
    for line in open(os.path.join(TOP, "tests", "lab_equivalents.txt")):
        if line.strip() and not line.startswith("#"):
            known.add(tuple(part.strip() for part in line.split(" ## ")[:3]))
    return known


def main():
    parse = argparse.ArgumentParser()
    parse.add_argument("--sample", type=int, default=200)
    parse.add_argument("--seed", type=int, default=1)
    parse.add_argument("--lab")
    options = parse.parse_args()
    labs = sorted(f[3:5] for f in os.listdir(LABS) if re.fullmatch(r"lab\d\d\.c", f))
    every = [(lab, m) for lab in labs if options.lab in (None, lab) for m in mutants(lab)]
    sample = random.Random(options.seed).sample(every, min(options.sample, len(every)))
    known, tally, survivors = equivalents(), {}, []
    with tempfile.TemporaryDirectory() as top:
        os.chmod(top, 0o755)

        def one(job):
            number, (lab, mutant) = job
            folder = os.path.join(top, str(number))
            os.mkdir(folder)
            return lab, mutant, grade(lab, mutant, folder)

        # the solved files themselves have full marks, or nothing is shown
        for lab in sorted({lab for lab, _ in sample}):
            first = open(os.path.join(LABS, f"lab{lab}.c")).readline()
            wrong = one((f"solved{lab}", (lab, (1, first, first))))[2]
            if wrong is not None:
                sys.exit(f"lab{lab}.c as it is: {wrong}")
        with ThreadPoolExecutor(2) as pool:
            for lab, mutant, wrong in pool.map(one, enumerate(sample)):
                caught, count, same = tally.get(lab, (0, 0, 0))
                equal = wrong is None and (lab, mutant[1].strip(), mutant[2].strip()) in known
                tally[lab] = (caught + (wrong is not None), count + (not equal), same + equal)
                if wrong is None and not equal:
                    survivors.append((lab, mutant))
    for lab, (number, before, after) in survivors:
        print(f"survived  {lab} ## {before.strip()} ## {after.strip()}")
    print("lab  mutants  noticed  the same function")
    for lab in sorted(tally):
        caught, count, same = tally[lab]
        print(f"{lab}   {count:7d}  {caught:7d}  {same:d}")
    caught, count = sum(t[0] for t in tally.values()), sum(t[1] for t in tally.values())
    print(f"{caught} of {count} noticed, {100 * caught / count:.1f} %, of {len(every)} there are; "
          f"{sum(t[2] for t in tally.values())} more are the same function")
    return 0 if caught >= 0.9 * count else 1


if __name__ == "__main__":
    sys.exit(main())
