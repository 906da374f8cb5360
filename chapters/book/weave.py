#!/usr/bin/env python3
"""make book: weaves chapters/*.c and the header's comments into HTML pages, with pandoc.

    python3 chapters/book/weave.py build/book
    python3 chapters/book/weave.py --check        looks for what is cited and not there; writes nothing

Nothing is pasted: prose is the chapter's own comments, code its own regions, figures the committed ones, what a chapter
prints the output of the last `make check`. A cited section, figure or region that does not exist ends it with an error.

In a chapter's source
    // ## 5.1 Title            a heading; the comment lines behind it, in column 0, are Markdown
    // [region: name]          code to be shown, until the line // [end]; other code is there, folded away
    // Picture: ch05_steps     figures/ch05_steps.png is shown here (the others of the chapter stand at its end)
A comment that stands right above code, without an empty line between, belongs to the code.
"""
import html
import json
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HERE = os.path.join(ROOT, 'chapters', 'book')
CHECK = sys.argv[1:] == ['--check']
OUT = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 and not CHECK else os.path.join(ROOT, 'build', 'book'))
problems = []


def read(path):
    with open(os.path.join(ROOT, path), encoding='utf-8') as f:
        return f.read()


def write(path, text):
    os.makedirs(os.path.dirname(os.path.join(OUT, path)) or '.', exist_ok=True)
    with open(os.path.join(OUT, path), 'w', encoding='utf-8') as f:
        f.write(text)


# ---- The header: its sections, and where they stand.

class Section:
    def __init__(self, sid, title, line):
        self.id, self.title, self.line, self.end = sid, title, line, line

    @property
    def page(self):
        return self.id.split('.')[0] + '.html'

    @property
    def href(self):
        return self.page + ('#' + self.id if '.' in self.id else '')


def sections_of(lines):
    found = []
    for n, line in enumerate(lines, 1):
        m = re.match(r'/\* ==== \[([SE][0-9.]+)\] (.*?) =+(?: \*/)?$', line)
        if m:
            if found:
                found[-1].end = n - 1
            found.append(Section(m.group(1), m.group(2).strip(), n))
    found[-1].end = len(lines)
    return found


HEADER = read('dtrain.h').split('\n')
SECTIONS = sections_of(HEADER)
BY_ID = {s.id: s for s in SECTIONS}


def link_sections(text, where):
    """[S4.1] becomes a link to the header's page; code and links are left alone."""
    def one(m):
        s = BY_ID.get(m.group(1))
        if not s:
            problems.append('%s cites [%s], which is no section of dtrain.h' % (where, m.group(1)))
            return m.group(0)
        return '[\\[%s\\]](%s)' % (m.group(1), s.href)
    parts = re.split(r'(`[^`]*`)', text)
    return ''.join(p if p.startswith('`') else re.sub(r'\[([SE][0-9]+(?:\.[0-9]+)?)\](?!\()', one, p) for p in parts)


# ---- Chapters

