#!/usr/bin/env python3
"""Measured numbers in prose stand in the CSV files under figures/ that the pictures were drawn from.

Each claim is a sentence of a chapter (or of the README, the answers) with its numbers as groups, and what each of them must
be, from the CSV. A number in prose must be that value, rounded as it is printed. A sentence that is no longer there is a
failure, too: whoever changes it changes the claim. So when figures are drawn anew, this says which sentences to write anew.
Numbers that are counted or derived (9840 parameters, a batch of 128) are no claims. Ends with "N passed, N failed".

    python3 tests/check_numbers.py          --values: prints what each group should be, without judging
"""
import csv
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def rows(name):
    with open(os.path.join(ROOT, 'figures', name + '.csv'), encoding='utf-8') as f:
        return list(csv.reader(f))[1:]


def at(name, series, x, column=2):
    """A number of a chart's CSV: of that series, at that x (a number, or a group's name). Columns: 2 y, 3 min, 4 max."""
    found = []
    for r in rows(name):
        if r[0] != series:
            continue
        same = r[1] == x if isinstance(x, str) else abs(float(r[1]) - x) < 1e-9 * max(1, abs(x))
        if same:
            found.append(float(r[column]))
    if len(found) != 1:
        raise KeyError('figures/%s.csv has %d rows of "%s" at %s' % (name, len(found), series, x))
    return found[0]


def ys(name, series, column=2):
    return [float(r[column]) for r in rows(name) if r[0] == series]


def ends(name, series):
    return ys(name, series)[-1]


def runs(method, workers, column):
    """mnist.csv: the sorted values of a column, of all runs of a method with so many workers."""
    return sorted(float(r[column]) for r in rows('mnist') if r[0] == method and int(r[1]) == workers)


