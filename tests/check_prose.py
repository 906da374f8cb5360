#!/usr/bin/env python3
"""The chapters as text: no line is over 100 columns, no word of the glossary is used before the section that explains it, and
a section or an exercise that is named, "(8.3)" or "exercise 9.6.3", is there.

The glossary is chapter 0's list "- **word, other word**: meaning (section)". A word may have two meanings, each with its
section; the first one counts. Looked at are the comments that are prose, from the first section of a chapter on: what stands
above it (the head, with "You will learn") names what is to come. Ends with "N passed, N failed".
"""
import glob
import re
import sys

COLUMNS = 100
# everyday words that are also words of the field: looked for as these patterns alone
EVERYDAY = {
    'P': r'\bP ranks?\b|\bP = \d', 'H, W': r'\bH x W\b', 'lane': r'\blanes?\b', 'class, label': r'\blabels?\b',
    'step': None, 'target': None, 'weight': None, 'layer': None, 'model, net': None, 'parameter': None, 'batch': None,
    'stride': r'\bstrides?\b', 'normalise': r'\bnormalis', 'learning rate, lr': r'\blearning rate\b|\blr\b',
    'SGD, stochastic gradient descent': r'\bSGD\b|\bstochastic\b',
}


def number(section):
    chapter, _, part = section.partition('.')
    return int(chapter), int(part or 0)


def glossary(path):
    """word -> (chapter, section) that explains it first"""
    words, inside, entry = {}, False, ''
    for line in open(path, encoding='utf-8').read().split('\n') + ['']:
        text = line[3:] if line.startswith('// ') else ''
        inside = inside or text.startswith('## Glossary')
        if not inside:
            continue
        if text.startswith('- ') or not text:
            found = re.match(r'- \*\*(.+?)\*\*: (.*)', entry)
            if found:
                sections = re.findall(r'\((\d+\.\d+)(?:, \d+\.\d+)*\)', found.group(2))
                if not sections:
                    print('%s: the glossary does not say where "%s" is explained' % (path, found.group(1)))
                words[found.group(1)] = number(sections[0]) if sections else None
            entry = ''
        entry += (' ' if entry else '') + text.strip()
    return words


def pattern(word):
    if word in EVERYDAY and EVERYDAY[word]:
        return re.compile(EVERYDAY[word])
    each = [re.escape(w) + ('s?' if w[-1].islower() else '') for w in word.split(', ')]
    return re.compile(r'\b(?:%s)\b' % '|'.join(each), re.I if word[0].islower() else 0)


def prose(path):
    """(line number, (chapter, section), text) of the prose lines"""
    section = None
    for n, line in enumerate(open(path, encoding='utf-8').read().split('\n'), 1):
        found = re.match(r'// ## (\d+\.\d+) ', line)
        if found:
            section = number(found.group(1))
        if line.startswith('// ## Glossary'):
            return
        if section and re.match(r'\s*// (?!\[region|\[end)', line):
            yield n, section, re.sub(r'`[^`]*`', '', line.strip()[3:])


def sections(chapters):
    """"8.3" for each section, "9.6.3" for each exercise"""
    found, section, exercises = set(), None, False
    for path in chapters:
        for line in open(path, encoding='utf-8').read().split('\n'):
            heading = re.match(r'// ## (\d+\.\d+) (Exercises)?', line)
            if heading:
                section, exercises = heading.group(1), bool(heading.group(2))
                found.add(section)
            item = re.match(r'// (\d+)\. \*\*', line)
            if item and exercises:
                found.add('%s.%s' % (section, item.group(1)))
    return found


def named(path):
    """(line number, section or exercise) that a text names"""
    for n, line in enumerate(open(path, encoding='utf-8').read().split('\n'), 1):
        if path.endswith('.c') and not re.match(r'\s*//', line):
            continue
        for group in re.findall(r'\(((?:\d+\.[1-9]\d?(?:, | and )?)+)\)|\bexercise (\d+\.\d+\.\d+)|\*\*(\d+\.\d+\.\d+)\*\*', line):
            for one in re.findall(r'\d+(?:\.\d+)+', ' '.join(group)):
                yield n, one


def main():
    passed = failed = 0
    chapters = sorted(glob.glob('chapters/ch[0-9][0-9]_*.c'))
    for path in sorted(glob.glob('chapters/*.[ch]') + glob.glob('chapters/labs/*.[ch]')):
        wide = [n for n, line in enumerate(open(path, encoding='utf-8').read().split('\n'), 1) if len(line) > COLUMNS]
        for n in wide:
            print('%s:%d: over %d columns' % (path, n, COLUMNS))
        failed += len(wide)
        passed += not wide
    there = sections(chapters)
    for path in chapters + ['chapters/answers.md']:
        for n, one in named(path):
            if one not in there:
                print('%s:%d: there is no %s' % (path, n, one))
            failed += one not in there
            passed += one in there
    words = glossary(chapters[0])
    if len(words) < 30:
        print('only %d words in the glossary of %s' % (len(words), chapters[0]))
        failed += 1
    for word, explained in words.items():
        if explained is None:
            failed += 1
            continue
        looked, early = pattern(word), None
        for path in chapters:
            for n, section, text in prose(path):
                if section < explained and looked.search(text):
                    early = early or '%s:%d: "%s" in %d.%d, and explained in %d.%d' % ((path, n, word) + section + explained)
        if early:
            print(early)
        failed += early is not None
        passed += early is None
    print('%d passed, %d failed' % (passed, failed))
    return failed > 0


sys.exit(main())