class Chapter:
    def __init__(self, path):
        self.path = path
        self.name = os.path.basename(path)[:4]
        self.lines = read(path).split('\n')
        head = []
        for line in self.lines:
            if not line.startswith('//'):
                break
            head.append(line)
        m = re.match(r'// Chapter (\d+)\. (.*?)(?:\s{2,}uses (.*))?$', head[0])
        if not m:
            raise SystemExit('%s: the first line is not "// Chapter N. Title"' % path)
        self.number, self.title, self.uses = int(m.group(1)), m.group(2).strip(), m.group(3) or ''
        self.fields = {}
        for line in head[1:]:
            f = re.match(r'// ([A-Z][A-Za-z0-9 ]*?)(?: {2,}| (?=about))(.*)$', line)
            if f:
                self.fields[f.group(1)] = f.group(2).strip()
            elif line.startswith('//      ') and self.fields:
                last = list(self.fields)[-1]  # commands stay a line each
                self.fields[last] += ('\n' if last == 'Run' else ' ') + line[2:].strip()
        self.promised = [line for line in head if line[:3] in ('//|', '//~')]
        self.start = len(head)

    @property
    def page(self):
        return self.name + '.html'

    def blocks(self):
        """('prose', first line, [lines]) and ('code', first line, [lines], region or None), in order."""
        n, out, region, code, at = self.start, [], None, [], 0
        lines = self.lines

        def flush():
            nonlocal code
            while code and not code[0].strip():
                code.pop(0)
                nonlocal at
                at += 1
            while code and not code[-1].strip():
                code.pop()
            if code:
                out.append(('code', at, code, region))
            code = []

        while n < len(lines):
            line = lines[n]
            m = re.match(r'\s*// \[region: (\w+)\]', line)
            if m:
                flush()
                region, at = m.group(1), n + 2
                n += 1
                continue
            if re.match(r'\s*// \[end\]', line):
                flush()
                region, at = None, n + 2
                n += 1
                continue
            if region is None and line.startswith('//'):
                k = n
                while k < len(lines) and lines[k].startswith('//') and not re.match(r'// \[region:', lines[k]):
                    k += 1
                follows = lines[k].strip() if k < len(lines) else ''
                if line.startswith('// ## ') or follows == '' or follows.startswith('// [region:'):
                    flush()
                    out.append(('prose', n + 1, [t[3:] if t.startswith('// ') else t[2:] for t in lines[n:k]]))
                    n, at = k, k + 1
                    continue
            if not code:
                at = n + 1
            code.append(line)
            n += 1
        flush()
        if region:
            problems.append('%s: [region: %s] has no [end]' % (self.path, region))
        return out


def source_link(path, line, text):
    return '<a class="source" href="src/%s.html#cb1-%d">%s</a>' % (os.path.basename(path), line, html.escape(text))


def dedent(code):
    indents = [len(t) - len(t.lstrip()) for t in code if t.strip()]
    k = min(indents) if indents else 0
    return [t[k:] for t in code]


def code_block(path, at, code, classes='c'):
    fence = '~~~~~~'
    return '%s {.%s .numberLines startFrom="%d"}\n%s\n%s\n' % (fence, classes, at, '\n'.join(dedent(code)), fence)


def names_in(code):
    found = []
    for t in code:
        m = re.match(r'(?:static |int |void |typedef |const |enum )+.*?\b(\w+)\(', t) if not t.startswith(' ') else None
        if m and m.group(1) not in found:
            found.append(m.group(1))
    return found


def figures_of(name):
    folder = os.path.join(ROOT, 'figures')
    return sorted(f[:-4] for f in os.listdir(folder) if f.startswith(name + '_') and f.endswith('.png'))


def figure(name, where):
    if not os.path.exists(os.path.join(ROOT, 'figures', name + '.png')):
        problems.append('%s shows figures/%s.png, which does not exist' % (where, name))
        return ''
    csv = ', <a href="figures/%s.csv">numbers</a>' % name if os.path.exists(os.path.join(ROOT, 'figures', name + '.csv')) else ''
    return ('<figure id="%s"><a href="figures/%s.png"><img src="figures/%s.png" alt="%s" loading="lazy"></a>'
            '<figcaption>%s%s</figcaption></figure>\n\n') % (name, name, name, name.replace('_', ' '), name.replace('_', ' '), csv)


