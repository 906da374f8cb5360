#!/usr/bin/env python3
"""Writes build/tests/contract_calls.h for tests/test_contract.c: calls of every function that dtrain.h declares, made from the
declarations alone. Pointers are NULL, texts NULL or empty, numbers at the ends of their types, enums beyond them. What a call
answers is looked at in the test: it must come back, and an error must have its sentence.

    tests/contract_calls.py dtrain.h >build/tests/contract_calls.h
"""
import re
import sys

# by type, the values that calls take in turn
NUMBERS = {
    "int": ["0", "-1", "INT_MAX", "INT_MIN"],
    "unsigned": ["0", "1", "UINT_MAX", "1"],
    "size_t": ["0", "1", "SIZE_MAX", "SIZE_MAX / 2"],
    "uint32_t": ["0", "1", "UINT32_MAX", "1u << 31"],
    "uint64_t": ["0", "1", "UINT64_MAX", "1ull << 63"],
    "float": ["0.0f", "-1.0f", "NAN", "INFINITY"],
    "double": ["0.0", "-1.0", "(double)NAN", "(double)INFINITY"],
    "bool": ["false", "true", "true", "false"],
}
# not called, and why
NOT_CALLED = {
    "dt_comm_abort": "ends the process, which is what it is for",
    "dt_fail": "its format is a literal, checked by the compiler",
}

# NULL without a sentence is an answer of theirs
ENDS = {"dt_dataset_known"}  # behind the last of the table
# what a caller gets and must free, by TYPE_free
FREED = {"dt_net", "dt_comm", "dt_optimizer", "dt_chart", "dt_lane_conv"}
# declared with DTRAIN_WITH_MPI alone
MPI = {"dt_comm_mpi", "dt_comm_from_mpi"}


def declarations(text):
    """(returns, name, [parameter ...]) of each DT_API, in the order of the file, each once"""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    seen = set()
    for m in re.finditer(r"^DT_API\s+([^;{(]*?)(\bdt_\w+)\s*\(", text, re.M):
        name = m.group(2)
        depth, end = 1, m.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        if name in seen:
            continue
        seen.add(name)
        inside = " ".join(text[m.end():end - 1].split())
        parameters, depth, word = [], 0, ""
        for c in inside + ",":
            if c == "," and depth == 0:
                parameters.append(word.strip())
                word = ""
                continue
            depth += {"(": 1, ")": -1}.get(c, 0)
            word += c
        yield m.group(1).strip(), name, [] if inside == "void" else parameters


def value(parameter, k, enums):
    kind = re.sub(r"\b(const|struct|enum)\b", "", parameter)
    if "*" in kind or "(" in kind or "[" in kind:
        return '""' if k % 2 and re.match(r"\s*char \*\w*$", kind) and parameter.startswith("const") else "NULL"
    words = kind.split()
    if words[0] in NUMBERS:
        return NUMBERS[words[0]][k]
    if words[0] in enums:
        return f"({words[0]})" + ["0", "99", "INT_MAX", "1"][k]
    return f"({words[0]}){{ 0 }}"


def main():
    text = open(sys.argv[1], encoding="utf-8").read()
    enums = set(re.findall(r"typedef enum (dt_\w+)", text))
    print("/* Made by tests/contract_calls.py from the declarations of dtrain.h. */")
    for returns, name, parameters in declarations(text):
        if name in NOT_CALLED:
            print(f"/* {name}: {NOT_CALLED[name]} */")
            continue
        variadic = parameters and parameters[-1] == "..."
        if variadic:
            parameters = parameters[:-1]
        if name in MPI:
            print("#ifdef DTRAIN_WITH_MPI")
        said = set()
        for k in range(4):
            call = f"{name}({', '.join(value(p, k, enums) for p in parameters)})"
            if call in said:
                continue
            said.add(call)
            if variadic:
                call = call.replace('"", "")', '"", NULL)')
            if returns == "dt_err":
                print(f"CALL_ERR({call})")
            elif returns.rstrip(" *") in FREED:
                print(f"CALL_MADE({call}, {returns.rstrip(' *')}_free)")
            elif "*" in returns and name not in ENDS:
                print(f"CALL_POINTER({call})")
            elif returns == "void":
                print(f"CALL_NOTHING({call})")
            else:
                print(f"CALL_VALUE({call})")
        if name in MPI:
            print("#endif")


main()
