// The book's pages in a browser: `make test-pages`, after `make book`. Every page that has a program runs it, and the lines
// that its chapter promises (//| and //~, as chapters/check.sh compares them) must appear; Stop stops; no page scrolls
// sideways at 390 pixels, and no script complains. Ends with "N passed, N failed".
//
//   node tests/test_pages.mjs [FOLDER FOR SCREENSHOTS]
import { createRequire } from 'node:module';
import { createServer } from 'node:http';
import { readFile, readdir, mkdir, writeFile } from 'node:fs/promises';
import { execFileSync } from 'node:child_process';
import { extname, join, normalize, resolve } from 'node:path';

const { chromium } = createRequire(resolve('build/node_modules/'))('playwright-core');
const book = resolve('build/book'), shots = process.argv[2];
const kinds = { '.html': 'text/html; charset=utf-8', '.js': 'text/javascript', '.css': 'text/css', '.wasm': 'application/wasm', '.png': 'image/png', '.csv': 'text/csv' };
const server = createServer(async (request, answer) => {
  const path = normalize(join(book, decodeURIComponent(new URL(request.url, 'http://x').pathname)));
  try {
    if (!path.startsWith(book)) throw new Error('outside');
    const body = await readFile(path);
    answer.writeHead(200, { 'content-type': kinds[extname(path)] ?? 'application/octet-stream' }).end(body);
  } catch { answer.writeHead(404).end(); }
});
await new Promise(done => server.listen(0, '127.0.0.1', done));
const base = `http://127.0.0.1:${server.address().port}/`;

let passed = 0, failed = 0;
const expect = (ok, what) => { ok ? ++passed : ++failed; console.log(`${ok ? 'ok    ' : 'FAILED'}  ${what}`); return ok; };

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox'] });
const context = await browser.newContext({ viewport: { width: 1280, height: 900 } });
const page = await context.newPage();
const complaints = [];
page.on('console', m => m.type() === 'error' && complaints.push(m.text()));
page.on('pageerror', e => complaints.push(String(e)));

const pages = (await readdir(book)).filter(f => f.endsWith('.html')).sort();
if (shots) await mkdir(shots, { recursive: true });
for (const name of pages) {
  complaints.length = 0;
  await page.setViewportSize({ width: 390, height: 844 });
  await page.goto(base + name);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  expect(wide <= 0 && complaints.length === 0, `${name} fits a telephone${wide > 0 ? `: ${wide} pixels too wide` : ''}, no complaint ${complaints.join('; ')}`);
  if (shots) for (const [width, height] of [[1280, 900], [390, 844]]) for (const scheme of ['light', 'dark']) {
    await page.setViewportSize({ width, height });
    await page.emulateMedia({ colorScheme: scheme });
    await page.screenshot({ path: join(shots, `${name.slice(0, -5)}-${width}-${scheme}.png`) });
  }
}
await page.emulateMedia({ colorScheme: 'light' });
await page.setViewportSize({ width: 1280, height: 900 });

// the search finds a section by its words, and goes there
await page.goto(base + 'index.html');
await page.fill('#search', 'halving doubling');
expect(await page.locator('#found a').count() > 0, 'the search finds "halving doubling"');
await page.press('#search', 'Enter');
await page.waitForLoadState();
expect(!page.url().endsWith('index.html'), `and Enter opens ${page.url().slice(base.length)}`);

for (const name of pages.filter(f => /^ch\d\d\.html$/.test(f))) {
  await page.goto(base + name);
  if (await page.locator('section.run').count() === 0) continue;
  const chapter = name.slice(0, 4), from = Date.now();
  await page.click('.run .go');
  await page.waitForFunction(() => document.querySelector('.run').dataset.exit !== undefined, null, { timeout: 280000 });
  const seconds = ((Date.now() - from) / 1000).toFixed(1);
  const code = await page.getAttribute('.run', 'data-exit'), printed = await page.locator('.run pre').textContent();
  await mkdir('build/check', { recursive: true });
  // the page's program draws into out/, the checked one into build/check/
  await writeFile(`build/check/${chapter}.page`, printed.replaceAll(' out/', ' build/check/'));
  const source = (await readdir('chapters')).find(f => f.startsWith(chapter + '_') && f.endsWith('.c'));
  const missing = execFileSync('sh', ['chapters/check.sh', '--missing', `chapters/${source}`, `build/check/${chapter}.page`], { encoding: 'utf8' }).trim();
  expect(code === '0' && missing === '', `${chapter} runs in its page: code ${code}, ${seconds} s${missing ? ', lacks ' + missing : ''}`);
  const drawn = await page.locator('.run .pictures img').count(), empty = await page.evaluate(() => [...document.querySelectorAll('.run .pictures img')].filter(i => i.complete && !i.naturalWidth).length);
  expect(drawn > 0 && empty === 0, `${chapter} shows its ${drawn} pictures`);
  if (chapter === 'ch06') expect(await page.locator('.run svg polyline').count() > 0, 'ch06 draws its curve while it trains');
  if (shots) await page.screenshot({ path: join(shots, `${chapter}-ran.png`), fullPage: true });
}

// Stop, and a second run after it
await page.goto(base + 'ch03.html');
if (await page.locator('section.run').count()) {
  await page.fill('.run input[type=text]', '--data synthetic');
  await page.click('.run .go');
  await page.click('.run >> text=Stop');
  expect(await page.locator('.run .status').textContent() === 'stopped', 'Stop stops');
  await page.fill('.run input[type=text]', '--nonsense');
  await page.click('.run .go');
  await page.waitForFunction(() => document.querySelector('.run').dataset.exit !== undefined);
  expect((await page.locator('.run .status').textContent()).startsWith('ended with code 2'), 'a wrong option ends with code 2');
  expect((await page.locator('.run pre .err').textContent()).includes('--nonsense'), 'and its sentence is shown');
}
await page.goto('file://' + join(book, 'ch03.html'));
expect((await page.locator('.run .status').textContent()).includes('http.server'), 'from a file, the page says what to do');

await browser.close();
server.close();
console.log(`${passed} passed, ${failed} failed`);
process.exitCode = failed ? 1 : 0;