def fields_of(ch):
    out = ['<dl class="head">']
    for key, value in ch.fields.items():
        if key == 'Check':
            continue
        value = html.escape(value)
        if key == 'Run':  # the command, and what is said of it in parentheses
            value = '<br>'.join(re.sub(r'^(.*?)(?: {2,}(\(.*\)))?$', lambda m: '<code>%s</code>%s' % (
                m.group(1), ' ' + m.group(2) if m.group(2) else ''), line) for line in value.split('\n'))
        out.append('<dt>%s</dt><dd>%s</dd>' % (html.escape(key), value))
    if ch.uses:
        ids = re.findall(r'\[([SE][0-9.]+)\]', ch.uses)
        links = []
        for i in ids:
            if i in BY_ID:
                links.append('<a href="%s">%s %s</a>' % (BY_ID[i].href, i, html.escape(BY_ID[i].title)))
            else:
                problems.append('%s cites [%s], which is no section of dtrain.h' % (ch.path, i))
        out.append('<dt>Uses of dtrain.h</dt><dd>%s</dd>' % ', '.join(links))
    out.append('</dl>\n')
    return '\n'.join(out)


def promised_box(ch):
    shown = []
    for line in ch.promised:
        text = html.escape(line[4:] if line[3:4] == ' ' else line[3:])
        text = text.replace('&lt;num&gt;', '<span class="num">#</span>')
        shown.append(text)
    return ('<details class="expect" open><summary>What you should see, among other lines '
            '(<span class="num">#</span> stands for a number that differs)</summary>\n<pre>%s</pre></details>\n') % '\n'.join(shown)


def run_box(ch):
    """The program itself, where it has been compiled to WebAssembly; else what it printed when it was last checked."""
    command = ch.fields.get('Check') or re.sub(r'^make \S+ && ', '', ch.fields.get('Run', '').split('\n')[0])
    if runs(ch):
        options = re.sub(r'^\S+ ?', '', command.replace(' --figures build/check', ''))
        return ('<section class="run" data-program="%s" data-options="%s"></section>\n<noscript><p>This page can run the program '
                'where scripts are allowed.</p></noscript>\n') % (ch.name, html.escape(options))
    recorded = os.path.join(ROOT, 'build', 'check', ch.name + '.out')
    if os.path.exists(recorded):
        with open(recorded, encoding='utf-8') as f:
            text = f.read()
        return ('<details class="recorded"><summary>A recorded run: <code>%s</code>, on small settings</summary>\n<pre>%s</pre></details>\n'
                % (html.escape(command), html.escape(text)))
    return ''


def runs(ch):
    return shim() and os.path.exists(os.path.join(ROOT, 'build', 'wasm', ch.name + '.wasm'))


def shim():
    """The WASI shim's folder, or None: npm install --prefix build @bjorn3/browser_wasi_shim."""
    path = os.path.join(ROOT, 'build', 'node_modules', '@bjorn3', 'browser_wasi_shim', 'dist')
    return path if os.path.isdir(path) else None


def weave_chapter(ch):
    md = [fields_of(ch), run_box(ch), promised_box(ch)]
    shown, regions = set(), 0
    for block in ch.blocks():
        if block[0] == 'prose':
            text = '\n'.join(block[2])
            for pic in re.findall(r'^Picture: (\w+)$', text, re.M):
                shown.add(pic)
                text = text.replace('Picture: ' + pic, figure(pic, ch.path))
            md.append(link_sections(text, ch.path) + '\n')
            continue
        _, at, code, region = block
        where = '%s, line %d' % (os.path.basename(ch.path), at)
        if region:
            regions += 1
            md.append('<div class="region" id="region-%s">%s\n\n%s\n</div>\n' %
                      (region, source_link(ch.path, at, where), code_block(ch.path, at, code)))
        elif all(t.startswith('#include') or not t for t in code):
            continue
        else:
            names = names_in(code)
            label = '%d line%s' % (len(code), '' if len(code) == 1 else 's')
            label += ': ' + ', '.join(names) if names else ''
            md.append('<details class="plumbing"><summary>%s</summary>\n\n%s\n\n%s\n</details>\n' %
                      (html.escape(label), source_link(ch.path, at, where), code_block(ch.path, at, code)))
    rest = [f for f in figures_of(ch.name) if f not in shown]
    if rest:
        md.append('## Pictures\n\nDrawn by this chapter on the machine that their captions name; `make figures` draws yours.\n')
        md.extend(figure(f, ch.path) for f in rest)
    if not regions and ch.number not in (0, 12):  # one weight; the experiment, which builds nothing new
        problems.append('%s shows no region' % ch.path)
    return '\n'.join(md)