def median(v):
    v = sorted(v)
    return (v[(len(v) - 1) // 2] + v[len(v) // 2]) / 2


def epoch(method, workers):
    return median(float(r[5]) for r in rows('mnist_epochs') if r[0] == method and int(r[1]) == workers)


def speed(method, workers):
    return epoch(method, 1) / epoch(method, workers)


def percent(v):
    return 100 * v


def accuracies(method, workers):
    return [percent(v) for v in runs(method, workers, 10)]


def widest(method):
    return max(accuracies(method, w)[-1] - accuracies(method, w)[0] for w in range(1, 6))


def layers(label):
    """A stack of bench_step.csv."""
    return sum(float(r[2]) for r in rows('bench_step') if r[1] == label)


NUMBER = r'(-?[\d ]*\d(?:\.\d+)?)'


def claims():
    """(file, sentence with N for each number, values)"""
    five = range(1, 6)
    yield 'README.md', '| seconds, 10 epochs | N | N | N | N | N |\n| speedup, median', [median(runs('sync', w, 6)) for w in five]
    yield 'README.md', '| speedup, median epoch | N | N | N | N | N |', [speed('sync', w) for w in five]
    yield 'README.md', '| test accuracy, % | N | N | N | N | N |\n| hash', [median(accuracies('sync', w)) for w in five]
    yield 'README.md', '| seconds, 1 epoch, median of 5 runs | N | N | N | N | N |', [median(runs('hogwild', w, 6)) for w in five]
    yield 'README.md', '| speedup | N | N | N | N | N |', [speed('hogwild', w) for w in five]

    ranges = '| test accuracy, %, median (range) of 5 seeds | ' + ' | '.join(['N (N–N)'] * 5) + ' |\n'
    for method, behind in (('hogwild', '| the report'), ('psgd', '\n![')):
        yield 'README.md', ranges + behind, [v for w in five for v in (median(accuracies(method, w)), accuracies(method, w)[0], accuracies(method, w)[-1])]
    yield 'README.md', '| PSGD, one average at the end | 1 | 2 | 3 | 4 | 5 |\n|---|---|---|---|---|---|\n| speedup, median epoch | N | N | N | N | N |', [
        speed('psgd', w) for w in five]
    yield 'README.md', 'its slip, made here on purpose: accuracy, % | N | N | N | N | N |', [float(r[1]) for r in rows('ch08_lost_sum')]

    pair = 'two workers'
    yield ('chapters/ch10_hogwild.c', 'on two cores are just N times as fast as one (figures/ch10_features.csv)', [at('ch10_features', pair, 65536)])
    yield 'chapters/ch10_hogwild.c', "seldom in the other core's cache, and two are N times as fast", [at('ch10_features', pair, 4194304)]
    fast = [at('ch10_speedup', s, 2) for s in ('net, no lock', 'net, one lock', 'sparse, one lock', 'sparse, no lock')]
    yield 'chapters/ch10_hogwild.c', 'train the net N times as fast as one without a lock, and N times with it', fast[:2]
    yield 'chapters/ch10_hogwild.c', 'two workers slower than one, N times, and without it they are N times as fast', fast[2:]
    yield 'chapters/ch10_hogwild.c', 'in the sparse problem a loss: N times.', [at('ch10_speedup', 'sparse, no lock', 3)]
    free, locked = ys('ch10_accuracy', 'no lock'), ys('ch10_accuracy', 'one lock')
    yield ('chapters/ch10_hogwild.c', 'the medians are N to N % without a lock for 1 to 5 workers, N to N % with it',
           [percent(v) for v in (min(free), max(free), min(locked), max(locked))])
    yield ('chapters/ch10_hogwild.c', "one worker's five seeds lie N points apart",
           [percent(at('ch10_accuracy', 'no lock', 1, 4) - at('ch10_accuracy', 'no lock', 1, 3))])
    yield 'chapters/ch10_hogwild.c', 'average to N %', [percent(ends('ch10_accuracy', 'averaged'))]
    yield 'chapters/ch10_hogwild.c', 'with two workers N % of the steps are one step late', [percent(at('ch10_staleness', 'N = 2', '1'))]

    yield ('chapters/ch12_mnist.c', "(N times one rank's speed with 2 ranks, N with 3, N with 4)", [speed('sync', w) for w in (2, 3, 4)])
    psgd = [accuracies('psgd', w) for w in (1, 5)]
    yield 'chapters/ch12_mnist.c', 'N % with one rank, N % with five.', [median(v) for v in psgd]
    yield 'chapters/ch12_mnist.c', 'up to N points among the runs of one P', [widest('psgd')]
    yield 'chapters/ch12_mnist.c', 'on five ranks, N %, is below the worst on one, N %', [psgd[1][-1], psgd[0][0]]
    hogwild = [median(accuracies('hogwild', w)) for w in (1, 5)]
    yield ('chapters/ch12_mnist.c', 'The range of five seeds, up to N points, is wider than the difference between one worker and five, N.',
           [widest('hogwild'), abs(hogwild[0] - hogwild[1])])
    yield 'chapters/ch12_mnist.c', 'its step of 128 images takes N ms on one core', [layers('Net: measured')]

    loss = ys('ch00_loss', 'rate 0.8')
    yield 'chapters/ch00_learning.c', 'and 0.8 multiplies the loss by N each time', [loss[-1] / loss[-2]]
    yield 'chapters/ch00_learning.c', 'The bottom is not 0 but N:', [ends('ch00_loss', 'rate 0.3')]

    bins = ys('ch01_uniform', '')
    yield 'chapters/ch01_tensors.c', "The picture's worst strays by N %", [max(abs(v / 20000 - 1) for v in bins) * 100]

    peak = [float(r[2]) for r in rows('ch03_gflops') if r[0].startswith('fused')][0]
    yield ('chapters/ch03_convolution.c', 'seven loops reach N % of the peak in conv2, and the header N %',
           [100 * at('ch03_gflops', 'seven loops', 'conv2') / peak, 100 * at('ch03_gflops', 'the header', 'conv2') / peak])

    yield ('chapters/ch06_optimizers.c', 'for half an epoch, and ends at N.', [ends('ch06_loss', 'sgd')])
    yield ('chapters/ch06_optimizers.c', 'says: N after one epoch. Nesterov and Adam end at N and N.',
           [at('ch06_loss', 'momentum 0.5', 1), ends('ch06_loss', 'nesterov 0.9'), ends('ch06_loss', 'adam')])

    naive, ring, doubling = 'naive, tree', 'ring, halving', 'doubling'
    def us(way, n):
        return 1e6 * at('ch07_messages', way, n)
    yield ('chapters/ch07_allreduce.c', 'at 4 MiB naive sends the vector twice, one after the other, in N ms;',
           [1e-3 * us(naive, 4194304)])
    yield 'chapters/ch07_allreduce.c', 'both ranks at once, takes N.', [1e-3 * us(ring, 4194304)]
    yield ('chapters/ch07_allreduce.c', "at 64 B doubling's one message takes N us and ring's two N.",
           [us(doubling, 64), us(ring, 64)])
    yield 'chapters/ch07_allreduce.c', 'At 64 B naive takes N us', [us(naive, 64)]
    first = [i for i, r in enumerate(rows('ch07_messages')) if r[0] == naive][-1]  # its model stands behind it
    model = [float(r[2]) for r in rows('ch07_messages')[first:] if r[0] == '' and float(r[1]) > 16777215][0]
    yield 'chapters/ch07_allreduce.c', 'naive takes N times what the model says', [1e-6 * us(naive, 16777216) / model]
    yield ('chapters/answers.md', 'a little less: naive N, doubling N, ring N.',
           [us(w, 65536) for w in (naive, doubling, ring)])

    yield ('chapters/ch08_sync.c', 'after one epoch N % on 2 ranks and N % on 4, where all four exact ones have N %',
           [percent(ends('ch08_sync', s)) for s in ('sum lost, P = 2', 'sum lost, P = 4', 'P = 1')])

    once, plainly, outer = 938, 'averaged net', 'with outer momentum'
    yield ('chapters/ch09_psgd.c', 'give N % as it is, N % with outer momentum',
           [percent(at('ch09_accuracy', s, 16)) for s in (plainly, outer)])
    yield ('chapters/ch09_psgd.c', '--lr 0.07, they give N % without it and N % with it',
           [percent(at('ch09_rate', s, 16)) for s in (plainly, outer)])
    yield ('chapters/ch09_psgd.c', '(N % against N %; exercise 9.6.3',
           [percent(at('ch09_accuracy', s, once)) for s in (outer, plainly)])
    medians = ys('ch09_accuracy', plainly)
    alone = [float(r[2]) for r in rows('ch09_accuracy') if r[0].startswith('rank 0 alone')][0]
    sent = ys('ch09_bytes', 'bytes sent')
    yield ('chapters/ch09_psgd.c', 'the medians of all H lie between N and N %', [percent(min(medians)), percent(max(medians))])
    yield 'chapters/ch09_psgd.c', 'rank 0 alone had N %', [percent(alone)]
    yield 'chapters/ch09_psgd.c', 'for a Nth of the bytes', [sent[0] / sent[-1]]


def plain(path):
    """A file's prose: comment marks and line ends are blanks."""
    with open(os.path.join(ROOT, path), encoding='utf-8') as f:
        text = f.read()
    if path.endswith('.md'):
        return text
    return '\n'.join(line[3:] if line.startswith('// ') else '' for line in text.split('\n'))


def pattern(sentence):
    """Words may be broken over lines, in lists and tables, too; N is a number."""
    parts = re.split(r'\bN(?=th\b|\b)', sentence)
    return NUMBER.join(r'\s+'.join(re.escape(w) for w in re.split(r'\s+', p)) for p in parts)


def main():
    passed = failed = 0
    for path, sentence, values in claims():
        found = re.search(pattern(sentence), plain(path))
        if '--values' in sys.argv:
            print('%s: %s\n    %s' % (path, sentence, '  '.join('%.5g' % v for v in values)))
            continue
        if not found:
            print('%s: no longer says "%s"' % (path, sentence))
            failed += 1
            continue
        for said, value in zip(found.groups(), values):
            said = said.replace(' ', '')
            decimals = len(said.partition('.')[2])
            if abs(float(said) - value) <= 0.5001 * 10 ** -decimals:
                passed += 1
            else:
                print('%s: "%s" says %s, measured: %.6g' % (path, sentence, said, value))
                failed += 1
        if len(found.groups()) != len(values):
            print('%s: "%s" has %d numbers, %d are known' % (path, sentence, len(found.groups()), len(values)))
            failed += 1
    print('%d passed, %d failed' % (passed, failed))
    return failed > 0


sys.exit(main())
