# check_trace.py FILE RANKS: whether FILE is a Chrome trace as trainers write it; says what is wrong, and ends with 1.
import json
import sys

events = json.load(open(sys.argv[1]))["traceEvents"]
ranks = int(sys.argv[2])
wrong = []
names = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
if sorted(names) != list(range(ranks)) or any(not names[r].startswith("rank %d, " % r) for r in names):
    wrong.append("thread names %s" % names)
for rank in range(ranks):
    spans = sorted(((e["ts"], -e["dur"], e["name"]) for e in events if e["ph"] == "X" and e["pid"] == 0 and e["tid"] == rank))
    seen = {s[2] for s in spans}
    if not {"forward", "backward", "optimizer", "wait"} <= seen:
        wrong.append("rank %d has only %s" % (rank, sorted(seen)))
    if spans and (spans[0][0] < 0 or max(-s[1] for s in spans) > 60e6 or min(-s[1] for s in spans) < 0):
        wrong.append("rank %d: times are not microseconds of this run" % rank)
    ends = []
    for start, minus, name in spans:
        while ends and ends[-1] <= start + 0.002:
            ends.pop()
        if ends and start - minus > ends[-1] + 0.002:
            wrong.append("rank %d: %s at %g crosses the end of another" % (rank, name, start))
        ends.append(start - minus)
if any(e["ph"] not in "MX" for e in events):
    wrong.append("events of another kind")
print("\n".join(wrong))
sys.exit(1 if wrong else 0)