# ---- The header as a reference: of each section its comments and declarations, the code folded away.

def comment_to_markdown(lines):
    """A C comment: indented lines are kept as they are, the others flow."""
    text = '\n'.join(lines)
    text = re.sub(r'^\s*/\*+ ?', '', text)
    text = re.sub(r'\s*\*/\s*$', '', text)
    out, pre = [], []

    def flush():
        nonlocal pre
        while pre and not pre[-1].strip():
            pre.pop()
        if pre:
            k = min(len(t) - len(t.lstrip()) for t in pre if t.strip())
            out.append('\n~~~~~~\n' + '\n'.join(t[k:] for t in pre) + '\n~~~~~~\n')
        pre = []

    for raw in text.split('\n'):
        t = raw[3:] if raw.startswith('   ') else raw
        if re.match(r'\s{2,}\S', t) or (pre and not t.strip()):
            pre.append(t)
        else:
            flush()
            t = re.sub(r'([\\`*_<>|$#~^])', r'\\\1', t)
            t = re.sub(r'^(\d+)\.', r'\1\\.', t)
            t = re.sub(r'^([-+])', r'\\\1', t)
            out.append(t)
    flush()
    return '\n'.join(out)


def weave_section(s):
    lines = HEADER[s.line - 1:s.end]
    n = 0
    intro = []
    if '*/' in lines[0]:
        n = 1
        while n < len(lines) and not lines[n].strip():
            n += 1
        if n < len(lines) and lines[n].startswith('/*'):
            while n < len(lines):
                intro.append(lines[n])
                n += 1
                if '*/' in intro[-1]:
                    break
    else:
        n = 1
        while n < len(lines):
            intro.append(lines[n])
            n += 1
            if '*/' in intro[-1]:
                break
    md = []
    if '.' in s.id:
        md.append('## [%s] %s {#%s}\n' % (s.id, s.title, s.id))
    md.append(source_link('dtrain.h', s.line, 'dtrain.h, line %d' % s.line) + '\n')
    md.append(link_sections(comment_to_markdown(intro), 'dtrain.h'))
    part, at, kind = [], 0, None
    for k in range(n, len(lines) + 1):
        line = lines[k] if k < len(lines) else '#endif'
        if kind is None and re.match(r'#ifdef DTI_(DECLARE|IMPLEMENT)$', line):
            kind, at, part, depth = line.split('_')[-1], s.line + k + 1, [], 1
            continue
        if kind is None:
            continue
        if re.match(r'#\s*if', line):
            depth += 1
        if re.match(r'#\s*endif', line):
            depth -= 1
            if depth == 0:
                if part and kind == 'DECLARE':
                    md.append('\n' + code_block('dtrain.h', at, part))
                elif part:
                    md.append('\n<details class="plumbing"><summary>The implementation, %d lines</summary>\n\n%s\n</details>\n'
                              % (len(part), code_block('dtrain.h', at, part)))
                kind = None
                continue
        part.append(line)
    return '\n'.join(md)


# ---- Pages

def pandoc(markdown, path, title, prev=None, following=None, extra=()):
    command = ['pandoc', '-f', 'markdown-smart', '-t', 'html5', '--mathml', '--standalone', '--wrap=none',
               '--template', os.path.join(HERE, 'page.html'), '--highlight-style=pygments',
               '--metadata', 'pagetitle=' + title, '-V', 'heading=' + title, '-V', 'here=' + path]
    if prev:
        command += ['-V', 'prev=' + prev[0], '-V', 'prevtitle=' + prev[1]]
    if following:
        command += ['-V', 'next=' + following[0], '-V', 'nexttitle=' + following[1]]
    command += ['-V', 'up=' + '../' * path.count('/')] + list(extra)
    done = subprocess.run(command, input=markdown, capture_output=True, text=True, check=False)
    if done.returncode or done.stderr.strip():
        problems.append('%s: pandoc says %s' % (path, done.stderr.strip() or done.returncode))
    write(path, done.stdout)
    return done.stdout


def words(page):
    """A page's text for the search: (heading, anchor, text) for each of its headings."""
    body = re.sub(r'(?s)<(script|style|nav|header|svg)\b.*?</\1>', ' ', page)
    parts = re.split(r'(?s)<h[12][^>]*?(?:id="([^"]*)")?[^>]*>(.*?)</h[12]>', body)
    out = []
    for k in range(1, len(parts) - 2, 3):
        text = html.unescape(re.sub(r'\s+', ' ', re.sub(r'<[^>]+>', ' ', parts[k + 2])))
        heading = html.unescape(re.sub(r'<[^>]+>', '', parts[k + 1])).strip()
        out.append((heading, parts[k] or '', text.strip()))
    return out


def glossary_of(chapters):
    """The glossary stands in chapter 0, as lines `- **word**: meaning`; (word, meaning) in its order."""
    for ch in chapters:
        if ch.number == 0:
            found = []
            for block in ch.blocks():
                if block[0] != 'prose':
                    continue
                text = '\n'.join(block[2])
                found += re.findall(r'(?ms)^- \*\*(.+?)\*\*[:,]? (.*?)(?=^- \*\*|^\S|\Z)', text)
            return [(w, re.sub(r'\s+', ' ', t).strip()) for w, t in found]
    return []


def contents(chapters):
    md = [read('chapters/book/front.md')]
    md.append('## The chapters\n')
    for ch in chapters:
        learn = ch.fields.get('You will learn', '')
        can = ' <span class="badge">runs here</span>' if runs(ch) else ''
        md.append('%d. [%s](%s)%s  \n   %s\n' % (ch.number, ch.title, ch.page, can, learn))
    md.append('## The header\n')
    for s in SECTIONS:
        if '.' not in s.id and s.id.startswith('S'):
            md.append('- [%s](%s) %s' % (s.id, s.page, s.title))
    md.append('\nPart II, the engine room:\n')
    for s in SECTIONS:
        if '.' not in s.id and s.id.startswith('E'):
            md.append('- [%s](%s) %s' % (s.id, s.page, s.title))
    md.append('\nAll figures, as this project measured them: [one page](figures.html). The sources: [dtrain.h](src/dtrain.h.html).\n')
    return '\n'.join(md)


def copy_files(chapters):
    shutil.rmtree(OUT, ignore_errors=True)
    os.makedirs(OUT)
    for f in ('book.css', 'book.js', 'run.js', 'worker.js'):
        shutil.copy(os.path.join(HERE, f), OUT)
    shutil.copytree(os.path.join(ROOT, 'figures'), os.path.join(OUT, 'figures'))
    if shim():
        shutil.copytree(shim(), os.path.join(OUT, 'wasi'), ignore=shutil.ignore_patterns('*.tsbuildinfo'))
        for f in ('LICENSE-MIT', 'LICENSE-APACHE'):
            shutil.copy(os.path.join(os.path.dirname(shim()), f), os.path.join(OUT, 'wasi'))
        os.makedirs(os.path.join(OUT, 'wasm'))
        for ch in chapters:
            program = os.path.join(ROOT, 'build', 'wasm', ch.name + '.wasm')
            if os.path.exists(program):
                shutil.copy(program, os.path.join(OUT, 'wasm'))


def main():
    paths = sorted('chapters/' + f for f in os.listdir(os.path.join(ROOT, 'chapters')) if re.match(r'ch\d\d_\w+\.c$', f))
    chapters = [Chapter(p) for p in paths]
    tops = [s for s in SECTIONS if '.' not in s.id]
    glossary = glossary_of(chapters)
    order = [('index.html', 'How parallel training works, in C')] + [(ch.page, '%d. %s' % (ch.number, ch.title)) for ch in chapters]
    order += [(s.page, '%s %s' % (s.id, s.title)) for s in tops]
    order += [('glossary.html', 'Glossary')] if glossary else []
    order += [('figures.html', 'All figures')]
    texts = {'index.html': contents(chapters)}
    for ch in chapters:
        texts[ch.page] = weave_chapter(ch)
    for s in tops:
        texts[s.page] = '\n\n'.join(weave_section(t) for t in SECTIONS if t.id == s.id or t.id.startswith(s.id + '.'))
    if glossary:
        texts['glossary.html'] = '\n'.join('[]{#%s}**%s**\n:   %s\n' % (anchor(w), w, link_sections(t, 'the glossary')) for w, t in glossary)
    texts['figures.html'] = '\n'.join(figure(f[:-4], 'the gallery') for f in sorted(os.listdir(os.path.join(ROOT, 'figures'))) if f.endswith('.png'))

    if CHECK:
        return tell('%d chapters, %d sections and all figures looked through' % (len(chapters), len(SECTIONS)))
    copy_files(chapters)
    index = []
    for k, (path, title) in enumerate(order):
        page = pandoc(texts[path], path, title, order[k - 1] if k else None, order[k + 1] if k + 1 < len(order) else None,
                      [] if path == 'figures.html' else ['--toc', '--toc-depth=2'])
        for heading, ident, text in words(page):
            index.append({'p': path, 'n': title, 'h': heading, 'a': ident, 't': text})
    write('pages.js', 'const PAGES = %s;\nconst GLOSSARY = %s;\n' % (
        json.dumps(index, ensure_ascii=False), json.dumps([[w, anchor(w), re.sub(r'[`*]', '', t)] for w, t in glossary], ensure_ascii=False)))

    sources = ['dtrain.h'] + sorted('chapters/' + f for f in os.listdir(os.path.join(ROOT, 'chapters')) if f.endswith(('.c', '.h')))
    for path in sources:
        fence = '~' * 12
        pandoc('%s {.c .numberLines .lineAnchors}\n%s\n%s\n' % (fence, read(path), fence), 'src/%s.html' % os.path.basename(path), path)

    check_links()
    return tell('%d pages in %s' % (len(order) + len(sources), os.path.relpath(OUT, ROOT)))


def tell(done):
    for p in problems:
        print('book: ' + p, file=sys.stderr)
    print('book: ' + done)
    return 1 if problems else 0


def anchor(word):
    return 'word-' + re.sub(r'[^a-z0-9]+', '-', word.lower()).strip('-')


def check_links():
    """Every link inside the book leads somewhere, to its very anchor."""
    pages = {}
    for folder, _, files in os.walk(OUT):
        for f in files:
            if f.endswith('.html'):
                path = os.path.relpath(os.path.join(folder, f), OUT)
                with open(os.path.join(OUT, path), encoding='utf-8') as g:
                    pages[path] = g.read()
    ids = {path: set(re.findall(r'\bid="([^"]+)"', text)) for path, text in pages.items()}
    for path, text in pages.items():
        for target in set(re.findall(r'(?:href|src)="([^"]+)"', text)):
            if re.match(r'[a-z]+:', target) or path.startswith('src/') and target.startswith('#'):
                continue
            name, _, ident = html.unescape(target).partition('#')
            full = os.path.normpath(os.path.join(os.path.dirname(path), name)) if name else path
            if not os.path.exists(os.path.join(OUT, full)):
                problems.append('%s links to %s, which does not exist' % (path, target))
            elif ident and full in ids and ident not in ids[full]:
                problems.append('%s links to %s, which has no such place' % (path, target))


if __name__ == '__main__':
    sys.exit(main())
